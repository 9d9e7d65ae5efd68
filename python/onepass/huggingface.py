"""Attention for the models of Hugging Face transformers: attn_implementation="onepass"."""

from onepass.refuse import refuse_dropout, refuse_given
from onepass.sdpa import additive_bias
from onepass.torch_ops import forward

_NAME = "onepass in transformers"


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None,
                      softcap=None, s_aux=None, position_bias=None, **others):
    """What a model calls in every layer.

    Args:
        query: [batch, heads, length, head_dim]; key and value alike with their heads, unrepeated.
        attention_mask: None, bool or float, broadcast to [batch, heads, length, keys], with window and padding in it.
            Without one, a causal layer's query i sees the keys up to i, and a single query sees all.
        s_aux: attention sinks, [heads].

    Returns:
        (out [batch, length, heads, head_dim], None).
    """
    refuse_dropout(_NAME, dropout)
    refuse_given(_NAME, position_bias=position_bias)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    bias = None if attention_mask is None else additive_bias(attention_mask, query, key.shape[2])
    out = forward(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), bias=bias,
                  sinks=None if s_aux is None else s_aux.float(), causal="top-left" if causal else "none",
                  softmax_scale=scaling, softcap=softcap or 0.0)
    return out, None


def register_with_transformers() -> None:
    """Lets models be loaded with attn_implementation="onepass", in this process. Masks are those of "sdpa".

    Raises:
        ImportError: transformers is missing, or from before its attention interface (4.53).
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register("onepass", attention_forward)
    AttentionMaskInterface.register("onepass", sdpa_mask)
