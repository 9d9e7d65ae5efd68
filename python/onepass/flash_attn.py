"""The functions of flash-attn 2.8, computed by onepass: names, arguments, defaults, shapes and the log-sum-exp are its.

    from onepass.flash_attn import flash_attn_func        # in place of: from flash_attn import flash_attn_func
    onepass.install_as_flash_attn()                       # or: let other code's `import flash_attn` find this module

What differs: tensors may be on the CPU, and float32; any head dimension up to 1024 and any page size; strides are free
on the CPU. `deterministic` has no effect, results are always the same bits. Not supported yet, each refused by name:
dropout, and gradients through new keys of flash_attn_with_kvcache. backward() gives gradients of dense and packed
tensors, the same bits in every run. With ALiBi the log-sum-exp is of scores with -slope * |i + sk - sq - j|.

Symbols: b sequences, sq and sk lengths, tq and tk rows of all sequences together, h query heads, g key heads (h is a
multiple of g), d head dimension.
"""

import math
import sys

from onepass.append import append_new
from onepass.kv_cache import cache_keys, table_rows
from onepass.refuse import refuse_dropout
from onepass.torch_ops import forward

__version__ = "2.8.3"  #: of the interface, for those who ask

_COMMON = """
        dropout_p: 0.0 only.
        softmax_scale: default 1 / sqrt(d).
        causal: the last query sees the last key: row i sees the keys j <= i + sk - sq.
        window_size: (left, right): row i sees i + sk - sq - left <= j <= i + sk - sq + right; -1 is no limit.
        softcap: score = softcap * tanh(score / softcap) when positive.
        alibi_slopes: float32 (h,) or (b, h): score -= slope * |i + sk - sq - j|.
        deterministic: no effect.
        return_attn_probs: return (out, softmax_lse, S_dmask), the last one empty as there is no dropout.

    Raises:
        ValueError: shapes, dtypes, devices or values break a rule.
        NotImplementedError: an argument that is not supported; in backward(): pages.
    """


def _documented(function):
    function.__doc__ = function.__doc__.rstrip() + _COMMON
    return function


def _every_row_has_keys(seqlen_q, seqlen_k, causal, window_size) -> bool:
    """Whether the first row, which sees the fewest keys where the right side is limited, sees one."""
    right = 0 if causal else window_size[1]
    return seqlen_k > 0 and (right < 0 or seqlen_k + right >= seqlen_q)


def _lse(lse, every_row_has_keys: bool):
    """flash-attn has +inf for rows without keys; a pass over lse where there may be some."""
    return lse if every_row_has_keys else lse.nan_to_num(nan=math.nan, posinf=math.inf, neginf=math.inf)


def _attend(function, q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs,
            **packed):
    refuse_dropout(function, dropout_p)
    found = forward(q, k, v, alibi_slopes=alibi_slopes, causal="bottom-right" if causal else "none",
                    window_left=window_size[0], window_right=window_size[1], softmax_scale=softmax_scale,
                    softcap=softcap, return_lse=return_attn_probs, **packed)
    if not return_attn_probs:
        return found
    every_row_has_keys = not packed and _every_row_has_keys(q.shape[1], k.shape[1], causal, window_size)
    return found[0], _lse(found[1], every_row_has_keys), q.new_empty(0)


@_documented
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """Attention of q (b, sq, h, d) over k, v (b, sk, g, d): out (b, sq, h, d), softmax_lse (b, h, sq).

    Args:
        q, k, v: float16, bfloat16 or float32.
    """
    return _attend("flash_attn_func", q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                   return_attn_probs)


@_documented
def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """`flash_attn_func` of one tensor.

    Args:
        qkv: (b, s, 3, h, d).
    """
    return _attend("flash_attn_qkvpacked_func", *qkv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap,
                   alibi_slopes, return_attn_probs)


@_documented
def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """`flash_attn_func` of keys and values in one tensor.

    Args:
        q: (b, sq, h, d).
        kv: (b, sk, 2, g, d).
    """
    return _attend("flash_attn_kvpacked_func", q, *kv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap,
                   alibi_slopes, return_attn_probs)


def _varlen(function, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, common, block_table=None):
    keys = dict(cu_seqlens_k=cu_seqlens_k)
    if block_table is not None:
        keys = dict(block_table=block_table, seqused_k=cu_seqlens_k.diff())
    return _attend(function, q, k, v, *common, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
                   max_seqlen_k=max_seqlen_k, **keys)


@_documented
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """Attention of packed sequences: out (tq, h, d), softmax_lse (h, tq).

    Args:
        q: (tq, h, d).
        k, v: (tk, g, d); with block_table pages (num_pages, page_size, g, d), of any page_size.
        cu_seqlens_q, cu_seqlens_k: int32 (b + 1,): sequence n has the rows from [n] to [n + 1].
        max_seqlen_q, max_seqlen_k: the longest lengths.
        block_table: int32 (b, max_pages): the pages of each sequence.
    """
    common = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    return _varlen("flash_attn_varlen_func", q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, common,
                   block_table)


@_documented
def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                     window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False):
    """`flash_attn_varlen_func` of one tensor.

    Args:
        qkv: (t, 3, h, d).
        cu_seqlens, max_seqlen: for queries and keys.
    """
    common = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    return _varlen("flash_attn_varlen_qkvpacked_func", *qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                   common)


@_documented
def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                                    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """`flash_attn_varlen_func` of keys and values in one tensor.

    Args:
        q: (tq, h, d).
        kv: (tk, 2, g, d).
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: as in flash_attn_varlen_func.
    """
    common = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    return _varlen("flash_attn_varlen_kvpacked_func", q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                   max_seqlen_k, common)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None,
                            causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
                            alibi_slopes=None, num_splits=0, return_softmax_lse=False):
    """Attention of q (b, sq, h, d) over a cache: out (b, sq, h, d), and softmax_lse (b, h, sq) with return_softmax_lse.

    Args:
        q: float16, bfloat16 or float32.
        k_cache, v_cache: (b_cache, s_cache, g, d); with block_table pages (num_pages, page_size, g, d), any page_size.
        k, v: (b, s_new, g, d), written into the cache behind the keys that it holds; then part of the attention.
        rotary_cos, rotary_sin: (positions, rotary_dim / 2), for k and q, whose rows stand at cache_seqlens and after;
            those of q all at cache_seqlens without causal and window_size.
        cache_seqlens: int, or int32 (b,): keys of each sequence before k; default: the whole cache, without k.
        cache_batch_idx: int32 (b,): which row of the cache (or of block_table) each sequence has; read where it is,
            without a copy.
        cache_leftpad: int32 (b,): rows at the start of each sequence that are no keys; cache_seqlens counts them, and so
            do positions of rotary_cos. With cache_batch_idx or block_table a GPU reads pages of one key: slower.
        block_table: int32 (b, max_pages): the pages of each sequence.
        softmax_scale, causal, window_size, softcap, alibi_slopes: as in flash_attn_func.
        rotary_interleaved: pairs are neighbours; else half of rotary_dim apart.
        num_splits: parts that the keys are split into; 0 lets the planner choose.

    Raises:
        ValueError: shapes, dtypes, devices or values break a rule.
        NotImplementedError: an argument that is not supported; in backward(): pages.
    """
    name = "flash_attn_with_kvcache"
    block_table, cache_batch_idx = table_rows(block_table, cache_batch_idx)
    q, cache_seqlens = append_new(
        name, q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, block_table=block_table,
        cache_batch_idx=cache_batch_idx, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, each_row_its_position=causal or tuple(window_size) != (-1, -1))
    keys = cache_keys(name, k_cache, v_cache, q.shape[0], cache_seqlens, cache_batch_idx, block_table, cache_leftpad)
    found = forward(q, **keys, alibi_slopes=alibi_slopes, causal="bottom-right" if causal else "none",
                    window_left=window_size[0], window_right=window_size[1], softmax_scale=softmax_scale,
                    softcap=softcap, num_splits=num_splits, return_lse=return_softmax_lse)
    if not return_softmax_lse:
        return found
    whole_cache = keys.keys() == {"k", "v"}
    every_row_has_keys = whole_cache and _every_row_has_keys(q.shape[1], k_cache.shape[1], causal, window_size)
    return found[0], _lse(found[1], every_row_has_keys)


def install_as_flash_attn() -> None:
    """Lets `import flash_attn` and `import flash_attn.flash_attn_interface` find this module, in this process.

    Raises:
        RuntimeError: another flash_attn has been imported already.
    """
    this = sys.modules[__name__]
    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        if sys.modules.setdefault(name, this) is not this:
            raise RuntimeError(f"install_as_flash_attn: {name} is {sys.modules[name].__file__} already.\n"
                               "  Allowed: a process that has not imported it.\n"
                               "  Fix: call install_as_flash_attn() first, right after import onepass.")
    this.flash_attn_interface = this
