"""The functions of the FlashAttention-3 interface, computed by onepass: names, arguments, defaults and results are its.

    from onepass.flash_attn_interface import flash_attn_func    # in place of: from flash_attn_interface import ...

The log-sum-exp is -inf for rows without keys. `pack_gqa`, `sm_margin`, `scheduler_metadata` and `deterministic` have no
effect. Not supported yet, each refused by name: qv, attention_chunk, and gradients through new keys of
flash_attn_with_kvcache. backward() gives gradients of dense and packed tensors, the same bits in every run.

Symbols: b sequences, sq and sk lengths, tq and tk rows of all sequences together, h query heads, g key heads (h is a
multiple of g), d head dimension of q and k, dv of v.
"""

import math

import torch

from onepass.append import append_new
from onepass.calls import merge
from onepass.kv_cache import cache_keys, table_rows
from onepass.refuse import refuse, refuse_given
from onepass.torch_ops import forward

_COMMON = """
        softmax_scale: default 1 / sqrt(d).
        causal: the last query sees the last key: row i sees the keys j <= i + sk - sq.
        window_size: (left, right): row i sees i + sk - sq - left <= j <= i + sk - sq + right; -1 is no limit.
        softcap: score = softcap * tanh(score / softcap) when positive.
        q_descale, k_descale, v_descale: float32 (b, g), what 8-bit q, k and v are multiplied by.
        num_splits: parts that the keys are split into; 0 lets the planner choose.
        qv, attention_chunk: None and 0 only.

    Returns:
        out, or (out, softmax_lse) with return_attn_probs.

    Raises:
        ValueError: shapes, dtypes, devices or values break a rule.
        NotImplementedError: an argument that is not supported; in backward(): pages, 8-bit k and v.
    """


def _documented(function):
    function.__doc__ = function.__doc__.rstrip() + _COMMON
    return function


def _wide_queries(function, q, q_descale, k_descale):
    """q in a dtype of the library's queries, and k_descale with the factors of q: those of a product."""
    if q.element_size() > 1:
        if q_descale is not None:
            refuse(function, f"q_descale is given, and q is {q.dtype}", "q_descale with 8-bit q", "leave q_descale out")
        return q, k_descale
    if q_descale is not None:
        k_descale = q_descale if k_descale is None else q_descale * k_descale
    return q.to(torch.bfloat16), k_descale


def _attend(function, q, k, v, softmax_scale, causal, window_size, attention_chunk, softcap, num_splits, return_lse,
            q_descale=None, k_descale=None, **tensors):
    q, k_descale = _wide_queries(function, q, q_descale, k_descale)
    if attention_chunk != 0:
        refuse(function, f"attention_chunk is {attention_chunk}, and is not supported yet", "0",
               "pass the chunk as window_size where that is the same")
    return forward(q, k, v, causal="bottom-right" if causal else "none", window_left=window_size[0],
                   window_right=window_size[1], softmax_scale=softmax_scale, softcap=softcap, num_splits=num_splits,
                   return_lse=return_lse, k_descale=k_descale, **tensors)


@_documented
def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                    deterministic=False, sm_margin=0, return_attn_probs=False):
    """Attention of q (b, sq, h, d) over k (b, sk, g, d) and v (b, sk, g, dv): out (b, sq, h, dv), lse (b, h, sq).

    Args:
        q, k, v: float16, bfloat16 or float32; k and v also float8_e4m3fn. An 8-bit q is computed with, and out given,
            in bfloat16.
    """
    name = "flash_attn_func"
    refuse_given(name, qv=qv)
    return _attend(name, q, k, v, softmax_scale, causal, window_size, attention_chunk, softcap, num_splits,
                   return_attn_probs, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)


@_documented
def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
                              window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False,
                              num_heads_q=None, sm_margin=0, return_attn_probs=False):
    """`flash_attn_func` of one tensor.

    Args:
        qkv: (b, s, 3, h, d), or (b, s, h + 2 g, d) with num_heads_q = h.
    """
    name = "flash_attn_qkvpacked_func"
    if num_heads_q is None:
        q, k, v = qkv.unbind(-3)
    else:
        num_heads_k = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, num_heads_k, num_heads_k], dim=-2)
    return _attend(name, q, k, v, softmax_scale, causal, window_size, attention_chunk, softcap, 1, return_attn_probs,
                   q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)


@_documented
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
                           seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
                           v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    """Attention of packed sequences: out (tq, h, dv), lse (h, tq).

    Args:
        q, k, v: (tq, h, d), (tk, g, d) and (tk, g, dv).
        cu_seqlens_q, cu_seqlens_k: int32 (b + 1,): sequence n has the rows from [n] to [n + 1].
        max_seqlen_q, max_seqlen_k: the longest lengths.
        seqused_q, seqused_k: int32 (b,): rows of each sequence in use, from its start.
    """
    name = "flash_attn_varlen_func"
    refuse_given(name, qv=qv)
    return _attend(name, q, k, v, softmax_scale, causal, window_size, attention_chunk, softcap, num_splits,
                   return_attn_probs, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q,
                   seqused_k=seqused_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, q_descale=q_descale,
                   k_descale=k_descale, v_descale=v_descale)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
                            cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
                            cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
                            q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
                            scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
                            return_softmax_lse=False):
    """Attention of new queries over a cache.

    Args:
        q: (b, sq, h, d), or packed (tq, h, d) with cu_seqlens_q and max_seqlen_q.
        k_cache, v_cache: (b_cache, s_cache, g, d); with page_table pages (num_pages, page_size, g, d).
        cache_seqlens: int, or int32 (b,): keys of each sequence before k; default: the whole cache, without k.
        cache_batch_idx: int32 (b,): which row of the cache (or of page_table) each sequence has; read where it is,
            without a copy.
        cache_leftpad: int32 (b,): rows at the start of each sequence that are no keys; cache_seqlens counts them, and so
            do positions of rotary_cos. With cache_batch_idx or page_table a GPU reads pages of one key: slower.
        page_table: int32 (b, max_pages): the pages of each sequence.
        k, v: (b, s_new, g, d), or packed (t_new, g, d) with cu_seqlens_k_new: written into the cache behind the keys
            that it holds, then part of the attention. In 8 bits with a cache of the same; turned in q's type, then
            rounded again (int8 only without rotary_cos). In q's type with a cache of 8 bits: turned, divided by
            k_descale and v_descale and rounded once.
        rotary_cos, rotary_sin: (positions, rotary_dim / 2), for k and q, whose rows stand at rotary_seqlens (default:
            cache_seqlens) and after; those of q all at that one without causal and window_size.
        qv: None only.

    Returns:
        out (b, sq, h, dv) or (tq, h, dv); with return_softmax_lse (out, lse, None, None), lse (b, h, sq) or (h, tq):
        there are no partial results to show.

    Other arguments and errors are those of flash_attn_func.
    """
    name = "flash_attn_with_kvcache"
    refuse_given(name, qv=qv)
    factors_of_keys = k_descale
    q, k_descale = _wide_queries(name, q, q_descale, k_descale)
    page_table, cache_batch_idx = table_rows(page_table, cache_batch_idx)
    q, cache_seqlens = append_new(
        name, q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, block_table=page_table,
        cache_batch_idx=cache_batch_idx, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, each_row_its_position=causal or tuple(window_size) != (-1, -1),
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_new=cu_seqlens_k_new,
        rotary_positions=rotary_seqlens if rotary_cos is not None else None, k_descale=factors_of_keys,
        v_descale=v_descale)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    keys = cache_keys(name, k_cache, v_cache, batch, cache_seqlens, cache_batch_idx, page_table, cache_leftpad)
    found = _attend(name, q, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                    attention_chunk=attention_chunk, softcap=softcap, num_splits=num_splits,
                    return_lse=return_softmax_lse, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
                    k_descale=k_descale, v_descale=v_descale, **keys)
    return (*found, None, None) if return_softmax_lse else found


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Joins results of the same queries over disjoint keys.

    Args:
        out_partial: float32 (num_splits, b, s, h, dv).
        lse_partial: float32 (num_splits, b, s, h), natural logarithm.
        out: where the result goes; default: a new tensor of out_dtype, default float32.

    Returns:
        (out, lse): (b, s, h, dv) and float32 (b, s, h).
    """
    lse_partial = lse_partial.transpose(-1, -2)  # (num_splits, b, h, s), as merge has it
    lse = lse_partial[0]
    result = out_partial[0].masked_fill((lse == -math.inf).transpose(-1, -2).unsqueeze(-1), 0)  # no keys: zeros
    for split_out, split_lse in zip(out_partial[1:], lse_partial[1:]):
        result, lse = merge(result, lse, split_out, split_lse, out=result)
    result = result.to(out_dtype or result.dtype) if out is None else out.copy_(result)
    return result, lse.transpose(-1, -2)


def get_scheduler_metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
                           qkv_dtype=None, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
                           cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1),
                           attention_chunk=0, has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0):
    """None: plans are kept by the library, and `scheduler_metadata` has no effect."""
