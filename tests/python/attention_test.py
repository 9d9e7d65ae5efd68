"""Numbers of every array function against the formula, for NumPy and torch arrays of every layout."""

import numpy as np
import pytest
import torch
from arrays import DTYPES, score_terms, to_numpy, to_torch, views
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import assert_close, evaluate

import onepass

LIBRARIES = {"numpy": lambda array: array, "torch": to_torch}
some = settings(max_examples=60, deadline=None, database=None)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", DTYPES)
@some
@given(data=st.data())
def test_dense_results_are_the_formulas(library, dtype, data):
    draw = data.draw
    kind, rng = DTYPES[dtype][0], np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, heads_k, group = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    seqlen_q, seqlen_k = draw(st.integers(0, 40)), draw(st.integers(0, 70))
    head_dim, head_dim_v = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    q = draw(views([batch, seqlen_q, heads_k * group, head_dim], kind, rng))
    k = draw(views([batch, seqlen_k, heads_k, head_dim], kind, rng))
    v = draw(views([batch, seqlen_k, heads_k, head_dim_v], kind, rng))
    out = draw(views([batch, seqlen_q, heads_k * group, head_dim_v], kind, rng, may_expand=False))
    out[...] = np.nan
    terms = draw(score_terms(heads_k * group, rng))
    if draw(st.booleans()):
        terms["bias"] = rng.standard_normal([1, heads_k * group, seqlen_q, seqlen_k]).astype(np.float32)
    if library == "torch":  # which has no negative strides
        q, k, v, out = (np.array(x) if any(s < 0 for s in x.strides) or not x.flags.writeable else x
                        for x in (q, k, v, out))
    convert = LIBRARIES[library]
    tensors = {name: convert(array) if isinstance(array, np.ndarray) else array for name, array in terms.items()}
    result, lse = onepass.attention(convert(q), convert(k), convert(v), return_lse=True, out=convert(out), **tensors)
    assert type(result) is type(lse) is type(convert(out))
    result, lse = to_numpy(result), to_numpy(lse)
    for b in range(batch):
        of_b = {**terms, "bias": terms["bias"][0]} if "bias" in terms else terms
        assert_close(result[b], lse[b], q[b], k[b], v[b], **of_b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_new_result_has_the_queries_kind_and_dtype(dtype):
    array, tensor_type = DTYPES[dtype]
    x = np.ones([1, 2, 3, 4], array)
    out, lse = onepass.attention(x, x, x, return_lse=True)
    assert (type(out), out.dtype, out.shape) == (np.ndarray, array, (1, 2, 3, 4))
    assert (type(lse), lse.dtype, lse.shape) == (np.ndarray, np.float32, (1, 3, 2))
    out, lse = onepass.attention(to_torch(x), x, to_torch(x), return_lse=True)
    assert (type(out), out.dtype) == (torch.Tensor, tensor_type)
    assert (type(lse), lse.dtype) == (torch.Tensor, torch.float32)


def test_torchs_expanded_tensors_are_read_where_they_are():
    q = torch.randn(2, 5, 4, 16)
    k = torch.randn(1, 9, 1, 16).expand(2, 9, 2, 16)
    v = torch.randn(2, 9, 2, 48)[..., 16:32]
    assert_close(onepass.attention(q, k, v)[1].numpy(), None, q[1], k[1], v[1])


@some
@given(data=st.data())
def test_packed_results_are_the_formulas(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths_q = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    lengths_k = draw(st.lists(st.integers(0, 30), min_size=len(lengths_q), max_size=len(lengths_q)))
    cu_q, cu_k = (np.cumsum([0, *lengths]).astype(np.int32) for lengths in (lengths_q, lengths_k))
    q = draw(views([cu_q[-1], 4, 24], np.float32, rng))
    k = draw(views([cu_k[-1], 2, 24], np.float32, rng))
    v = draw(views([cu_k[-1], 2, 8], np.float32, rng))
    terms = draw(score_terms(4, rng))
    out, lse = onepass.attention_varlen(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True, **terms)
    for b in range(len(lengths_q)):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        assert_close(out[rows], lse[:, rows], q[rows], k[keys], v[keys], **terms)


@some
@given(data=st.data())
def test_paged_results_are_the_formulas(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    page_size, seqlen_q = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))
    pages = [-(-length // page_size) for length in lengths]
    table = np.full([len(lengths), max(pages) + 1], -1, np.int32)
    free = iter(rng.permutation(sum(pages) + 1))
    k_cache = np.full([sum(pages) + 1, page_size, 2, 16], np.nan, np.float32)
    v_cache = np.full([sum(pages) + 1, page_size, 2, 8], np.nan, np.float32)
    keys = [rng.standard_normal([length, 2, 16]).astype(np.float32) for length in lengths]
    values = [rng.standard_normal([length, 2, 8]).astype(np.float32) for length in lengths]
    for b, length in enumerate(lengths):
        table[b, : pages[b]] = [next(free) for _ in range(pages[b])]
        for token in range(length):
            page = table[b, token // page_size]
            k_cache[page, token % page_size] = keys[b][token]
            v_cache[page, token % page_size] = values[b][token]
    q = rng.standard_normal([len(lengths), seqlen_q, 6, 16]).astype(np.float32)
    out, lse = onepass.attention_paged(q, k_cache, v_cache, block_table=table,
                                       seqused_k=np.array(lengths, np.int32), return_lse=True)
    for b in range(len(lengths)):
        assert_close(out[b], lse[b], q[b], keys[b], values[b], causal=True)


def test_eight_bit_keys_and_values_are_multiplied_by_their_factors():
    rng = np.random.default_rng(1)
    q = rng.standard_normal([1, 3, 2, 16]).astype(np.float16)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        eight_bit = np.dtype(getattr(__import__("ml_dtypes"), name))
        k, v = (rng.standard_normal([1, 20, 2, 16]).astype(eight_bit) for _ in range(2))
        factor = np.array([0.5], np.float32)
        out = onepass.attention(q, k, v, k_descale=factor, v_descale=factor)
        wide = [x.astype(np.float16) * np.float16(0.5) for x in (k, v)]
        assert_close(out[0], None, q[0], wide[0][0], wide[1][0])
        as_torch = [torch.from_numpy(x.view(np.uint8)).view(getattr(torch, name)) for x in (k, v)]
        np.testing.assert_array_equal(onepass.attention(q, *as_torch, k_descale=factor, v_descale=factor), out)


def test_factors_of_pages_are_those_of_the_pages_that_hold_a_key():
    rng = np.random.default_rng(3)
    q = rng.standard_normal([2, 1, 4, 16]).astype(np.float32)
    k, v = (rng.integers(-127, 128, [5, 4, 2, 16]).astype(np.int8) for _ in range(2))
    factors = (rng.random([2, 5, 1, 2]) / 64).astype(np.float32)
    factors[:, 3] = np.nan  # in no table
    table, used = np.array([[4, 0, -1], [2, 1, -1]], np.int32), np.array([7, 5], np.int32)
    out, lse = onepass.attention_paged(q, k, v, block_table=table, seqused_k=used, k_descale=factors[0],
                                       v_descale=factors[1], return_lse=True)
    wide = [x * f[..., None] for x, f in zip((k, v), factors)]
    for b in range(2):
        keys, values = (x[table[b, :2]].reshape(8, 2, 16)[: used[b]] for x in wide)
        assert_close(out[b], lse[b], q[b], keys, values)
    as_torch = [torch.from_numpy(x) for x in (q, k, v, table, used, *factors)]
    of_operator, _ = torch.ops.onepass.forward(*as_torch[:3], block_table=as_torch[3], seqused_k=as_torch[4],
                                               k_descale=as_torch[5], v_descale=as_torch[6])
    np.testing.assert_array_equal(of_operator.numpy(), out)


def test_merged_halves_are_the_whole():
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal([2, n, 4, 16]).astype(np.float32) for n in (5, 40, 40))
    halves = [onepass.attention(q, k[:, part], v[:, part], return_lse=True) for part in (slice(0, 13), slice(13, 40))]
    (out_a, lse_a), (out_b, lse_b) = halves
    out, lse = onepass.merge(out_a, lse_a, out_b, lse_b)
    for b in range(2):
        assert_close(out[b], lse[b], q[b], k[b], v[b])
    in_place = onepass.merge(out_a, lse_a, out_b, lse_b, out=out_a, return_lse=False)
    assert in_place is out_a
    np.testing.assert_array_equal(in_place, out)


def test_a_plan_tells_what_runs_and_why():
    x = np.ones([1, 64, 4, 64], np.float16)
    here = onepass.plan(x, x, x, causal=True)
    assert here.implementation == "cpu_simd" and here.steps[0].kernel.startswith("cpu_simd_forward")
    reasons = {decline.implementation: decline.reason for decline in here.declines}
    assert reasons["sm80_forward"] == "runs on an NVIDIA GPU, and the device is a CPU"
    assert sum(piece.bytes for piece in here.workspace) <= here.workspace_bytes
    # 4 S^2 D, of which causal rows see half and the diagonal
    assert here.accounting.flops == 4 * 4 * 64 * (64 * 65 / 2)
    assert "causal bottom-right" in str(here) and str(here) == here.explain()
    there = onepass.plan(x, x, x, device="h200")
    assert there.implementation in ("sm90_forward", "sm80_forward") and there.device == "h200"
    assert set(onepass.known_devices()) >= {"h200", "a100"}


def test_the_reference_backend_agrees():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal([1, 9, 2, 8]).astype(np.float32) for _ in range(3))
    np.testing.assert_allclose(onepass.attention(q, k, v, backend="reference"), evaluate(q[0], k[0], v[0])[0][None],
                               atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_invariant_rows_have_the_same_bits_alone_and_beside_others(dtype):
    torch.manual_seed(3)
    q, k, v = (torch.randn(3, rows, heads, 32).to(dtype) for rows, heads in ((1, 8), (5000, 2), (5000, 2)))
    used = torch.tensor([4100, 17, 5000], dtype=torch.int32)
    together = onepass.attention(q, k, v, seqused_k=used, batch_invariant=True)
    for b in range(3):
        alone = onepass.attention(q[b:b + 1], k[b:b + 1], v[b:b + 1], seqused_k=used[b:b + 1], batch_invariant=True,
                                  num_threads=1)
        assert torch.equal(alone[0], together[b])
        by_operator = torch.ops.onepass.forward(q[b:b + 1], k[b:b + 1], v[b:b + 1], seqused_k=used[b:b + 1],
                                                batch_invariant=True)[0]
        assert torch.equal(by_operator[0], together[b])
    with pytest.raises(ValueError, match="num_splits is 2, with batch_invariant"):
        onepass.attention(q, k, v, num_splits=2, batch_invariant=True)
