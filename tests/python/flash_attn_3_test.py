"""onepass.flash_attn_interface: FlashAttention-3's interface, word by word, with the formula's numbers."""

import inspect

import pytest
import torch
from arrays import to_numpy
from reference import assert_close

from onepass import flash_attn, flash_attn_interface

INTERFACE = {
    "flash_attn_func":
        "(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
        "sm_margin=0, return_attn_probs=False)",
    "flash_attn_qkvpacked_func":
        "(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, "
        "return_attn_probs=False)",
    "flash_attn_varlen_func":
        "(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, "
        "softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
        "sm_margin=0, return_attn_probs=False)",
    "flash_attn_with_kvcache":
        "(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
        "max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, "
        "causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
        "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False)",
}


@pytest.mark.parametrize("name", INTERFACE)
def test_arguments_and_defaults_are_flash_attentions(name):
    assert str(inspect.signature(getattr(flash_attn_interface, name))) == INTERFACE[name]


def random(*shape):
    return (torch.randn(*shape) + 0.25).bfloat16()


def check(out, lse, q, k, v, **problem):
    assert_close(to_numpy(out), None if lse is None else to_numpy(lse), *map(to_numpy, (q, k, v)), **problem)


def test_dense_and_packed_tensors():
    q, k, v = random(2, 7, 4, 24), random(2, 5, 2, 24), random(2, 5, 2, 16)
    out, lse = flash_attn_interface.flash_attn_func(q, k, v, 0.3, True, window_size=(3, 1), softcap=3.0,
                                                    return_attn_probs=True)
    for b in range(2):
        check(out[b], lse[b], q[b], k[b], v[b], scale=0.3, causal=True, window=(3, 1), softcap=3.0)
    assert torch.isneginf(lse[:, :, :2]).all()  # where flash-attn 2 has +inf
    qkv = random(2, 7, 4 + 2 * 2, 16)
    grouped = flash_attn_interface.flash_attn_qkvpacked_func(qkv, num_heads_q=4)
    check(grouped[1], None, *qkv[1].split([4, 2, 2], dim=1))
    three = random(2, 7, 3, 4, 16)
    assert torch.equal(flash_attn_interface.flash_attn_qkvpacked_func(three, causal=True),
                       flash_attn.flash_attn_qkvpacked_func(three, causal=True))


def test_varlen_with_rows_that_are_not_used():
    cu_q, cu_k, used_q, used_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 4, 9], [0, 7, 20], [3, 5], [7, 9]))
    q, k, v = random(9, 4, 16), random(20, 2, 16), random(20, 2, 16)
    out, lse = flash_attn_interface.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 5, 13, used_q, used_k, causal=True,
                                                           return_attn_probs=True)
    for b in range(2):
        rows, keys = slice(cu_q[b], cu_q[b] + used_q[b]), slice(cu_k[b], cu_k[b] + used_k[b])
        check(out[rows], lse[:, rows], q[rows], k[keys], v[keys], causal=True)


def test_kvcache_dense_paged_and_with_packed_queries():
    q, k, v = random(2, 3, 4, 16), random(3, 12, 2, 16), random(3, 12, 2, 16)
    lengths, rows = torch.tensor([7, 12], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
    out, lse, *_ = flash_attn_interface.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, cache_batch_idx=rows, causal=True, return_softmax_lse=True)
    for b in range(2):
        check(out[b], lse[b], q[b], k[rows[b], : lengths[b]], v[rows[b], : lengths[b]], causal=True)
    table = torch.tensor([[4, 5], [0, 1]], dtype=torch.int32)  # rows 2 and 0, each as two pages of 6
    packed = flash_attn_interface.flash_attn_with_kvcache(
        q.flatten(0, 1), k.reshape(6, 6, 2, 16), v.reshape(6, 6, 2, 16), cache_seqlens=lengths, page_table=table,
        cu_seqlens_q=torch.tensor([0, 3, 6], dtype=torch.int32), max_seqlen_q=3, causal=True)
    torch.testing.assert_close(packed, out.flatten(0, 1))


def test_kvcache_appends_packed_rows():
    q, k, v = random(4, 4, 16), random(4, 2, 16), random(4, 2, 16)
    k_cache, v_cache = random(2, 12, 2, 16), random(2, 12, 2, 16)
    cu, lengths = torch.tensor([0, 3, 4], dtype=torch.int32), torch.tensor([7, 2], dtype=torch.int32)
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, cu_seqlens_q=cu, cu_seqlens_k_new=cu, max_seqlen_q=3,
        causal=True)
    for b, (n, rows) in enumerate(((7, slice(0, 3)), (2, slice(3, 4)))):
        end = n + rows.stop - rows.start
        assert torch.equal(k_cache[b, n:end], k[rows]) and torch.equal(v_cache[b, n:end], v[rows])
        check(out[rows], None, q[rows], k_cache[b, :end], v_cache[b, :end], causal=True)


def test_eight_bit_keys_have_a_factor_for_each_sequence_and_head():
    q, k, v = random(2, 3, 4, 16), random(2, 9, 2, 16), random(2, 9, 2, 16)
    k8, v8 = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
    factors = torch.rand(2, 2) + 0.5
    out = flash_attn_interface.flash_attn_func(q, k8, v8, k_descale=factors, v_descale=factors)
    wide = [x.float() * factors[:, None, :, None] for x in (k8, v8)]
    torch.testing.assert_close(out.float(), flash_attn.flash_attn_func(q.float(), *wide), atol=2e-2, rtol=2e-2)


def test_eight_bit_queries_are_those_numbers_and_their_factors_join_those_of_the_keys():
    q, k, v = (random(2, n, heads, 16).to(torch.float8_e4m3fn) for n, heads in ((3, 4), (9, 2), (9, 2)))
    factors = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    descale = dict(zip(("q_descale", "k_descale", "v_descale"), factors))
    out = flash_attn_interface.flash_attn_func(q, k, v, causal=True, **descale)
    wide = [x.float() * factor.repeat_interleave(x.shape[2] // 2, 1)[:, None, :, None]
            for x, factor in zip((q, k, v), factors)]
    expected = flash_attn.flash_attn_func(*wide, causal=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)
    lengths = torch.full((2,), 9, dtype=torch.int32)
    cached = flash_attn_interface.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True, **descale)
    torch.testing.assert_close(cached.float(), expected, atol=2e-2, rtol=2e-2)
    of_queries_alone = flash_attn_interface.flash_attn_func(q, k, v, q_descale=factors[0])
    assert torch.equal(of_queries_alone, flash_attn_interface.flash_attn_func(q, k, v, k_descale=factors[0]))


def test_new_keys_in_the_queries_type_are_divided_for_a_cache_of_eight_bits():
    q, k, v = (random(2, 2, heads, 16).bfloat16() for heads in (4, 2, 2))
    k_cache, v_cache = (random(2, 9, 2, 16).to(torch.float8_e4m3fn) for _ in range(2))
    factors, lengths = [torch.rand(2, 2) / 16 + 0.01 for _ in range(2)], torch.tensor([3, 7], dtype=torch.int32)
    before = [cache.clone() for cache in (k_cache, v_cache)]
    out = flash_attn_interface.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True,
                                                       k_descale=factors[0], v_descale=factors[1])
    for cache, old, new, factor in zip((k_cache, v_cache), before, (k, v), factors):
        for b, n in enumerate(lengths):
            quotient = (new[b].float() / factor[b][:, None]).clamp(-448, 448)
            old[b, n:n + 2] = quotient.to(torch.float8_e4m3fn)
        assert torch.equal(cache.view(torch.uint8), old.view(torch.uint8))
    again = flash_attn_interface.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths + 2, causal=True,
                                                         k_descale=factors[0], v_descale=factors[1])
    assert torch.equal(out, again)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_new_keys_of_eight_bits_are_written_bit_for_bit(dtype):
    every_byte = torch.arange(256, dtype=torch.uint8)
    k, v = every_byte.reshape(2, 2, 2, 32).view(dtype), every_byte.flip(0).reshape(2, 2, 2, 32).view(dtype)
    k_cache, v_cache = (torch.full((2, 7, 2, 32), 1, dtype=torch.uint8).view(dtype) for _ in range(2))
    flash_attn_interface.flash_attn_with_kvcache(random(2, 1, 2, 32), k_cache, v_cache, k, v,
                                                 cache_seqlens=torch.tensor([5, 0], dtype=torch.int32))
    for cache, new in ((k_cache, k), (v_cache, v)):
        expected = torch.full((2, 7, 2, 32), 1, dtype=torch.uint8)
        expected[0, 5:], expected[1, :2] = new.view(torch.uint8)
        assert torch.equal(cache.view(torch.uint8), expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_new_keys_of_eight_bits_are_turned_before_they_are_rounded(packed, interleaved):
    dtype = torch.float8_e4m3fn
    q, k, v = (random(2, 3, heads, 16).to(dtype) for heads in (4, 2, 2))
    k[0, 0, 0] = 448  # turned, it may be more than there is
    lengths, positions = (torch.tensor(x, dtype=torch.int32) for x in ([7, 2], [3, 1]))
    angles = torch.rand(12, 6) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    cu = torch.tensor([0, 3, 4], dtype=torch.int32)  # of the second sequence, one row
    used = (3, 1) if packed else (3, 3)
    rows = [x[:, :3].flatten(0, 1)[:4] if packed else x for x in (q, k, v)]
    results = []
    for kind in (dtype, torch.float32):
        caches = [torch.zeros(2, 12, 2, 16).to(kind) for _ in range(2)]
        new = [x if kind == dtype else x.float() for x in rows]
        tables = [x if kind == dtype else x.float() for x in (cos, sin)]
        out = flash_attn_interface.flash_attn_with_kvcache(
            new[0], *caches, *new[1:], rotary_cos=tables[0], rotary_sin=tables[1], cache_seqlens=lengths, causal=True,
            rotary_seqlens=positions, rotary_interleaved=interleaved, cu_seqlens_q=cu if packed else None,
            cu_seqlens_k_new=cu if packed else None, max_seqlen_q=3 if packed else None)
        results.append((out.float(), *(cache.float() for cache in caches)))
    (out, keys, values), (_, wide_keys, wide_values) = results
    torch.testing.assert_close(keys, wide_keys.clamp(-448, 448), rtol=1 / 14, atol=1e-2)
    assert torch.equal(values, wide_values)
    for b, count in enumerate(used):
        assert keys[b, lengths[b] : lengths[b] + count].any() and not keys[b, lengths[b] + count :].any()
    assert out.isfinite().all()


def test_positions_without_rotary_tables_have_no_effect():
    q, k, v, held = random(1, 1, 2, 8), random(1, 1, 2, 8), random(1, 1, 2, 8), torch.tensor([2], dtype=torch.int32)
    caches = random(2, 1, 4, 2, 8)
    results = [flash_attn_interface.flash_attn_with_kvcache(q, *caches.clone(), k, v, cache_seqlens=held,
                                                            rotary_seqlens=seqlens) for seqlens in (None, held // 2)]
    assert torch.equal(*results)


@pytest.mark.parametrize("num_splits", [1, 5])
def test_combining_parts_is_attention_over_all_keys(num_splits):
    q, k, v = (random(2, 7, 3, 16).float() for _ in range(3))
    whole, whole_lse = flash_attn_interface.flash_attn_func(q, k, v, return_attn_probs=True)
    parts = [flash_attn_interface.flash_attn_func(q, *keys, return_attn_probs=True)
             for keys in zip(k.tensor_split(num_splits, 1), v.tensor_split(num_splits, 1))]
    outs, lses = torch.stack([out for out, _ in parts]), torch.stack([lse.transpose(1, 2) for _, lse in parts])
    kept = outs.clone()
    out, lse = flash_attn_interface.flash_attn_combine(outs, lses)
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(lse.transpose(1, 2), whole_lse)
    assert torch.equal(outs, kept)
    half, _ = flash_attn_interface.flash_attn_combine(outs, lses, out_dtype=torch.float16)
    given = torch.empty_like(whole)
    assert half.dtype == torch.float16
    assert flash_attn_interface.flash_attn_combine(outs, lses, out=given)[0] is given and torch.equal(given, out)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_parts_without_keys_combine_to_zeros(num_splits):
    outs, lses = random(num_splits, 2, 7, 3, 16).float(), random(num_splits, 2, 7, 3).float()
    lses[:, 0] = -torch.inf
    out, lse = flash_attn_interface.flash_attn_combine(outs, lses)
    assert not out[0].any() and out[1].all() and (lse[0] == -torch.inf).all()


X = torch.ones(1, 2, 2, 8)
E, I = X.to(torch.float8_e4m3fn), X.to(torch.int8)


@pytest.mark.parametrize("call, words", [
    (lambda: flash_attn_interface.flash_attn_func(X, X, X, qv=X), "flash_attn_func: qv is given"),
    (lambda: flash_attn_interface.flash_attn_func(X, X, X, attention_chunk=4), "attention_chunk is 4"),
    (lambda: flash_attn_interface.flash_attn_func(X, X, X, q_descale=X), "q_descale is given, and q is torch.float32"),
    (lambda: flash_attn_interface.flash_attn_with_kvcache(X, *4 * [I], cache_seqlens=0, rotary_cos=X, rotary_sin=X),
     "rotary_cos is given with k of torch.int8"),
    (lambda: flash_attn_interface.flash_attn_with_kvcache(X[..., :7], *4 * [E[..., :7]], cache_seqlens=0),
     "head_dim is odd with k of 8 bits"),
    (lambda: flash_attn_interface.flash_attn_with_kvcache(X, X, X, k=X, v=X), "k is given without cache_seqlens"),
    (lambda: flash_attn_interface.flash_attn_with_kvcache(X, X, X, qv=X), "flash_attn_with_kvcache: qv is given"),
])
def test_what_is_not_supported_is_refused_by_name(call, words):
    with pytest.raises(NotImplementedError) as raised:
        call()
    assert words in str(raised.value) and "\n  Fix: " in str(raised.value)
