"""onepass.flash_attn: flash-attn's interface, word by word, with the formula's numbers."""

import inspect
import itertools
import sys
import types

import numpy as np
import pytest
import torch
from arrays import to_numpy
from reference import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import onepass
from onepass import flash_attn, flash_attn_interface

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


class Operators(TorchDispatchMode):
    """The names of torch's operators that run inside."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*arguments, **(options or {}))

    def __enter__(self):
        self.names = []
        return super().__enter__()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window_size", [(-1, -1), (0, 0), (1, -1), (-1, 0), (1, 2)])
def test_nothing_looks_for_rows_without_keys_where_there_are_none(causal, window_size):
    for seqlen_q, seqlen_k in itertools.product(range(1, 6), range(6)):
        q, k = random(1, seqlen_q, 2, 8), random(1, seqlen_k, 2, 8)
        expected = to_numpy(onepass.attention(q, k, k, causal=causal, window=window_size, return_lse=True)[1])
        lacking = np.isneginf(expected)
        for call in (flash_attn.flash_attn_func, flash_attn.flash_attn_with_kvcache):
            asks = {"return_attn_probs" if call is flash_attn.flash_attn_func else "return_softmax_lse": True}
            with Operators() as operators:
                _, lse, *_ = call(q, k, k, causal=causal, window_size=window_size, **asks)
            np.testing.assert_array_equal(to_numpy(lse), np.where(lacking, np.inf, expected))
            assert ("nan_to_num" in operators.names) == lacking.any()


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


# --- cache_leftpad: rows at the start of a sequence that are no keys

FORMS = {"2.8": flash_attn, "3": flash_attn_interface}
PLACES = ["contiguous", "slice", "heads-first", "rows of a cache", "pages"]
PADS, HELD = (3, 0, 4), (9, 5, 4)  # the last sequence has no keys of its own


def cache_in(place):
    """k_cache, v_cache for three sequences of up to 12 keys, where each one's rows are, and the arguments for that."""
    if place == "slice":
        k_cache, v_cache = random(2, 3, 17, 2, 16)[:, :, :12]
    elif place == "heads-first":
        k_cache, v_cache = random(2, 3, 2, 12, 16).transpose(2, 3)
    elif place == "pages":
        k_cache, v_cache = random(2, 10, 4, 2, 16)
        table = torch.tensor([[3, 1, 9], [0, 2, 5], [7, 4, 6]], dtype=torch.int32)
        return k_cache, v_cache, lambda cache, b: cache[table[b]].flatten(0, 1), dict(block_table=table)
    else:
        k_cache, v_cache = random(2, 5 if place == "rows of a cache" else 3, 12, 2, 16)
    if place != "rows of a cache":
        return k_cache, v_cache, lambda cache, b: cache[b], {}
    index = torch.tensor([4, 0, 3], dtype=torch.int32)
    return k_cache, v_cache, lambda cache, b: cache[index[b]], dict(cache_batch_idx=index)


@pytest.mark.parametrize("mask", [{}, dict(causal=True), dict(window_size=(4, 1)), dict(softcap=2.0)])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_leftpad_hides_the_first_rows_of_each_sequence(form, place, mask):
    q = random(3, 2, 4, 16)
    k_cache, v_cache, rows_of, where = cache_in(place)
    if form == "2.8":
        mask = dict(mask, alibi_slopes=torch.rand(3, 4))
    where = {"page_table" if form == "3" and name == "block_table" else name: x for name, x in where.items()}
    pads, held = (torch.tensor(x, dtype=torch.int32) for x in (PADS, HELD))
    out, lse, *_ = FORMS[form].flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=held, cache_leftpad=pads,
                                                       return_softmax_lse=True, **where, **mask)
    problem = {{"window_size": "window"}.get(name, name): value for name, value in mask.items()}
    for b, (pad, end) in enumerate(zip(PADS, HELD)):
        if form == "2.8":
            problem["alibi_slopes"] = mask["alibi_slopes"][b]
        check(out[b], lse[b], q[b], rows_of(k_cache, b)[pad:end], rows_of(v_cache, b)[pad:end], **problem)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_leftpad_counts_as_rows_of_the_cache_for_new_keys_and_their_positions(form, place, causal):
    q, k, v = random(3, 2, 4, 16), random(3, 2, 2, 16), random(3, 2, 2, 16)
    k_cache, v_cache, rows_of, where = cache_in(place)
    where = {"page_table" if form == "3" and name == "block_table" else name: x for name, x in where.items()}
    before = [(rows_of(k_cache, b).clone(), rows_of(v_cache, b).clone()) for b in range(3)]
    angles = torch.arange(12)[:, None] / 10.0 ** torch.arange(8)
    pads, held = (torch.tensor(x, dtype=torch.int32) for x in (PADS, HELD))
    out = FORMS[form].flash_attn_with_kvcache(q, k_cache, v_cache, k, v, rotary_cos=angles.cos(),
                                              rotary_sin=angles.sin(), cache_seqlens=held, cache_leftpad=pads,
                                              causal=causal, **where)
    for b, (pad, n) in enumerate(zip(PADS, HELD)):
        keys, values = before[b]
        keys[n : n + 2] = turned(k[b], angles.cos(), angles.sin(), torch.arange(n, n + 2), True)
        values[n : n + 2] = v[b]
        torch.testing.assert_close(rows_of(k_cache, b), keys, rtol=1e-2, atol=1e-2)
        positions = torch.arange(n, n + 2) if causal else torch.tensor([n, n])
        queries = turned(q[b], angles.cos(), angles.sin(), positions, True)
        expected = flash_attn.flash_attn_func(queries[None], keys[None, pad : n + 2], values[None, pad : n + 2],
                                              causal=causal)
        torch.testing.assert_close(out[b], expected[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("place", ["contiguous", "pages"])
def test_leftpad_compiles_into_one_graph(place, dynamic):
    q, k, v = random(3, 2, 4, 16), random(3, 2, 2, 16), random(3, 2, 2, 16)
    k_cache, v_cache, _, where = cache_in(place)
    pads, held = (torch.tensor(x, dtype=torch.int32) for x in (PADS, HELD))

    def step(q, k_cache, v_cache, k, v, held, pads):
        return flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=held, cache_leftpad=pads,
                                                  causal=True, **where)

    eager = step(q, k_cache.clone(), v_cache.clone(), k, v, held, pads)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert torch.equal(compiled(q, k_cache, v_cache, k, v, held, pads), eager)


def test_leftpad_of_a_whole_cache_and_its_gradients():
    q, k, v = (random(2, 6, 2, 8).float().requires_grad_() for _ in range(3))
    pads = torch.tensor([2, 0], dtype=torch.int32)
    out = flash_attn.flash_attn_with_kvcache(q, k, v, cache_leftpad=pads)
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    expected = torch.stack([flash_attn.flash_attn_func(q[b : b + 1], k[b : b + 1, pad:], v[b : b + 1, pad:])[0]
                            for b, pad in enumerate((2, 0))])
    torch.testing.assert_close(out, expected)
    for gradient, other in zip(gradients, torch.autograd.grad(expected.square().sum(), (q, k, v))):
        torch.testing.assert_close(gradient, other)
    assert not gradients[1][0, :2].any() and not gradients[2][0, :2].any()


def test_rows_of_a_page_table_are_chosen_as_rows_of_a_cache():
    q, k, v = random(2, 1, 4, 16), random(2, 1, 2, 16), random(2, 1, 2, 16)
    caches = [random(6, 4, 2, 16) for _ in range(2)]
    table, index, held = (torch.tensor(x, dtype=torch.int32)
                          for x in ([[4, 5], [0, 1], [2, 3]], [2, 0], [7, 2]))
    results = []
    for arguments in (dict(page_table=table, cache_batch_idx=index), dict(page_table=table[[2, 0]])):
        written = [cache.clone() for cache in caches]
        out = flash_attn_interface.flash_attn_with_kvcache(q, *written, k, v, cache_seqlens=held, **arguments)
        results.append((out, *written))
    assert all(map(torch.equal, *results)) and not torch.equal(results[0][1], caches[0])


X = torch.ones(1, 2, 2, 8)


@pytest.mark.parametrize("call, words", [
    (lambda: flash_attn.flash_attn_func(X, X, X, 0.1), "flash_attn_func: dropout_p is 0.1"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, k=X, v=X), "k is given without cache_seqlens"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, v=X), "flash_attn_with_kvcache: v is given without k"),
    (lambda: flash_attn.flash_attn_with_kvcache(X.clone().requires_grad_(), X, X, X, X, cache_seqlens=0),
     "a gradient is asked for"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X, X, rotary_cos=X), "rotary_cos is given without k"),
    (lambda: flash_attn.flash_attn_with_kvcache(X, X.expand(3, 2, 2, 8), X.expand(3, 2, 2, 8), cache_leftpad=X),
     "the strides of k_cache (0, 16, 8, 1) and v_cache"),
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
