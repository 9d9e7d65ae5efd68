"""Exact attention, softmax(scale * Q K^T + mask) V, in one pass over the keys, on CPUs and NVIDIA GPUs.

Arrays of NumPy, PyTorch, CuPy, JAX and of any other library that speaks DLPack are read and written where they are.
The layout is [batch, seqlen, heads, head_dim]; other orders are views with exchanged dimensions, without a copy.

    import numpy as np, onepass
    q = np.random.rand(1, 512, 32, 128).astype(np.float32)
    k = np.random.rand(1, 512, 8, 128).astype(np.float32)
    v = np.random.rand(1, 512, 8, 128).astype(np.float32)
    out = onepass.attention(q, k, v, causal=True)

What is computed, to the letter: docs/spec.md. What a call would do and why: `onepass.plan`. For PyTorch there are
`onepass.scaled_dot_product_attention` and the modules `onepass.flash_attn` (flash-attn 2) and
`onepass.flash_attn_interface` (FlashAttention-3), with the functions of those names.
"""

import importlib

from onepass._core import Plan, info, known_devices, version as _version
from onepass.calls import append_kv, attention, attention_cascade, attention_paged, attention_varlen, merge, plan

__version__ = _version()
__all__ = ["Plan", "append_kv", "attention", "attention_cascade", "attention_paged", "attention_varlen", "info",
           "known_devices", "merge", "plan"]

# These need torch, which takes a second to import; `import onepass` does not.
_FOR_TORCH = {"scaled_dot_product_attention": "onepass.sdpa", "install_as_flash_attn": "onepass.flash_attn",
              "register_with_torch": "onepass.torch_attention", "register_with_transformers": "onepass.huggingface"}


def __getattr__(name: str):
    if name in ("flash_attn", "flash_attn_interface"):
        return importlib.import_module(f"onepass.{name}")
    if name in _FOR_TORCH:
        return getattr(importlib.import_module(_FOR_TORCH[name]), name)
    raise AttributeError(f"module 'onepass' has no attribute '{name}'")
