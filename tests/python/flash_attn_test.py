"""onepass.flash_attn: flash-attn's interface, word by word, with the formula's numbers."""

import inspect
import sys
import types

import numpy as np
import pytest
import torch
from arrays import to_numpy
from reference import assert_close

import onepass
from onepass import flash_attn

COMMON = ("dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
          "deterministic=False, return_attn_probs=False")
INTERFACE = {
    "flash_attn_func": f"(q, k, v, {COMMON})",
    "flash_attn_qkvpacked_func": f"(qkv, {COMMON})",
    "flash_attn_kvpacked_func": f"(q, kv, {COMMON})",
    "flash_attn_varlen_func":
        f"(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {COMMON}, block_table=None)",
    "flash_attn_varlen_qkvpacked_func": f"(qkv, cu_seqlens, max_seqlen, {COMMON})",
    "flash_attn_varlen_kvpacked_func":
        f"(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {COMMON})",
    "flash_attn_with_kvcache":
        "(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False)",
}


@pytest.mark.parametrize("name", INTERFACE)
def test_arguments_and_defaults_are_flash_attns(name):
    assert str(inspect.signature(getattr(flash_attn, name))) == INTERFACE[name]


def random(*shape):
    return (torch.randn(*shape) + 0.25).bfloat16()


def check(out, lse, q, k, v, **problem):
    """One sequence; lse with flash-attn's +inf for rows without keys."""
    lse = None if lse is None else np.where(np.isposinf(to_numpy(lse)), -np.inf, to_numpy(lse))
    assert_close(to_numpy(out), lse, to_numpy(q), to_numpy(k), to_numpy(v), **problem)


PROBLEM = dict(softmax_scale=0.3, causal=True, window_size=(5, 2), softcap=3.0)
FORMULAS = dict(scale=0.3, causal=True, window=(5, 2), softcap=3.0)


def test_dense_and_packed_tensors():
    qkv = random(2, 9, 3, 4, 16)
    slopes = torch.rand(2, 4)
    out, lse, probs = flash_attn.flash_attn_func(*qkv.unbind(2), alibi_slopes=slopes, return_attn_probs=True, **PROBLEM)
    assert (out.shape, lse.shape, probs.numel()) == ((2, 9, 4, 16), (2, 4, 9), 0)
    for b in range(2):
        check(out[b], lse[b], *qkv[b].unbind(1), alibi_slopes=slopes[b], **FORMULAS)
    same = dict(alibi_slopes=slopes, **PROBLEM)
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(qkv, **same), out)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], **same), out)


def test_rows_without_keys_have_plus_infinity():
    q, k = random(1, 5, 2, 8), random(1, 3, 2, 8)
    out, lse, _ = flash_attn.flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    assert torch.isposinf(lse[0, :, :2]).all() and torch.isfinite(lse[0, :, 2:]).all()
    assert (out[0, :2] == 0).all()


def test_varlen_in_all_its_forms():
    cu_q, cu_k = (torch.tensor(cu, dtype=torch.int32) for cu in ([0, 3, 3, 8], [0, 7, 9, 20]))
    q, kv = random(8, 4, 16), random(20, 2, 2, 16)
    k, v = kv.unbind(1)
    out, lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 5, 11, return_attn_probs=True, **PROBLEM)
    assert (out.shape, lse.shape) == ((8, 4, 16), (4, 8))
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        check(out[rows], lse[:, rows], q[rows], k[keys], v[keys], **FORMULAS)
    assert torch.equal(flash_attn.flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 5, 11, **PROBLEM), out)
    qkv = random(8, 3, 4, 16)
    packed = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu_q, 5, causal=True)
    check(packed[3:], None, *qkv[3:].unbind(1), causal=True)
    # The same keys in pages of 4, in another order.
    order = torch.tensor([[5, 1, 0], [2, 0, 0], [3, 4, 6]], dtype=torch.int32)
    pages = random(7, 4, 2, 2, 16)
    for b in range(3):
        for token in range(cu_k[b + 1] - cu_k[b]):
            pages[order[b, token // 4], token % 4] = kv[cu_k[b] + token]
    paged = flash_attn.flash_attn_varlen_func(q, pages[:, :, 0], pages[:, :, 1], cu_q, cu_k, 5, 11, block_table=order,
                                              **PROBLEM)
    torch.testing.assert_close(paged, out)


def test_kvcache_lengths_rows_and_pages():
    q, cache = random(2, 3, 4, 16), random(3, 12, 2, 2, 16)
    k, v = cache.unbind(2)
    lengths, rows = torch.tensor([7, 12], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
    out, lse = flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, cache_batch_idx=rows, causal=True,
                                                  return_softmax_lse=True)
    for b in range(2):
        check(out[b], lse[b], q[b], k[rows[b], : lengths[b]], v[rows[b], : lengths[b]], causal=True)
    dense = flash_attn.flash_attn_with_kvcache(q, k[rows.long()], v[rows.long()], cache_seqlens=lengths, causal=True)
    torch.testing.assert_close(dense, out)
    table = torch.tensor([[4, 5], [0, 1]], dtype=torch.int32)  # rows 2 and 0, each as two pages of 6
    paged = flash_attn.flash_attn_with_kvcache(q, k.reshape(6, 6, 2, 16), v.reshape(6, 6, 2, 16), cache_seqlens=lengths,
                                               block_table=table, causal=True)
    torch.testing.assert_close(paged, out)
    one_length = flash_attn.flash_attn_with_kvcache(q, k[:2], v[:2], cache_seqlens=7)
    check(one_length[1], None, q[1], k[1, :7], v[1, :7])
    whole = flash_attn.flash_attn_with_kvcache(q, k, v, cache_batch_idx=rows)
    check(whole[0], None, q[0], k[2], v[2])


def turned(x, cos, sin, positions, interleaved):
    """Rotary embedding of x [s, heads, d] in float32."""
    half = cos.shape[1]
    x = x.float()
    pairs = x[..., : 2 * half].reshape(*x.shape[:-1], *((half, 2) if interleaved else (2, half)))
    a, b = pairs.unbind(-1 if interleaved else -2)
    c, s = cos[positions][:, None], sin[positions][:, None]
    both = torch.stack((a * c - b * s, a * s + b * c), dim=-1 if interleaved else -2)
    return torch.cat((both.reshape(*x.shape[:-1], 2 * half), x[..., 2 * half:]), dim=-1).bfloat16()


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_kvcache_appends_and_turns_as_flash_attn_does(paged, interleaved, causal):
    q, k, v, cache = random(2, 2, 4, 16), random(2, 3, 2, 16), random(2, 3, 2, 16), random(4, 6, 2, 2, 16)
    k_cache, v_cache = (x.contiguous() for x in cache.unbind(2))  # as pages: two for each sequence
    lengths, table = torch.tensor([7, 2], dtype=torch.int32), torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    angles = torch.arange(12)[:, None] / 10.0 ** torch.arange(6)
    cos, sin = angles.cos(), angles.sin()
    if paged:
        where = dict(block_table=table)
    else:
        k_cache, v_cache = k_cache.reshape(2, 12, 2, 16), v_cache.reshape(2, 12, 2, 16)
        where = dict(cache_batch_idx=torch.tensor([1, 0], dtype=torch.int32))
    rows = [table[b] if paged else torch.tensor([1 - b]) for b in range(2)]
    before = [(k_cache[r].flatten(0, 1).clone(), v_cache[r].flatten(0, 1).clone()) for r in rows]
    out = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, cache_seqlens=lengths, causal=causal,
                                             rotary_interleaved=interleaved, **where)
    for b, n in enumerate((7, 2)):
        keys, values = before[b]
        keys[n : n + 3] = turned(k[b], cos, sin, torch.arange(n, n + 3), interleaved)
        values[n : n + 3] = v[b]
        torch.testing.assert_close(k_cache[rows[b]].flatten(0, 1), keys, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(v_cache[rows[b]].flatten(0, 1), values, rtol=0, atol=0)
        positions = torch.arange(n, n + 2) if causal else torch.tensor([n, n])
        queries = turned(q[b], cos, sin, positions, interleaved)
        expected = flash_attn.flash_attn_func(queries[None], keys[None, : n + 3], values[None, : n + 3], causal=causal)
        torch.testing.assert_close(out[b], expected[0], rtol=2e-2, atol=2e-2)


def test_kvcache_appends_without_rotary_tables_and_under_compile():
    q, k, v = random(2, 1, 4, 16), random(2, 1, 2, 16), random(2, 1, 2, 16)
    caches = [random(2, 8, 2, 16) for _ in range(2)]
    lengths = torch.tensor([3, 0], dtype=torch.int32)

    def step(q, k_cache, v_cache, k, v):
        return flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)

    eager_caches = [cache.clone() for cache in caches]
    eager = step(q, *eager_caches, k, v)
    assert torch.equal(eager_caches[0][0, 3], k[0, 0]) and torch.equal(eager_caches[1][1, 0], v[1, 0])
    torch.testing.assert_close(eager[1], v[1].repeat_interleave(2, dim=1))  # its only key
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(q, *caches, k, v)
    assert torch.equal(compiled, eager) and all(map(torch.equal, caches, eager_caches))


X = torch.ones(1, 2, 2, 8)


@pytest.mark.parametrize("call, words", [
    (lambda: flash_attn.flash_attn_func(X, X, X, 0.1), "flash_attn_func: dropout_p is 0.1"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, k=X, v=X), "k is given without cache_seqlens"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, v=X), "flash_attn_with_kvcache: v is given without k"),
    (lambda: flash_attn.flash_attn_with_kvcache(X.clone().requires_grad_(), X, X, X, X, cache_seqlens=0),
     "a gradient is asked for"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, rotary_cos=X), "rotary_cos is given without k"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, cache_leftpad=torch.zeros(1)), "cache_leftpad is given"),
])
def test_what_is_not_supported_is_refused_by_name(call, words):
    with pytest.raises(NotImplementedError) as raised:
        call()
    assert words in str(raised.value) and "\n  Fix: " in str(raised.value)


def test_wrong_shapes_are_the_librarys_errors():
    with pytest.raises(ValueError, match="k has extent 4 in dimension 3|has head_dim"):
        flash_attn.flash_attn_func(X, X[..., :4], X)


def test_other_code_finds_it_as_flash_attn(monkeypatch):
    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    onepass.install_as_flash_attn()
    import flash_attn as found
    from flash_attn.flash_attn_interface import flash_attn_varlen_func
    assert found is flash_attn and found.__version__.startswith("2.8")
    assert flash_attn_varlen_func is found.flash_attn_interface.flash_attn_varlen_func
    onepass.install_as_flash_attn()


def test_another_flash_attn_is_not_replaced(monkeypatch):
    other = types.ModuleType("flash_attn")
    other.__file__ = "/elsewhere/flash_attn.py"
    monkeypatch.setitem(sys.modules, "flash_attn", other)
    with pytest.raises(RuntimeError, match="/elsewhere/flash_attn.py"):
        onepass.install_as_flash_attn()
    assert sys.modules["flash_attn"] is other
