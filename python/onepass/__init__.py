"""Exact attention, softmax(scale * Q K^T + mask) V, in one pass over the keys, on CPUs and NVIDIA GPUs.

Arrays of NumPy, PyTorch, CuPy, JAX and of any other library that speaks DLPack are read and written where they are.
The layout is [batch, seqlen, heads, head_dim]; other orders are views with exchanged dimensions, without a copy.

    import numpy as np, onepass
    q = np.random.rand(1, 512, 32, 128).astype(np.float32)
    k = np.random.rand(1, 512, 8, 128).astype(np.float32)
    v = np.random.rand(1, 512, 8, 128).astype(np.float32)
    out = onepass.attention(q, k, v, causal=True)

What is computed, to the letter: docs/python.md. What a call would do and why: `onepass.plan`.
"""

from onepass._core import Plan, info, known_devices, version as _version
from onepass.calls import attention, attention_paged, attention_varlen, merge, plan

__version__ = _version()
__all__ = ["Plan", "attention", "attention_paged", "attention_varlen", "info", "known_devices",
           "merge", "plan"]
