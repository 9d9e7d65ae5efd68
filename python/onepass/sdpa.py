"""scaled_dot_product_attention with torch's signature."""

import torch

from onepass.refuse import refuse_dropout
from onepass.torch_ops import forward

_NAME = "scaled_dot_product_attention"


def additive_bias(attn_mask, query, seqlen_k: int):
    """The additive bias [batch or 1, heads or 1, L, S] of a mask that broadcasts to [N.., Hq, L, S]."""
    if attn_mask.dtype == torch.bool:
        zeros = torch.zeros(attn_mask.shape, device=attn_mask.device)
        attn_mask = zeros.masked_fill(~attn_mask, float("-inf"))
    mask = attn_mask[(None,) * (query.dim() - attn_mask.dim())]
    if mask.shape[-1] != seqlen_k:  # a GPU wants the last stride to be 1
        mask = mask.expand(*mask.shape[:-1], seqlen_k).contiguous()
    mask = mask.expand(*mask.shape[:-2], query.shape[-2], -1)
    if query.dim() == 3:
        return mask[None]
    if any(extent != 1 for extent in mask.shape[:-3]):
        mask = mask.expand(*query.shape[:-3], -1, -1, -1)
    return mask.flatten(0, -4)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
                                 enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention, computed by onepass.

    Args:
        query: [N.., Hq, L, E], float32, float16 or bfloat16.
        key, value: [N.., H, S, E] and [N.., H, S, Ev]; with enable_gqa Hq is a multiple of H, else equal to it.
        attn_mask: broadcasts to [N.., Hq, L, S]: bool (True: attend; turned into a float32 bias) or float32 or query's
            dtype, added to the scores. A row without keys gives 0.
        dropout_p: 0.0 only.
        is_causal: query i sees the keys j <= i; excludes attn_mask.
        scale: default 1 / sqrt(E).

    Returns:
        [N.., Hq, L, Ev] of query's dtype; of its strides, too, where Ev is E.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
        NotImplementedError: dropout; no implementation takes the problem, in backward() too.
    """
    if dropout_p:
        refuse_dropout(_NAME, dropout_p)
    if is_causal and attn_mask is not None:
        raise ValueError(f"{_NAME}: is_causal is set and attn_mask is given.\n  Allowed: one of the two.\n"
                         "  Fix: put the causal mask into attn_mask.")
    rank = query.dim()
    if rank < 3 or key.dim() != rank or value.dim() != rank:
        raise ValueError(f"{_NAME}: query, key and value have {rank}, {key.dim()} and {value.dim()} dimensions.\n"
                         "  Allowed: 3 or more, the same: [batch.., heads, seqlen, head_dim].\n"
                         "  Fix: add the missing dimensions with unsqueeze.")
    if not enable_gqa and query.shape[-3] != key.shape[-3]:
        raise ValueError(f"{_NAME}: query has {query.shape[-3]} heads, but key has {key.shape[-3]}.\n"
                         "  Allowed: as many, or with enable_gqa=True a multiple.\n  Fix: pass enable_gqa=True.")
    q, k, v = query, key, value
    if rank == 3:
        q, k, v = query[None], key[None], value[None]
    elif rank > 4:
        q, k, v = query.flatten(0, -4), key.flatten(0, -4), value.flatten(0, -4)
    bias = None if attn_mask is None else additive_bias(attn_mask, query, key.shape[-2])
    out = forward(q, k, v, bias=bias, causal="top-left" if is_causal else "none", softmax_scale=scale, heads_first=True)
    return out if rank == 4 else out.reshape(*query.shape[:-1], value.shape[-1])
