"""torch.ops.onepass.forward: the library's forward call as an operator that torch can trace and compile.

Importing this module registers it. The functions of `onepass.sdpa` and `onepass.flash_attn` go through `forward` here,
which leaves the operator out where nothing of torch's would notice: a Python operator costs torch 20 us a call.
"""

import inspect

import torch
from torch._C import _are_functorch_transforms_active
from torch.utils._python_dispatch import _get_current_dispatch_mode

from onepass import _core, calls

_LIBRARY = torch.library.Library("onepass", "DEF")
_LIBRARY.define(
    "forward(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? block_table=None, Tensor? alibi_slopes=None, "
    "Tensor? bias=None, Tensor? sinks=None, Tensor? k_descale=None, Tensor? v_descale=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, str causal='none', SymInt window_left=-1, "
    "SymInt window_right=-1, float? softmax_scale=None, float softcap=0.0, SymInt num_splits=0) "
    "-> (Tensor out, Tensor softmax_lse)",
    tags=[torch.Tag.pt2_compliant_tag])


def _run(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, block_table=None,
         alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None, max_seqlen_q=None,
         max_seqlen_k=None, causal="none", window_left=-1, window_right=-1, softmax_scale=None, softcap=0.0,
         num_splits=0, return_lse=True):
    options = _core.ForwardOptions(
        causal=causal, window_left=window_left, window_right=window_right, softmax_scale=softmax_scale,
        softcap=softcap, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, backend="auto", num_threads=0,
        num_splits=num_splits)
    return calls.run(options, dict(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                                   seqused_q=seqused_q, seqused_k=seqused_k, block_table=block_table,
                                   alibi_slopes=alibi_slopes, bias=bias, sinks=sinks, k_descale=k_descale,
                                   v_descale=v_descale), return_lse, None, None)


_SIGNATURE = inspect.signature(_run)


def _shapes(q, k, v, *others, **options):
    """What torch knows of the results before they are computed."""
    lse_shape = [*q.shape[:-3], q.shape[-2], q.shape[-3]]
    out = torch.empty_like(q) if q.shape[-1] == v.shape[-1] else q.new_empty([*q.shape[:-1], v.shape[-1]])
    return out, q.new_empty(lse_shape, dtype=torch.float32)


def _backward(context, grad_out, grad_lse):
    raise NotImplementedError("onepass: a gradient is asked for, and there is no backward pass yet.\n"
                              "  Allowed: the forward pass alone.\n"
                              "  Fix: train with another implementation of attention.")


def _autocast_on(device_type: str):
    def cast_and_call(*positional, **by_name):
        arguments = _SIGNATURE.bind(*positional, **by_name).arguments
        dtype = torch.get_autocast_dtype(device_type)
        for name in ("q", "k", "v"):
            arguments[name] = arguments[name].to(dtype)
        bias = arguments.get("bias")
        if bias is not None and bias.dtype != dtype:
            arguments["bias"] = bias.float()
        with torch.autocast(device_type, enabled=False):
            return _operator(**arguments)

    return cast_and_call


for _key, _device_type in (("CPU", "cpu"), ("CUDA", "cuda")):
    _LIBRARY.impl("forward", _run, _key)
    _LIBRARY.impl("forward", _autocast_on(_device_type), "Autocast" + _key)
torch.library.register_fake("onepass::forward", _shapes, lib=_LIBRARY)
torch.library.register_autograd("onepass::forward", _backward, lib=_LIBRARY)

_operator = torch.ops.onepass.forward.default


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _needs_operator(tensors) -> bool:
    """Whether torch compiles, traces, casts, records a gradient, or lets a mode, class or vmap see every operator."""
    if torch.compiler.is_compiling():
        return True
    device_type = tensors[0].device.type
    if (device_type not in ("cpu", "cuda") or torch.is_autocast_enabled(device_type) or torch.jit.is_tracing()
            or _get_current_dispatch_mode() is not None or _are_functorch_transforms_active()):
        return True
    recording = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.is_neg() or
                                   (recording and tensor.requires_grad)):
            return True
    return False


def forward(q, k, v, *, bias=None, alibi_slopes=None, sinks=None, return_lse=False, **options):
    """(out, softmax_lse) of onepass::forward; without return_lse softmax_lse need not be computed, and may be None."""
    if _needs_operator((q, k, v, bias, alibi_slopes, sinks)):
        return _operator(q, k, v, bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, **options)
    out = _run(q, k, v, bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, return_lse=return_lse, **options)
    return out if return_lse else (out, None)
