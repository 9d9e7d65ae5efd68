"""The array functions. Arguments are mapped to views and options; every rule is checked by the C++ library."""

from typing import Any

from onepass import _core
from onepass.kinds import check_out, check_torch_tensors, handle_of, kind_of

_CAUSAL = {False: "none", True: "bottom-right"}


def _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits):
    try:
        left, right = (-1, -1) if window is None else window
    except (TypeError, ValueError):
        raise TypeError(f"onepass: window is {window!r}.\n  Allowed: (left, right), two integers, or None.\n"
                        "  Fix: for the last W tokens, pass (W - 1, 0).") from None
    return _core.ForwardOptions(
        causal=_CAUSAL.get(causal, causal), window_left=left, window_right=right, softmax_scale=scale,
        softcap=softcap, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, backend=backend,
        num_threads=num_threads, num_splits=num_splits)


def _results(q, v, kind, out, return_lse: bool):
    """Where the result goes, and its lse: q's rows and heads, v's head_dim."""
    q_shape, v_shape = tuple(q.shape), tuple(getattr(v, "shape", ()))
    if out is None:
        out = kind.empty(q, q_shape[:-1] + v_shape[-1:])
    # [B, Hq, Sq], packed [Hq, Tq]
    lse = kind.empty(q, q_shape[:-3] + q_shape[-2:-1] + q_shape[-3:-2], f32=True) if return_lse else None
    return out, lse


def run(options, tensors: dict, return_lse: bool, out, stream):
    """Allocates what is missing, runs, returns out or (out, lse)."""
    q = tensors["q"]
    kind = kind_of(q)
    handle = kind.current_stream(q) if stream is None else handle_of(stream)
    if out is not None:
        check_out(out)
    result, lse = _results(q, tensors["v"], kind, out, return_lse)
    _core.forward(options, handle, out=result, softmax_lse=lse, **tensors)
    if out is None:
        out = kind.finish(result)
    return (out, kind.finish(lse)) if return_lse else out


def _forward(options, tensors: dict, return_lse: bool, out, stream):
    check_torch_tensors(tensors)
    return run(options, tensors, return_lse, out, stream)


def attention(q, k, v, *, causal: bool | str = False, window: tuple[int, int] | None = None,
              scale: float | None = None, softcap: float = 0.0, alibi_slopes=None, bias=None, sinks=None,
              seqused_q=None, seqused_k=None, k_descale=None, v_descale=None, return_lse: bool = False, out=None,
              backend: str = "auto", num_threads: int = 0, num_splits: int = 0, stream=None) -> Any:
    """softmax(scale * q k^T + mask) v for sequences of one length.

    Symbols: B sequences, Sq and Sk query and key length, Hq and Hk query and key heads (Hq a multiple of Hk), D and Dv
    head dimension of q and k, and of v and the result, 1 to 1024. Query row i stands at position i + Sk - Sq.

    Args:
        q: [B, Sq, Hq, D], float32, float16 or bfloat16; any strides on the CPU, last stride 1 on a GPU.
        k: [B, Sk, Hk, D], q's dtype, or float8_e4m3fn or float8_e5m2.
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
        k_descale, v_descale: float32 [1], [Hk] or [B, Hk]: what 8-bit k and v are multiplied by.
        return_lse: also return the natural log-sum-exp of the scores, float32 [B, Hq, Sq]; -inf for rows without keys.
        out: where the result goes, [B, Sq, Hq, Dv] of q's dtype, any strides without overlap; default: a new array.
        backend: "auto", "cpu", "reference" (plain loops in float64) or "cuda".
        num_threads: of the CPU; 0 takes every core of this process. A process made by fork() uses one.
        num_splits: parts that the keys are split into; 0 lets the planner choose.
        stream: where GPU work is queued, a handle or a stream of torch or CuPy; default: q's library's current one.

    Returns:
        out, or (out, lse): arrays of q's library on q's device. On a GPU the work is queued when this returns.

    Raises:
        ValueError: shapes, dtypes, devices or values break a rule; the text says which, and what to do.
        NotImplementedError: no implementation takes the problem (the text lists why), or a gradient is asked for.
        TypeError: an argument is no array.
        RuntimeError: the GPU's driver or compiler fails.
    """
    options = _options(causal, window, scale, softcap, None, None, backend, num_threads, num_splits)
    tensors = dict(q=q, k=k, v=v, seqused_q=seqused_q, seqused_k=seqused_k, alibi_slopes=alibi_slopes, bias=bias,
                   sinks=sinks, k_descale=k_descale, v_descale=v_descale)
    return _forward(options, tensors, return_lse, out, stream)


def attention_varlen(q, k, v, *, cu_seqlens_q, cu_seqlens_k, seqused_q=None, seqused_k=None,
                     max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, causal: bool | str = False,
                     window: tuple[int, int] | None = None, scale: float | None = None, softcap: float = 0.0,
                     alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None,
                     return_lse: bool = False, out=None, backend: str = "auto", num_threads: int = 0,
                     num_splits: int = 0, stream=None) -> Any:
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
    options = _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits)
    tensors = dict(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q,
                   seqused_k=seqused_k, alibi_slopes=alibi_slopes, bias=bias, sinks=sinks, k_descale=k_descale,
                   v_descale=v_descale)
    return _forward(options, tensors, return_lse, out, stream)


def attention_paged(q, k_cache, v_cache, *, block_table, seqused_k, cu_seqlens_q=None, seqused_q=None,
                    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, causal: bool | str = True,
                    window: tuple[int, int] | None = None, scale: float | None = None, softcap: float = 0.0,
                    alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None,
                    return_lse: bool = False, out=None, backend: str = "auto", num_threads: int = 0,
                    num_splits: int = 0, stream=None) -> Any:
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
    options = _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits)
    tensors = dict(q=q, k=k_cache, v=v_cache, cu_seqlens_q=cu_seqlens_q, seqused_q=seqused_q, seqused_k=seqused_k,
                   block_table=block_table, alibi_slopes=alibi_slopes, bias=bias, sinks=sinks, k_descale=k_descale,
                   v_descale=v_descale)
    return _forward(options, tensors, return_lse, out, stream)


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
    tensors = dict(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    check_torch_tensors(tensors)
    kind = kind_of(out_a, "out_a")
    handle = kind.current_stream(out_a) if stream is None else handle_of(stream)
    if out is not None:
        check_out(out)
    result = kind.empty(out_a, tuple(out_a.shape)) if out is None else out
    lse = kind.empty(out_a, tuple(getattr(lse_a, "shape", ())), f32=True) if return_lse else None
    _core.merge(num_threads, handle, out=result, lse=lse, **tensors)
    if out is None:
        out = kind.finish(result)
    return (out, kind.finish(lse)) if return_lse else out


def plan(q, k, v, *, device: str | None = None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
         block_table=None, max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
         causal: bool | str = False, window: tuple[int, int] | None = None, scale: float | None = None,
         softcap: float = 0.0, alibi_slopes=None, bias=None, sinks=None, k_descale=None, v_descale=None,
         return_lse: bool = False, backend: str = "auto", num_threads: int = 0, num_splits: int = 0) -> _core.Plan:
    """What a call with these arguments would do, and why. Nothing is computed.

    Args:
        device: None for the device that the arrays are on; or "this-cpu" or a GPU of `known_devices()`, present or
            not ("h200"): arrays in CPU memory then stand for arrays there.

    Other arguments and errors are those of `attention`, `attention_varlen` and `attention_paged`.

    Returns:
        A Plan: implementation, declines (of those asked before, with reasons), steps, tiles, workspace, accounting;
        explain() tells all of it as text.
    """
    options = _options(causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, backend, num_threads, num_splits)
    out, lse = _results(q, v, kind_of(q), None, return_lse)
    return _core.plan(options, device, q=q, k=k, v=v, out=out, softmax_lse=lse, cu_seqlens_q=cu_seqlens_q,
                      cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k, block_table=block_table,
                      alibi_slopes=alibi_slopes, bias=bias, sinks=sinks, k_descale=k_descale, v_descale=v_descale)
