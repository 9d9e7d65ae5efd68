"""torch.ops.onepass.forward and backward: the library's calls as operators that torch can trace and compile.

Importing this module registers them. The functions of `onepass.sdpa` and `onepass.flash_attn` go through `forward` here,
which leaves the operator out where nothing of torch's would notice: a Python operator costs torch 20 us a call.
"""

import functools
import inspect

import torch
from torch._C import (_are_functorch_transforms_active, _is_any_autocast_enabled, _is_tracing,
                      _len_torch_dispatch_stack)
from torch.compiler import is_dynamo_compiling

from onepass import _core
from onepass.refuse import refuse

_LIBRARY = torch.library.Library("onepass", "DEF")
_LIBRARY.define(
    "forward(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? block_table=None, Tensor? alibi_slopes=None, "
    "Tensor? bias=None, Tensor? sinks=None, Tensor? k_descale=None, Tensor? v_descale=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, str causal='none', SymInt window_left=-1, "
    "SymInt window_right=-1, float? softmax_scale=None, float softcap=0.0, SymInt num_splits=0, "
    "bool batch_invariant=False) "
    "-> (Tensor out, Tensor softmax_lse)",
    tags=[torch.Tag.pt2_compliant_tag])
_LIBRARY.define(
    "backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, Tensor? alibi_slopes, "
    "Tensor? bias, Tensor? sinks, SymInt? max_seqlen_q, SymInt? max_seqlen_k, str causal, SymInt window_left, "
    "SymInt window_right, float? softmax_scale, float softcap, bool batch_invariant, bool wants_dbias, "
    "bool wants_dsinks) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)",
    tags=[torch.Tag.pt2_compliant_tag])


def forward(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, block_table=None,
            alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None, max_seqlen_q=None,
            max_seqlen_k=None, causal="none", window_left=-1, window_right=-1, softmax_scale=None, softcap=0.0,
            num_splits=0, batch_invariant=False, return_lse=False, as_operator=True, heads_first=False):
    """onepass::forward: (out, softmax_lse), or out without return_lse. With heads_first q, k, v and out are
    [batch, heads, seqlen, head_dim].

    It is the operator wherever torch compiles, traces, casts, records a gradient, or lets a mode, class or vmap see
    every operator. `as_operator` is False for the operator's own implementation.
    """
    if as_operator and (is_dynamo_compiling() or _is_any_autocast_enabled() or _is_tracing()
                        or _len_torch_dispatch_stack() or _are_functorch_transforms_active()
                        or _core.are_more_than_values((q, k, v, alibi_slopes, bias, sinks))):
        if heads_first:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out, lse = _operator(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table, alibi_slopes,
                             bias, sinks, k_descale, v_descale, max_seqlen_q, max_seqlen_k, causal, window_left,
                             window_right, softmax_scale, softcap, num_splits, batch_invariant)
        if heads_first:
            out = out.transpose(1, 2)
        return (out, lse) if return_lse else out
    options = _core.ForwardOptions(causal, window_left, window_right, softmax_scale, softcap, max_seqlen_q,
                                   max_seqlen_k, "auto", 0, num_splits, batch_invariant)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table, alibi_slopes, bias, sinks,
               k_descale, v_descale)
    return _core.forward(options, tensors, None, return_lse, None, False, heads_first)


_run = functools.partial(forward, return_lse=True, as_operator=False)
_SIGNATURE = inspect.signature(forward)


def _shapes(q, k, v, *others, **options):
    """What torch knows of the results before they are computed."""
    lse_shape = [*q.shape[:-3], q.shape[-2], q.shape[-3]]
    out = torch.empty_like(q) if q.shape[-1] == v.shape[-1] else q.new_empty([*q.shape[:-1], v.shape[-1]])
    return out, q.new_empty(lse_shape, dtype=torch.float32)


def _new_gradients(dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
                   alibi_slopes, bias, sinks, max_seqlen_q, max_seqlen_k, causal, window_left, window_right,
                   softmax_scale, softcap, batch_invariant, wants_dbias, wants_dsinks):
    """Memory for dq, dk, dv, dbias, dsinks; the last two are empty where they are not wanted."""
    wanted = [torch.empty_like(tensor) for tensor in (q, k, v)]
    return *wanted, *(torch.empty_like(tensor) if wants else q.new_empty(0)
                      for tensor, wants in ((bias, wants_dbias), (sinks, wants_dsinks)))


def _gradients(dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes,
               bias, sinks, max_seqlen_q, max_seqlen_k, causal, window_left, window_right, softmax_scale, softcap,
               batch_invariant, wants_dbias, wants_dsinks):
    gradients = _new_gradients(dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
                               alibi_slopes, bias, sinks, max_seqlen_q, max_seqlen_k, causal, window_left,
                               window_right, softmax_scale, softcap, batch_invariant, wants_dbias, wants_dsinks)
    if dout.stride(-1) != 1:  # a GPU wants rows in one piece; a sum's gradient is one number, expanded
        dout = dout.contiguous()
    options = _core.ForwardOptions(causal, window_left, window_right, softmax_scale, softcap, max_seqlen_q,
                                   max_seqlen_k, "auto", 0, 0, batch_invariant)
    dq, dk, dv, dbias, dsinks = gradients
    _core.backward(options, (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes, bias, sinks, out,
                             softmax_lse, dout, dlse, dq, dk, dv, dbias if wants_dbias else None,
                             dsinks if wants_dsinks else None))
    longest_k = k.shape[1] if cu_seqlens_k is None else max_seqlen_k
    if longest_k is not None and longest_k <= 1 and sinks is None and dlse is None:
        # An only key has all of the softmax, whatever its score; dP - delta would be 0 up to rounding.
        for gradient in (dq, dk, dbias):
            gradient.zero_()
    return gradients


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:13], *output)
    ctx.options = (*inputs[13:20], inputs[21])  # without num_splits
    ctx.set_materialize_grads(False)  # most callers have no use for the log-sum-exp


def _backward(ctx, dout, dlse):
    (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table, alibi_slopes, bias, sinks, k_descale,
     v_descale, out, softmax_lse) = ctx.saved_tensors
    wanted = ctx.needs_input_grad + (False,) * 22  # torch leaves out arguments at the end that have their defaults
    for name, given in (("block_table", block_table is not None), ("k_descale", k_descale is not None),
                        ("v_descale", v_descale is not None), ("a gradient of alibi_slopes", wanted[8])):
        if given:
            refuse("onepass in backward()", f"{name} is given, and is not supported",
                   "gradients of q, k, v, bias and sinks, of dense or packed keys", "call under torch.no_grad()")
    dout = torch.zeros_like(out) if dout is None else dout
    dq, dk, dv, dbias, dsinks = torch.ops.onepass.backward.default(
        dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes, bias,
        sinks, *ctx.options, wanted[9], wanted[10])
    return dq, dk, dv, *(None,) * 6, dbias if wanted[9] else None, dsinks if wanted[10] else None, *(None,) * 11


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
    _LIBRARY.impl("backward", _gradients, _key)
    _LIBRARY.impl("forward", _autocast_on(_device_type), "Autocast" + _key)
torch.library.register_fake("onepass::forward", _shapes, lib=_LIBRARY)
torch.library.register_fake("onepass::backward", _new_gradients, lib=_LIBRARY)
torch.library.register_autograd("onepass::forward", _backward, setup_context=_keep, lib=_LIBRARY)

_operator = torch.ops.onepass.forward.default
