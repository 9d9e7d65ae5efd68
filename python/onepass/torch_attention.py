"""onepass among torch's own flash attention implementations: what scaled_dot_product_attention runs on a GPU.

    onepass.register_with_torch()
    torch.nn.attention.activate_flash_attention_impl("onepass")     # and restore_flash_attention_impl()

From then on torch's FLASH_ATTENTION backend computes its forward pass here, in code that knows nothing of onepass: the
choice of backends, compiling, autocast and the backward pass, from the same output and log-sum-exp, stay torch's.
"""

import torch

from onepass.refuse import refuse, refuse_dropout
from onepass.torch_ops import forward

_NAME = "onepass in torch.nn.attention"


def _flash_attention(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """aten::_scaled_dot_product_flash_attention of [batch, heads, length, head_dim]."""
    refuse_dropout(_NAME, dropout_p)
    if return_debug_mask:
        refuse(_NAME, "return_debug_mask is True, and there is no matrix of probabilities", "False",
               "leave return_debug_mask out")
    out, lse = forward(query, key, value, causal="bottom-right" if is_causal else "none", softmax_scale=scale,
                       return_lse=True, as_operator=False, heads_first=True)
    no_random_numbers = [torch.zeros(shape, dtype=torch.uint64, device=query.device) for shape in ((2,), ())]
    return out, lse, None, None, query.shape[2], key.shape[2], *no_random_numbers, query.new_empty(0)


class _Registered:
    """What torch keeps while the implementation is active."""

    def __init__(self):
        self.library = torch.library.Library("aten", "IMPL", "CUDA")
        self.library.impl("_scaled_dot_product_flash_attention", _flash_attention, "CUDA")

    def remove(self) -> None:
        self.library = None


def register_with_torch() -> None:
    """Adds "onepass" to the implementations that torch.nn.attention.activate_flash_attention_impl takes.

    Once it is active, dropout in scaled_dot_product_attention raises NotImplementedError where torch's FLASH_ATTENTION
    backend would have run.

    Raises:
        ImportError: torch has no such list yet (it came with 2.11).
    """
    from torch.nn.attention import register_flash_attention_impl
    register_flash_attention_impl("onepass", register_fn=_Registered)
