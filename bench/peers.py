"""Other libraries' attention on a GPU, each as a function from a problem and its inputs to a call.

Inputs are [batch, heads, seqlen, head_dim]; so is what a call returns. A peer that cannot do a problem raises.
"""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import contenders
from cases import Problem
from contenders import Call
from tensors import Inputs

FLASHINFER_WORKSPACE_BYTES = 256 << 20  # what its documentation recommends is 128 MiB
PAGE_SIZE = 16


class Peer(NamedTuple):
    module: str  # has to be importable
    make: Callable[[Problem, Inputs], Call]
    scope: Callable[[], AbstractContextManager] = nullcontext  # in which its calls are made


def flex_attention(problem: Problem, inputs: Inputs) -> Call:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention as flex
    q, k, v = inputs
    mask = None
    if problem.causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, problem.seqlen_q, problem.seqlen_k,
                                 device=q.device)
    compiled = torch.compile(flex, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=problem.group > 1)


def flash_attention_3(problem: Problem, inputs: Inputs) -> Call:
    from flash_attn_interface import flash_attn_func
    q, k, v = (t.transpose(1, 2) for t in inputs)

    def call() -> torch.Tensor:
        out = flash_attn_func(q, k, v, causal=problem.causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
    return call


def flashinfer(problem: Problem, inputs: Inputs) -> Call:
    """Planned beforehand, like onepass: the ragged wrapper for prefill, the paged one for decode."""
    import flashinfer as fi
    q, k, v = (t.transpose(1, 2).contiguous() for t in inputs)
    b, hq, hk, d = problem.batch, problem.num_heads_q, problem.num_heads_k, problem.head_dim
    workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)

    def offsets(length: int) -> torch.Tensor:
        return torch.arange(b + 1, dtype=torch.int32, device=q.device) * length

    if problem.is_decode:
        pages = problem.seqlen_k // PAGE_SIZE
        wrapper = fi.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=problem.group >= 4)
        wrapper.plan(offsets(pages), torch.arange(b * pages, dtype=torch.int32, device=q.device),
                     torch.full((b,), PAGE_SIZE, dtype=torch.int32, device=q.device), hq, hk, d, PAGE_SIZE,
                     q_data_type=q.dtype, kv_data_type=k.dtype)
        rows, cache = q.view(b, hq, d), tuple(t.view(b * pages, PAGE_SIZE, hk, d) for t in (k, v))
        return lambda: wrapper.run(rows, cache).view(b, hq, 1, d)
    wrapper = fi.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(offsets(problem.seqlen_q), offsets(problem.seqlen_k), hq, hk, d, causal=problem.causal,
                 q_data_type=q.dtype)
    rows = [t.flatten(0, 1) for t in (q, k, v)]
    return lambda: wrapper.run(*rows).view(q.shape).transpose(1, 2)


def xformers(problem: Problem, inputs: Inputs) -> Call:
    from xformers.ops import LowerTriangularMask, memory_efficient_attention
    b, hk, group = problem.batch, problem.num_heads_k, problem.group
    q, k, v = (t.transpose(1, 2) for t in inputs)
    shape = q.shape
    if group > 1:  # [batch, seqlen, key heads, heads of the group, head_dim]
        q = q.unflatten(2, (hk, group))
        k, v = (t.unsqueeze(3).expand(b, problem.seqlen_k, hk, group, problem.head_dim) for t in (k, v))
    bias = LowerTriangularMask() if problem.causal else None
    return lambda: memory_efficient_attention(q, k, v, attn_bias=bias).reshape(shape).transpose(1, 2)


def sdpa(backend: SDPBackend) -> Peer:
    return Peer("torch", contenders.torch_sdpa, lambda: sdpa_kernel(backend))


PEERS = {
    "torch_flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "torch_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "torch_efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "torch_math": sdpa(SDPBackend.MATH),
    "materialised": Peer("torch", contenders.materialised),
    "flex": Peer("triton", flex_attention),
    "fa3": Peer("flash_attn_interface", flash_attention_3),
    "flashinfer": Peer("flashinfer", flashinfer),
    "xformers": Peer("xformers.ops", xformers),
}
DEFAULT_PEERS = ("torch_flash", "torch_cudnn", "torch_efficient", "fa3", "flashinfer", "xformers")
SUITE_PEERS = {"naive": ("torch_math", "materialised")}  # besides the ones asked for


def importable(names: list[str]) -> tuple[dict[str, Peer], dict[str, str], dict[str, str]]:
    """The peers that can be imported, why the others cannot, and the versions of those that have one of their own."""
    present, absent, versions = {}, {}, {}
    for name in names:
        peer = PEERS[name]
        try:
            module = importlib.import_module(peer.module)
        except Exception as error:  # a package built for another torch or CUDA fails in its own way
            absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        present[name] = peer
        if peer.module != "torch":
            versions[peer.module] = getattr(module, "__version__", "unknown")
    return present, absent, versions
