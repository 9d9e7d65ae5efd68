"""The array functions. Arguments are mapped to views and options; every rule is checked by the C++ library."""

from typing import Any

from onepass import _core

_CAUSAL = {False: "none", True: "bottom-right"}


def _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits,
             batch_invariant):
    try:
        left, right = (-1, -1) if window is None else window
    except (TypeError, ValueError):
        raise TypeError(f"onepass: window is {window!r}.\n  Allowed: (left, right), two integers, or None.\n"
                        "  Fix: for the last W tokens, pass (W - 1, 0).") from None
    return _core.ForwardOptions(_CAUSAL.get(causal, causal), left, right, scale, softcap, max_seqlen_q, max_seqlen_k,
                                backend, num_threads, num_splits, batch_invariant)


def attention(q, k, v, *, causal: bool | str = False, window: tuple[int, int] | None = None,
              scale: float | None = None, softcap: float = 0.0, alibi_slopes=None, bias=None, sinks=None,
              seqused_q=None, seqused_k=None, k_descale=None, v_descale=None, return_lse: bool = False, out=None,
              backend: str = "auto", num_threads: int = 0, num_splits: int = 0, batch_invariant: bool = False,
              stream=None) -> Any:
    """softmax(scale * q k^T + mask) v for sequences of one length.

    Symbols: B sequences, Sq and Sk query and key length, Hq and Hk query and key heads (Hq a multiple of Hk), D and Dv
    head dimension of q and k, and of v and the result, 1 to 1024. Query row i stands at position i + Sk - Sq.

    Args:
        q: [B, Sq, Hq, D], float32, float16 or bfloat16; any strides on the CPU, last stride 1 on a GPU.
        k: [B, Sk, Hk, D], q's dtype, or float8_e4m3fn, float8_e5m2 or int8.
        v: [B, Sk, Hk, Dv], k's dtype.
        causal: True (or "bottom-right"): row i sees the keys j <= i + Sk - Sq; "top-left": j <= i.
        window: (left, right): row i sees i + Sk - Sq - left <= j <= i + Sk - Sq + right; -1 is no limit on that side.
            "The last W tokens" is (W - 1, 0).
        scale: default 1 / sqrt(D).
        softcap: score = softcap * tanh(score / softcap) when positive.
        alibi_slopes: float32 [Hq] or [B, Hq]: score -= slope * |i + Sk - Sq - j|.
        bias: float32 or q's dtype, [B or 1, Hq or 1, Sq, Sk]: added to the score; -inf hides a key.
        sinks: float32 [Hq]: exp(sink) joins the denominator of its head.
        seqused_q, seqused_k: int32 [B]: rows of each sequence in use, from its start.
        k_descale, v_descale: float32 [1], [Hk] or [B, Hk]: what 8-bit k and v are multiplied by. Of paged k and v
            also [pages, 1, Hk or 1]: factors of each page of the pool.
        return_lse: also return the natural log-sum-exp of the scores, float32 [B, Hq, Sq]; -inf for rows without keys.
        out: where the result goes, [B, Sq, Hq, Dv] of q's dtype, any strides without overlap; default: a new array.
        backend: "auto", "cpu", "reference" (plain loops in float64) or "cuda".
        num_threads: of the CPU; 0 takes every core of this process. A process made by fork() uses one.
        num_splits: parts that the keys are split into; 0 lets the planner choose.
        batch_invariant: the bits of a row follow from its own sequence: its query rows (and how many there are), keys,
            values and score terms, whatever else is in the batch and whatever runs it. Needs num_splits 0.
        stream: where GPU work is queued, a handle or a stream of torch or CuPy; default: q's library's current one.

    Returns:
        out, or (out, lse): arrays of q's library on q's device. On a GPU the work is queued when this returns.

    Raises:
        ValueError: shapes, dtypes, devices or values break a rule; the text says which, and what to do.
        NotImplementedError: no implementation takes the problem (the text lists why), or a gradient is asked for.
        TypeError: an argument is no array.
        RuntimeError: the GPU's driver or compiler fails.
    """
    options = _options(causal, window, scale, softcap, None, None, backend, num_threads, num_splits, batch_invariant)
    tensors = (q, k, v, None, None, seqused_q, seqused_k, None, alibi_slopes, bias, sinks, k_descale, v_descale)
    return _core.forward(options, tensors, out, return_lse, stream, True, False)


def attention_varlen(q, k, v, *, cu_seqlens_q, cu_seqlens_k, seqused_q=None, seqused_k=None,
                     max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, causal: bool | str = False,
                     window: tuple[int, int] | None = None, scale: float | None = None, softcap: float = 0.0,
                     alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None,
                     return_lse: bool = False, out=None, backend: str = "auto", num_threads: int = 0,
                     num_splits: int = 0, batch_invariant: bool = False, stream=None) -> Any:
    """`attention` for sequences of different lengths, packed one after the other without padding.

    Args:
        q: [Tq, Hq, D], the query rows of all sequences.
        k, v: [Tk, Hk, D] and [Tk, Hk, Dv].
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1]: sequence b has the rows from [b] to [b + 1].
        seqused_q, seqused_k: int32 [B]: rows of each sequence in use, from its start.
        max_seqlen_q, max_seqlen_k: bounds of the lengths; read from the index arrays when these are on the CPU,
            needed when they are on a GPU.

    Other arguments and errors are those of `attention`; bias covers the longest sequence.

    Returns:
        out [Tq, Hq, Dv], or (out, lse) with lse float32 [Hq, Tq]. Rows of no sequence get 0 and -inf.
    """
    options = _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits,
                       batch_invariant)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, None, alibi_slopes, bias, sinks, k_descale,
               v_descale)
    return _core.forward(options, tensors, out, return_lse, stream, True, False)


def attention_paged(q, k_cache, v_cache, *, block_table, seqused_k, cu_seqlens_q=None, seqused_q=None,
                    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, causal: bool | str = True,
                    window: tuple[int, int] | None = None, scale: float | None = None, softcap: float = 0.0,
                    alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None,
                    return_lse: bool = False, out=None, backend: str = "auto", num_threads: int = 0,
                    num_splits: int = 0, batch_invariant: bool = False, stream=None) -> Any:
    """`attention` over keys and values in the pages of a cache: decoding, and prefill in chunks. Causal by default.

    Args:
        q: [B, Sq, Hq, D], or packed [Tq, Hq, D] with cu_seqlens_q.
        k_cache, v_cache: [pages, page_size, Hk, D] and [pages, page_size, Hk, Dv], any page_size.
        block_table: int32 [B, max_pages]: token t of sequence b is in page block_table[b][t / page_size]. Entries past
            a sequence's end are never read.
        seqused_k: int32 [B]: keys of each sequence.
        max_seqlen_k: a bound of seqused_k; read from it on the CPU, else the whole table's capacity.

    Other arguments and errors are those of `attention` and `attention_varlen`.

    Returns:
        out [B, Sq, Hq, Dv] or [Tq, Hq, Dv], or (out, lse).
    """
    options = _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits,
                       batch_invariant)
    tensors = (q, k_cache, v_cache, cu_seqlens_q, None, seqused_q, seqused_k, block_table, alibi_slopes, bias, sinks,
               k_descale, v_descale)
    return _core.forward(options, tensors, out, return_lse, stream, True, False)


def attention_cascade(q, k, v, k_prefix, v_prefix, *, prefix_table=None, prefix_seqlen=None, cu_seqlens_q=None,
                      cu_seqlens_k=None, seqused_q=None, seqused_k=None, block_table=None,
                      max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, causal: bool | str = True,
                      scale: float | None = None, softcap: float = 0.0, sinks=None, k_descale=None, v_descale=None,
                      return_lse: bool = False, out=None, backend: str = "auto", num_threads: int = 0,
                      stream=None) -> Any:
    """Attention of sequences that begin with the same keys, which are read once for all of them. Causal by default.

    The result is that of a call whose every sequence has the prefix before its own keys; every query row sees the whole
    prefix. Two passes and a merge: worth it where the prefix is long and many sequences share it.

    Args:
        q: [B, Sq, Hq, D], its rows evenly spaced, or packed [Tq, Hq, D] with cu_seqlens_q.
        k, v: each sequence's own keys and values, dense, packed with cu_seqlens_k, or pages with block_table and
            seqused_k, as in `attention`, `attention_varlen` and `attention_paged`. A sequence may have none.
        k_prefix, v_prefix: [Sp, Hk, D] and [Sp, Hk, Dv]; with prefix_table pages [pages, page_size, Hk, D], k and v
            themselves if those are paged.
        prefix_table: int32 [max_pages]: the pages of the prefix.
        prefix_seqlen: int32 [1]: keys of the prefix in use; needed with prefix_table.
        max_seqlen_q, max_seqlen_k: bounds of the own rows and keys.

    Other arguments and errors are those of `attention`; descale factors are the same for all sequences.

    Returns:
        out of q's shape with Dv, or (out, lse).
    """
    options = _options(causal, None, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, 0, False)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table, None, None, sinks, k_descale,
               v_descale)
    return _core.cascade(options, tensors, (k_prefix, v_prefix, prefix_table, prefix_seqlen), out, return_lse, stream)


def append_kv(k_new, v_new, k_cache, v_cache, *, cache_seqlens=None, block_table=None, cache_batch_idx=None,
              cu_seqlens_new=None, seqused_new=None, rotary_cos=None, rotary_sin=None, rotary_positions=None,
              rotary_interleaved: bool = False, q=None, q_out=None, cu_seqlens_q=None,
              q_at_first_position: bool = False, seqlens_out=None, overflow=None, k_descale=None, v_descale=None,
              num_threads: int = 0, stream=None) -> Any:
    """Writes new keys and values behind those that a cache holds, with rotary embedding if tables are given.

    A cache of 8 bits holds the new rows divided by its factors, keys after they turn: rounded once to the nearest value,
    ties to even, at most the largest finite one; NaN becomes NaN, of int8 0.

    Args:
        k_new, v_new: [B, Sn, Hk, D] and [B, Sn, Hk, Dv], or packed [Tn, Hk, D] with cu_seqlens_new; float32, float16 or
            bfloat16 (on a GPU not float32).
        k_cache, v_cache: written. Contiguous [B, capacity, Hk, D] (any number of rows with cache_batch_idx), or pages
            [pages, page_size, Hk, D] with block_table. Of k_new's dtype, or float8_e4m3fn, float8_e5m2 or int8.
        cache_seqlens: int32 [B]: rows that the cache holds; new row t becomes row cache_seqlens[b] + t. Default: 0.
        block_table: int32 [B, max_pages]: row t is in page block_table[b][t / page_size].
        cache_batch_idx: int32 [B]: where each sequence is in a contiguous cache.
        seqused_new: int32 [B]: new rows of each sequence in use, from its start.
        rotary_cos, rotary_sin: float32 or k_new's dtype, [positions, R / 2], for the first R elements of keys and q.
        rotary_positions: int32 [B]: position of the first new row, and of the first row of q. Default: cache_seqlens.
        rotary_interleaved: pair i is elements 2 i and 2 i + 1; else i and i + R / 2.
        q: [B, Sq, Hq, D] or packed [Tq, Hq, D] with cu_seqlens_q: turned, too.
        q_out: where the turned q goes; q itself is allowed. Default: a new array.
        q_at_first_position: every row of q stands at its sequence's first position.
        seqlens_out: int32 [B], written: rows that the cache holds afterwards: the seqused_k of the attention to follow.
        overflow: int32 [B], on a GPU: set to 1 where a sequence did not fit and nothing was written for it; never
            cleared. Default: the next call on this GPU raises ValueError.
        k_descale, v_descale: float32 [1], [Hk], [B, Hk] or, of pages, [pages, 1, Hk or 1]: what a cache of 8 bits is
            multiplied by where it is read, as for `attention`. Default: 1.
        num_threads, stream: as for `attention`.

    Returns:
        The turned q; None without q.

    Raises:
        ValueError: also for a sequence that does not fit, on the CPU, before anything is written.
        Others as `attention`.
    """
    tensors = (k_new, v_new, k_cache, v_cache, cu_seqlens_new, seqused_new, cache_seqlens, block_table, cache_batch_idx,
               rotary_cos, rotary_sin, rotary_positions, q, cu_seqlens_q, seqlens_out, overflow, k_descale, v_descale,
               q_out)
    return _core.append_kv(tensors, rotary_interleaved, q_at_first_position, num_threads, stream, True)


def merge(out_a, lse_a, out_b, lse_b, *, return_lse: bool = True, out=None, num_threads: int = 0,
          stream=None) -> Any:
    """Joins two results of the same queries over disjoint sets of keys, as if one call had seen all keys.

    Args:
        out_a, out_b: [B, Sq, Hq, Dv] or packed [Tq, Hq, Dv]; float32, float16 or bfloat16, each its own.
        lse_a, lse_b: float32 [B, Hq, Sq] or [Hq, Tq], natural logarithm, as `attention` returns with return_lse.
        out: where the result goes; default: a new array of out_a's dtype. out_a and out_b are allowed.
        num_threads, stream: as for `attention`.

    Returns:
        (out, lse), or out without return_lse. A side without keys (-inf) gives the other side bit for bit.

    Raises: as `attention`.
    """
    return _core.merge(num_threads, (out_a, lse_a, out_b, lse_b), out, return_lse, stream)


def plan(q, k, v, *, device: str | None = None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
         block_table=None, max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
         causal: bool | str = False, window: tuple[int, int] | None = None, scale: float | None = None,
         softcap: float = 0.0, alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None,
         return_lse: bool = False, backend: str = "auto", num_threads: int = 0, num_splits: int = 0,
         batch_invariant: bool = False) -> _core.Plan:
    """What a call with these arguments would do, and why. Nothing is computed.

    Args:
        device: None for the device that the arrays are on; or "this-cpu" or a GPU of `known_devices()`, present or
            not ("h200"): arrays in CPU memory then stand for arrays there.

    Other arguments and errors are those of `attention`, `attention_varlen` and `attention_paged`.

    Returns:
        A Plan: implementation, declines (of those asked before, with reasons), steps, tiles, workspace, accounting;
        explain() tells all of it as text.
    """
    options = _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits,
                       batch_invariant)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table, alibi_slopes, bias, sinks,
               k_descale, v_descale)
    return _core.plan(options, device, tensors, return_lse)
