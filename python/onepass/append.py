"""torch.ops.onepass.append_kv: new keys and values for a cache as an operator that torch can trace and compile."""

import torch
from torch._C import _is_tracing, _len_torch_dispatch_stack
from torch.compiler import is_dynamo_compiling

from onepass import _core
from onepass.refuse import refuse

_LIBRARY = torch.library.Library("onepass", "FRAGMENT")
_LIBRARY.define(
    "append_kv(Tensor k_new, Tensor v_new, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? cu_seqlens_new, "
    "Tensor? cache_seqlens, Tensor? block_table, Tensor? cache_batch_idx, Tensor? rotary_cos, Tensor? rotary_sin, "
    "Tensor? rotary_positions, Tensor? q, Tensor? cu_seqlens_q, Tensor(c!) seqlens_out, Tensor(d!)? q_out, "
    "bool rotary_interleaved, bool q_at_first_position) -> ()",
    tags=[torch.Tag.pt2_compliant_tag])


def _run(k_new, v_new, k_cache, v_cache, cu_seqlens_new, cache_seqlens, block_table, cache_batch_idx, rotary_cos,
         rotary_sin, rotary_positions, q, cu_seqlens_q, seqlens_out, q_out, rotary_interleaved, q_at_first_position):
    tensors = (k_new, v_new, k_cache, v_cache, cu_seqlens_new, None, cache_seqlens, block_table, cache_batch_idx,
               rotary_cos, rotary_sin, rotary_positions, q, cu_seqlens_q, seqlens_out, None, q_out)
    _core.append_kv(tensors, rotary_interleaved, q_at_first_position, 0, None, False)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("append_kv", _run, _key)
torch.library.register_fake("onepass::append_kv", lambda *arguments: None, lib=_LIBRARY)


def append_new(function, q, k_cache, v_cache, k, v, *, cache_seqlens, block_table, cache_batch_idx, rotary_cos,
               rotary_sin, rotary_interleaved, each_row_its_position, cu_seqlens_q=None, cu_seqlens_new=None,
               rotary_positions=None):
    """Writes k and v into the cache and turns q: (q, the lengths of the cache afterwards), as flash-attn does.

    Without k there is nothing to write, and these are q and cache_seqlens.
    """
    if k is None:
        for name, value in dict(v=v, rotary_cos=rotary_cos, rotary_sin=rotary_sin).items():
            if value is not None:
                refuse(function, f"{name} is given without k", "new keys and values together, and rotary tables with "
                       "them", "pass k and v")
        return q, cache_seqlens
    if v is None or cache_seqlens is None:
        missing = "v" if v is None else "cache_seqlens"
        refuse(function, f"k is given without {missing}", "k and v behind the cache_seqlens keys of each sequence",
               f"pass {missing}")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, k_cache, v_cache)):
        refuse(function, "a gradient is asked for, and there is none through keys written into a cache",
               "tensors without requires_grad", "call it under torch.no_grad()")
    batch = k.shape[0] if cu_seqlens_new is None else cu_seqlens_new.shape[0] - 1
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=k.device)
    written = (k, v, k_cache, v_cache)
    if k.element_size() == 1 and len({x.dtype for x in written}) == 1:
        if rotary_cos is not None or any(x.shape[-1] % 2 for x in written):
            given = "rotary_cos is given" if rotary_cos is not None else "head_dim is odd"
            refuse(function, f"{given} with k of 8 bits, and is not supported yet", "keys of 8 bits of an even head_dim, "
                   "turned already", "turn k before it is converted, and leave the tables out")
        written = tuple(x.view(torch.float16) for x in written)  # rows that do not turn are copied bit for bit
    lengths = torch.empty_like(cache_seqlens)
    turned = torch.empty_like(q) if rotary_cos is not None else None
    call = _run
    if (is_dynamo_compiling() or _is_tracing() or _len_torch_dispatch_stack()
            or _core.are_more_than_values((q, *written))):
        call = torch.ops.onepass.append_kv
    call(*written, cu_seqlens_new, cache_seqlens, block_table, cache_batch_idx, rotary_cos, rotary_sin,
         rotary_positions, q if turned is not None else None, cu_seqlens_q if turned is not None else None, lengths,
         turned, rotary_interleaved, not each_row_its_position)
    return q if turned is None else turned, lengths
