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


X = torch.ones(1, 2, 2, 8)


@pytest.mark.parametrize("call, words", [
    (lambda: flash_attn.flash_attn_func(X, X, X, 0.1), "flash_attn_func: dropout_p is 0.1"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, k=X, v=X), "flash_attn_with_kvcache: k is given"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, rotary_cos=X), "rotary_cos is given"),
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
