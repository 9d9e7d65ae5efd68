"""The formula of the documentation in NumPy float64, and the bound that results are held to."""

import numpy as np


def evaluate(q, k, v, *, causal=False, window=None, scale=None, softcap=0.0, alibi_slopes=None, bias=None, sinks=None,
             rounded=lambda array: array):
    """out [Sq, Hq, Dv] and lse [Hq, Sq] of one sequence q [Sq, Hq, D], k [Sk, Hk, D], v [Sk, Hk, Dv]; slopes [Hq],
    bias [Hq, Sq, Sk]. `rounded` is applied to S and P: with a type's rounding, this is the plain evaluation in it."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    seqlen_q, seqlen_k = q.shape[0], k.shape[0]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    s = rounded(scale * np.einsum("ihd,jhd->hij", q, k))
    if softcap > 0:
        s = softcap * np.tanh(s / softcap)
    i = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    j = np.arange(seqlen_k)[None, :]
    if alibi_slopes is not None:
        s = s - np.asarray(alibi_slopes, np.float64)[:, None, None] * abs(i - j)
    if bias is not None:
        s = s + np.asarray(bias).astype(np.float64)
    seen = np.ones((seqlen_q, seqlen_k), bool)
    if causal in (True, "bottom-right"):
        seen &= j <= i
    if causal == "top-left":
        seen &= j <= np.arange(seqlen_q)[:, None]
    left, right = (-1, -1) if window is None else window
    if left >= 0:
        seen &= j >= i - left
    if right >= 0:
        seen &= j <= i + right
    s = np.where(seen, s, -np.inf)
    sink = np.full(q.shape[1], -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    m = np.maximum(s.max(axis=2, initial=-np.inf), sink[:, None])
    finite = np.where(np.isfinite(m), m, 0.0)
    p = np.exp(s - finite[..., None])
    total = p.sum(axis=2) + np.exp(sink[:, None] - finite)
    with np.errstate(divide="ignore"):
        lse = finite + np.log(total)
    p = rounded(p / np.where(total > 0, total, 1.0)[..., None])
    return np.einsum("hij,jhd->ihd", p, v), lse


def assert_close(out, lse, q, k, v, **problem):
    """Twice the error of the plain evaluation in the input type, plus 1e-5; the places of -inf in lse are exact."""
    dtype = np.asarray(out).dtype

    def rounded(array):
        return array.astype(dtype).astype(np.float64)

    expected, expected_lse = evaluate(q, k, v, **problem)
    plain = rounded(evaluate(q, k, v, **problem, rounded=rounded)[0])
    bound = 2 * abs(plain - expected).max(initial=0.0) + 1e-5
    assert abs(np.asarray(out).astype(np.float64) - expected).max(initial=0.0) <= bound
    if lse is not None:
        np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
        keys = np.isfinite(expected_lse)
        factor = 1e-5 if dtype == np.float32 else 1e-3
        assert (abs(lse[keys] - expected_lse[keys]) <= factor + 1e-5 * abs(expected_lse[keys])).all()
