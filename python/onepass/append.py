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
    "bool rotary_interleaved, bool q_at_first_position, Tensor? k_descale=None, Tensor? v_descale=None) -> ()",
    tags=[torch.Tag.pt2_compliant_tag])


def _run(k_new, v_new, k_cache, v_cache, cu_seqlens_new, cache_seqlens, block_table, cache_batch_idx, rotary_cos,
         rotary_sin, rotary_positions, q, cu_seqlens_q, seqlens_out, q_out, rotary_interleaved, q_at_first_position,
         k_descale=None, v_descale=None):
    tensors = (k_new, v_new, k_cache, v_cache, cu_seqlens_new, None, cache_seqlens, block_table, cache_batch_idx,
               rotary_cos, rotary_sin, rotary_positions, q, cu_seqlens_q, seqlens_out, None, k_descale, v_descale, q_out)
    _core.append_kv(tensors, rotary_interleaved, q_at_first_position, 0, None, False)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("append_kv", _run, _key)
torch.library.register_fake("onepass::append_kv", lambda *arguments: None, lib=_LIBRARY)


def append_new(function, q, k_cache, v_cache, k, v, *, cache_seqlens, block_table, cache_batch_idx, rotary_cos,
               rotary_sin, rotary_interleaved, each_row_its_position, cu_seqlens_q=None, cu_seqlens_new=None,
               rotary_positions=None, k_descale=None, v_descale=None):
    """Writes k and v into the cache and turns q: (q, the lengths of the cache afterwards), as flash-attn does.

    A cache of 8 bits holds wider k and v divided by k_descale and v_descale. Without k there is nothing to write, and these are q and cache_seqlens.
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
    call = _run
    if (is_dynamo_compiling() or _is_tracing() or _len_torch_dispatch_stack()
            or _core.are_more_than_values((q, *written))):
        call = torch.ops.onepass.append_kv
    turned = torch.empty_like(q) if rotary_cos is not None else None
    rotary = (rotary_cos, rotary_sin, rotary_positions, q if turned is not None else None,
              cu_seqlens_q if turned is not None else None)
    options = (rotary_interleaved, not each_row_its_position)
    factors = (k_descale, v_descale) if k_cache.element_size() == 1 and k.element_size() > 1 else ()
    lengths = torch.empty_like(cache_seqlens)
    left_to_turn = turned
    if k.element_size() == 1 and len({x.dtype for x in written}) == 1:
        _check_eight_bits(function, written, rotary_cos)
        if turned is not None:
            k = _turned_keys(call, k, cu_seqlens_new, cache_seqlens, rotary, lengths, turned, options)
            rotary, left_to_turn = (None,) * 5, None
        # Rows that do not turn are copied bit for bit.
        written = tuple(x.view(torch.float16) for x in (k, v, k_cache, v_cache))
    call(*written, cu_seqlens_new, cache_seqlens, block_table, cache_batch_idx, *rotary, lengths, left_to_turn, *options,
         *factors)
    return q if turned is None else turned, lengths


def _check_eight_bits(function, written, rotary_cos):
    if any(x.shape[-1] % 2 for x in written):
        refuse(function, "head_dim is odd with k of 8 bits, and is not supported yet", "an even head_dim",
               "pad k, v and the cache")
    if rotary_cos is not None and not written[0].is_floating_point():
        refuse(function, f"rotary_cos is given with k of {written[0].dtype}, and is not supported yet",
               "rotary tables for keys of floating-point types", "turn k before it is converted")


def _turned_keys(call, k, cu_seqlens_new, cache_seqlens, rotary, lengths, turned, options):
    """8-bit keys, turned in q's type as keys of a cache of their own; and q, which goes to `turned`."""
    cos, sin, positions, q, cu_seqlens_q = rotary
    wide = k.to(q.dtype)
    cos, sin = (x.to(wide.dtype) if x.element_size() == 1 else x for x in (cos, sin))
    cache, table = torch.empty_like(wide), None
    if cu_seqlens_new is not None:  # row t of sequence b is page cu_seqlens_new[b] + t, of one row
        rows = torch.arange(k.shape[0], dtype=torch.int32, device=k.device)
        cache, table = cache[:, None], cu_seqlens_new[:-1, None] + rows
    call(wide, wide[..., :1], cache, torch.empty_like(cache[..., :1]), cu_seqlens_new, None, table, None, cos, sin,
         cache_seqlens if positions is None else positions, q, cu_seqlens_q, lengths, turned, *options)
    most = torch.finfo(k.dtype).max
    return cache.view(k.shape).clamp_(-most, most).to(k.dtype)
