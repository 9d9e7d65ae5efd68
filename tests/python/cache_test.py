"""append_kv and attention_cascade on NumPy and torch arrays."""

import numpy as np
import pytest
import torch
from arrays import to_numpy, to_torch
from reference import assert_close

import onepass

LIBRARIES = {"numpy": lambda array: array, "torch": to_torch}


@pytest.mark.parametrize("library", LIBRARIES)
def test_append_writes_pages_and_turns_queries(library):
    convert, rng = LIBRARIES[library], np.random.default_rng(3)
    k_new, v_new = rng.standard_normal((2, 3, 2, 8), np.float32), rng.standard_normal((2, 3, 2, 4), np.float32)
    q = rng.standard_normal((2, 3, 4, 8), np.float32)
    k_cache, v_cache = np.full((4, 5, 2, 8), np.nan, np.float32), np.full((4, 5, 2, 4), np.nan, np.float32)
    lengths, table = np.array([4, 0], np.int32), np.array([[2, 0], [3, 1]], np.int32)
    then, angles = np.zeros(2, np.int32), np.arange(10, dtype=np.float32)[:, None] * [0.5, 0.25]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    turned = onepass.append_kv(
        *(convert(x) for x in (k_new, v_new, k_cache, v_cache)), cache_seqlens=convert(lengths),
        block_table=convert(table), rotary_cos=convert(cos), rotary_sin=convert(sin), rotary_interleaved=True,
        q=convert(q), seqlens_out=convert(then))
    assert type(turned) is type(convert(q))

    def rotated(x, position):
        y = x.copy()
        y[:, 0:4:2] = x[:, 0:4:2] * cos[position] - x[:, 1:4:2] * sin[position]
        y[:, 1:4:2] = x[:, 0:4:2] * sin[position] + x[:, 1:4:2] * cos[position]
        return y

    expected_k, expected_v = np.full_like(k_cache, np.nan), np.full_like(v_cache, np.nan)
    for b in range(2):
        for t in range(3):
            at = lengths[b] + t
            expected_k[table[b, at // 5], at % 5] = rotated(k_new[b, t], at)
            expected_v[table[b, at // 5], at % 5] = v_new[b, t]
            np.testing.assert_allclose(to_numpy(turned)[b, t], rotated(q[b, t], at), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(k_cache, expected_k, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(v_cache, expected_v)
    np.testing.assert_array_equal(then, [7, 3])


@pytest.mark.parametrize("library", LIBRARIES)
def test_append_divides_rows_for_pages_of_eight_bits_that_attention_reads(library):
    convert, rng = LIBRARIES[library], np.random.default_rng(4)
    k_new, v_new = (rng.standard_normal((2, 3, 2, 8), np.float32) for _ in range(2))
    k_cache, v_cache = (np.full((4, 2, 2, 8), 99, np.int8) for _ in range(2))
    factors = ((0.5 + rng.random((2, 4, 1, 2))) / 40).astype(np.float32)
    table, used = np.array([[2, 0], [3, 1]], np.int32), np.zeros(2, np.int32)
    onepass.append_kv(*(convert(x) for x in (k_new, v_new, k_cache, v_cache)), block_table=convert(table),
                      seqlens_out=convert(used), k_descale=convert(factors[0]), v_descale=convert(factors[1]))
    for cache, new, factor in zip((k_cache, v_cache), (k_new, v_new), factors):
        expected = np.full_like(cache, 99)
        for b in range(2):
            for t in range(3):
                page = table[b, t // 2]
                expected[page, t % 2] = np.clip(np.rint(new[b, t] / factor[page, 0][:, None]), -128, 127)
        np.testing.assert_array_equal(cache, expected)
    q = rng.standard_normal((2, 1, 4, 8), np.float32)
    out = onepass.attention_paged(*(convert(x) for x in (q, k_cache, v_cache)), block_table=convert(table),
                                  seqused_k=convert(used), k_descale=convert(factors[0]), v_descale=convert(factors[1]))
    for b in range(2):
        keys, values = ((x * f[..., None])[table[b]].reshape(4, 2, 8)[:3] for x, f in
                        zip((k_cache, v_cache), factors))
        assert_close(to_numpy(out)[b], None, q[b], keys, values)


def test_append_refuses_what_does_not_fit_or_must_not_be_written():
    new, cache, lengths = np.ones((1, 2, 1, 4), np.float32), np.zeros((1, 4, 1, 4), np.float32), np.array([3], np.int32)
    with pytest.raises(ValueError, match="cache_seqlens.0. is 3 and sequence 0 gets 2 new rows, but the cache has room for 4"):
        onepass.append_kv(new, new, cache, cache.copy(), cache_seqlens=lengths)
    assert not cache.any()
    frozen = cache.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="k_cache: the array is read-only"):
        onepass.append_kv(new, new, frozen, cache)
    with pytest.raises(NotImplementedError, match="gradient"):
        onepass.append_kv(torch.ones(1, 2, 1, 4, requires_grad=True), torch.ones(1, 2, 1, 4), torch.zeros(1, 4, 1, 4),
                          torch.zeros(1, 4, 1, 4))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_cascade_is_attention_over_prefix_and_own_keys(library):
    convert, rng = LIBRARIES[library], np.random.default_rng(4)
    q = rng.standard_normal((3, 1, 4, 16), np.float32)
    k, v = rng.standard_normal((3, 9, 2, 16), np.float32), rng.standard_normal((3, 9, 2, 8), np.float32)
    k_prefix, v_prefix = rng.standard_normal((30, 2, 16), np.float32), rng.standard_normal((30, 2, 8), np.float32)
    lengths = np.array([9, 1, 4], np.int32)
    out, lse = onepass.attention_cascade(*(convert(x) for x in (q, k, v, k_prefix, v_prefix)),
                                         seqused_k=convert(lengths), return_lse=True)
    pages = [x.reshape(6, 5, 2, -1)[::-1].copy() for x in (k_prefix, v_prefix)]
    paged = onepass.attention_cascade(*(convert(x) for x in (q, k, v, *pages)), seqused_k=convert(lengths),
                                      prefix_table=convert(np.arange(5, -1, -1, dtype=np.int32)),
                                      prefix_seqlen=convert(np.array([30], np.int32)))
    for b in range(3):
        keys, values = (np.concatenate((a, x[b, : lengths[b]])) for a, x in ((k_prefix, k), (v_prefix, v)))
        assert_close(to_numpy(out)[b], to_numpy(lse)[b], q[b], keys, values, causal=True)
        assert_close(to_numpy(paged)[b], None, q[b], keys, values, causal=True)
