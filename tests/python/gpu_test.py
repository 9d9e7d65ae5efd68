"""On a real GPU: numbers beside the CPU's, streams, devices, graphs. Needs a GPU build of torch; skipped elsewhere."""

import numpy as np
import pytest
import torch
from gpu import GPU_ONLY

import onepass
from onepass import flash_attn, flash_attn_interface

pytestmark = GPU_ONLY


def random(*shape, dtype=torch.bfloat16):
    return (torch.randn(*shape) + 0.25).to(dtype)


def on_gpu(*tensors, device="cuda"):
    return [tensor.to(device) for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(causal=True, window=(64, 0)), dict(softcap=5.0)])
def test_the_numbers_are_the_cpus(dtype, options):
    q, k, v = (random(2, length, heads, 128, dtype=dtype) for length, heads in ((300, 8), (340, 2), (340, 2)))
    expected, expected_lse = onepass.attention(q, k, v, return_lse=True, **options)
    out, lse = onepass.attention(*on_gpu(q, k, v), return_lse=True, **options)
    assert (out.device.type, out.dtype, lse.device.type) == ("cuda", dtype, "cuda")
    torch.testing.assert_close(out.cpu(), expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.cpu(), expected_lse, atol=2e-3, rtol=1e-4)


def test_paged_decoding_and_merging():
    q, k, v = random(2, 1, 8, 64), random(9, 16, 2, 64), random(9, 16, 2, 64)
    table, used = torch.tensor([[8, 3, 5], [0, 1, 2]], dtype=torch.int32), torch.tensor([33, 48], dtype=torch.int32)
    expected = onepass.attention_paged(q, k, v, block_table=table, seqused_k=used)
    q, k, v, table, used = on_gpu(q, k, v, table, used)
    torch.testing.assert_close(onepass.attention_paged(q, k, v, block_table=table, seqused_k=used).cpu(), expected,
                               atol=2e-2, rtol=2e-2)
    x = random(1, 50, 4, 64).cuda()
    halves = [onepass.attention(x, x[:, part], x[:, part], return_lse=True) for part in (slice(0, 20), slice(20, 50))]
    merged, _ = onepass.merge(*halves[0], *halves[1])
    torch.testing.assert_close(merged, onepass.attention(x, x, x), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("place", ["contiguous", "rows of a cache", "pages"])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_leftpad_and_new_keys_are_the_cpus(place, dtype, turns):
    q, k, v = random(2, 1, 8, 64), random(2, 1, 2, 64).to(dtype), random(2, 1, 2, 64).to(dtype)
    shape = (6, 16, 2, 64) if place == "pages" else (4 if place == "rows of a cache" else 2, 48, 2, 64)
    caches = [random(*shape).to(dtype) for _ in range(2)]
    index = {"pages": dict(page_table=[[5, 1, 3], [0, 2, 4]]), "rows of a cache": dict(cache_batch_idx=[3, 1])}
    arguments = dict(index.get(place, {}), cache_seqlens=[40, 20], cache_leftpad=[7, 0])
    angles = torch.rand(48, 16) * 6
    tables = dict(rotary_cos=angles.cos(), rotary_sin=angles.sin()) if turns else {}
    results = []
    for device in ("cpu", "cuda"):
        written = [cache.to(device, copy=True) for cache in caches]
        out, lse, *_ = flash_attn_interface.flash_attn_with_kvcache(
            *on_gpu(q, device=device), *written, *on_gpu(k, v, device=device), causal=True, return_softmax_lse=True,
            **{name: torch.tensor(values, dtype=torch.int32, device=device) for name, values in arguments.items()},
            **{name: table.to(device) for name, table in tables.items()})
        results.append((out.cpu(), lse.cpu(), *(cache.cpu().float() for cache in written)))
    (expected, expected_lse, expected_k, expected_v), (out, lse, k_cache, v_cache) = results
    rounding = 1 / 8 if dtype == torch.float8_e4m3fn else 1 / 128  # of a key that turns, where the last bit may differ
    torch.testing.assert_close(k_cache, expected_k, rtol=rounding if turns else 0, atol=0.02 if turns else 0)
    assert torch.equal(v_cache, expected_v)
    torch.testing.assert_close(out, expected, atol=4 * rounding if turns else 2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, expected_lse, atol=4 * rounding if turns else 2e-3, rtol=1e-4)


def test_work_is_queued_on_the_current_stream():
    x = random(1, 256, 8, 64).cuda()
    expected = onepass.attention(x, x, x)
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(x)
        out = onepass.attention(late, late, late)  # on another stream it would see zeros
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_the_tensors_device_is_the_one_that_computes():
    x = random(1, 64, 4, 64)
    assert onepass.attention(*on_gpu(x, x, x, device="cuda:1")).device.index == 1
    with pytest.raises(ValueError, match="GPU 1"):
        onepass.attention(x.to("cuda:0"), x.to("cuda:1"), x.to("cuda:0"))


def test_a_graph_replays_the_call():
    x = random(2, 128, 8, 64).cuda()
    onepass.scaled_dot_product_attention(x, x, x, is_causal=True)  # kernels are loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = onepass.scaled_dot_product_attention(x, x, x, is_causal=True)
    x.copy_(random(2, 128, 8, 64))
    graph.replay()
    assert torch.equal(out, onepass.scaled_dot_product_attention(x, x, x, is_causal=True))


# Query rows and keys of four sequences; the first are those of the capture.
LENGTHS = [((150, 1, 1, 48), (700, 33, 1, 500)), ((1, 1, 0, 1), (0, 999, 0, 17)), ((0, 0, 200, 0), (5, 0, 1000, 300)),
           ((0, 0, 0, 0), (0, 0, 0, 0)), ((64, 60, 66, 10), (400, 400, 66, 9))]
BOUNDS = dict(max_seqlen_q=200, max_seqlen_k=1000)


def paged_call(page, queries, used, **options):
    columns = -(-BOUNDS["max_seqlen_k"] // page)
    pools = [random(4 * columns, page, 2, 128).cuda() for _ in range(2)]
    table = torch.randperm(4 * columns).to(torch.int32).view(4, columns).cuda()
    return lambda: onepass.attention_paged(queries, *pools, block_table=table, seqused_k=used, return_lse=True,
                                           **options)


def packed_call(starts_q, starts_k, gradients):
    q, k, v = (random(rows, heads, 128).cuda().requires_grad_(gradients)
               for rows, heads in ((200, 8), (1600, 2), (1600, 2)))
    weights = random(200, 8, 128).cuda()

    def call():
        out = flash_attn.flash_attn_varlen_func(q, k, v, starts_q, starts_k, *BOUNDS.values(), causal=True)
        return torch.autograd.grad((out * weights).sum(), (q, k, v)) if gradients else (out,)

    return call


def cascade_call(used, **options):
    prefix_k, prefix_v, k, v = (random(rows, 16, 2, 128).cuda() for rows in (40, 40, 252, 252))
    pools = torch.cat((k, prefix_k)), torch.cat((v, prefix_v))
    prefix_table, prefix_seqlen = torch.arange(252, 292, dtype=torch.int32).cuda(), torch.tensor([625], dtype=torch.int32)
    queries, table = random(4, 1, 8, 128).cuda(), torch.randperm(252).to(torch.int32).view(4, 63).cuda()
    prefix_seqlen = prefix_seqlen.cuda()
    return lambda: onepass.attention_cascade(queries, *pools, *pools, prefix_table=prefix_table,
                                             prefix_seqlen=prefix_seqlen, block_table=table, seqused_k=used,
                                             max_seqlen_k=1000, return_lse=True, **options)


def append_call(lengths):
    caches = [random(4, 1001, 2, 128).cuda() for _ in range(2)]
    new = [random(4, 1, 2, 128).cuda() for _ in range(2)]

    def call():
        for cache in caches:
            cache.zero_()
        onepass.append_kv(*new, *caches, cache_seqlens=lengths)
        return caches

    return call


@pytest.mark.parametrize("kind", ["decoding", "decoding, pages of 5", "decoding, batch_invariant", "mixed batch",
                                  "prompts", "gradients", "new keys", "shared prefix"])
def test_a_graph_replays_other_lengths(kind):
    starts_q, starts_k = (torch.zeros(5, dtype=torch.int32).cuda() for _ in range(2))
    used = torch.zeros(4, dtype=torch.int32).cuda()
    call = {"decoding": lambda: paged_call(16, random(4, 1, 8, 128).cuda(), used),
            "decoding, pages of 5": lambda: paged_call(5, random(4, 1, 8, 128).cuda(), used),
            "decoding, batch_invariant": lambda: paged_call(16, random(4, 1, 8, 128).cuda(), used,
                                                            batch_invariant=True),
            "mixed batch": lambda: paged_call(16, random(200, 8, 128).cuda(), used, cu_seqlens_q=starts_q, **BOUNDS),
            "prompts": lambda: packed_call(starts_q, starts_k, False),
            "gradients": lambda: packed_call(starts_q, starts_k, True),
            "new keys": lambda: append_call(used),
            "shared prefix": lambda: cascade_call(used)}[kind]()

    def choose(rows, keys):
        for starts, counts in ((starts_q, rows), (starts_k, keys)):
            starts[1:] = torch.tensor(counts).cumsum(0).to(torch.int32)
        used.copy_(torch.tensor(keys, dtype=torch.int32))

    choose(*LENGTHS[0])
    call()  # kernels are loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    for lengths in LENGTHS:
        choose(*lengths)
        graph.replay()
        found = [output.clone() for output in outputs]
        for one, expected in zip(found, call(), strict=True):
            assert torch.equal(one, expected)


@pytest.mark.parametrize("kind", ["decoding", "shared prefix"])
def test_a_graph_takes_a_workspace_of_the_librarys_own(kind):
    """With a stream given as a handle no memory comes from torch: it is taken on that stream, in the capture."""
    used = torch.tensor([700, 33, 1, 1000], dtype=torch.int32).cuda()
    stream = torch.cuda.Stream()
    make = {"decoding": lambda **options: paged_call(16, random(4, 1, 8, 128).cuda(), used, **options),
            "shared prefix": lambda **options: cascade_call(used, **options)}[kind]
    call = make(stream=stream.cuda_stream)
    torch.cuda.synchronize()
    expected = call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = call()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for one, other in zip(outputs, expected, strict=True):
            assert torch.equal(one, other)


def test_compiled_code_gives_the_same():
    def layer(q, k, v):
        return flash_attn.flash_attn_func(q * 2, k, v, causal=True)

    q, k, v = (random(2, 64, heads, 64).cuda() for heads in (8, 2, 2))
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(q, k, v), layer(q, k, v))


@pytest.mark.parametrize("call, exception, words", [
    (lambda x: onepass.attention(x, x.cpu(), x), ValueError, "k is on the CPU, but q is on GPU 0"),
    (lambda x: onepass.attention(x, x, x, bias=np.zeros((1, 1, 8, 8), np.float32)), ValueError, "bias is on the CPU"),
    (lambda x: onepass.attention(x.transpose(2, 3), x.transpose(2, 3), x.transpose(2, 3)), NotImplementedError,
     "stride"),
    (lambda x: onepass.attention(*[x.float()] * 3), NotImplementedError, "sm80_forward"),
])
def test_what_a_gpu_does_not_take_is_refused(call, exception, words):
    with pytest.raises(exception) as raised:
        call(random(1, 8, 8, 64).cuda())
    assert words in str(raised.value)


@pytest.mark.skipif(not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="torch before 2.11")
def test_torchs_flash_backend_runs_it_before_its_own_backward_pass():
    attention = torch.nn.attention
    q, k, v = (random(2, 4, 96, 64).cuda().requires_grad_() for _ in range(3))

    def results():
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    expected = results()
    onepass.register_with_torch()
    attention.activate_flash_attention_impl("onepass")
    try:
        found = results()
    finally:
        attention.restore_flash_attention_impl()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(causal=True, window_size=(40, 0), softcap=5.0)])
def test_gradients_are_the_cpus(options):
    tensors = [random(2, length, heads, 64) for length, heads in ((90, 8), (120, 2), (120, 2))]
    weights = random(2, 90, 8, 64)

    def gradients(device, compiled=False):
        inputs = [tensor.to(device).requires_grad_() for tensor in tensors]
        attention = torch.compile(flash_attn.flash_attn_func) if compiled else flash_attn.flash_attn_func
        return torch.autograd.grad((attention(*inputs, **options) * weights.to(device)).sum(), inputs)

    expected, found = gradients("cpu"), gradients("cuda")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=3e-2, rtol=3e-2)
    for one, other in zip(gradients("cuda", compiled=True), found, strict=True):
        assert torch.equal(one, other)


class OtherWork:
    """Kernels of another stream, each kind by turns: of many blocks, of few for a while, and of none."""

    def __init__(self):
        self.stream, self.turn = torch.cuda.Stream(), 0
        self.large, self.small = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for n in (4096, 512))

    def start(self):
        self.turn += 1
        with torch.cuda.stream(self.stream):
            matrix, count = ((self.large, 2), (self.small, 40), (self.small, 0))[self.turn % 3]
            for _ in range(count):
                matrix @ matrix


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim, head_dim_v", [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_gradients_have_the_same_bits_beside_other_work(head_dim, head_dim_v, causal, packed):
    lengths = torch.tensor([700, 0, 1500, 1, 300, 1595]) if packed else torch.tensor([2048, 2048])
    inputs = [torch.randn(4096, heads, dim, dtype=torch.bfloat16, device="cuda").requires_grad_()
              for heads, dim in ((8, head_dim), (4, head_dim), (4, head_dim_v))]
    starts = torch.cat([torch.zeros(1), lengths.cumsum(0)]).to(torch.int32).cuda()
    dout = torch.randn(4096, 8, head_dim_v, dtype=torch.bfloat16, device="cuda")
    other = OtherWork()

    def gradients():
        if packed:
            out = flash_attn.flash_attn_varlen_func(*inputs, starts, starts, 1595, 1595, causal=causal)
        else:
            out = flash_attn.flash_attn_func(*(x.unflatten(0, (2, 2048)) for x in inputs), causal=causal).flatten(0, 1)
        return torch.autograd.grad(out, inputs, dout)

    first = gradients()
    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(100):
        other.start()
        for one, expected in zip(gradients(), first, strict=True):
            differ += (one.view(torch.int16) != expected.view(torch.int16)).sum()
    assert differ.item() == 0


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_a_long_sequence_take_little_memory_beside_the_tensors(causal):
    before = torch.cuda.memory_allocated()
    inputs = [torch.randn(1, 65536, 16, 128, dtype=torch.bfloat16, device="cuda").requires_grad_() for _ in range(3)]
    dout = torch.randn_like(inputs[0])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    out = flash_attn.flash_attn_func(*inputs, causal=causal)
    gradients = torch.autograd.grad(out, inputs, dout)
    torch.cuda.synchronize()
    tensors = sum(tensor.nbytes for tensor in (*inputs, out, dout, *gradients))
    assert torch.cuda.max_memory_allocated() - before <= 1.1 * tensors


def test_workspaces_come_from_torchs_allocator():
    # More splits than merge within a cluster.
    q, k = random(2, 1, 8, 64).cuda(), random(2, 32768, 2, 64).cuda()
    onepass.attention(q, k, k, num_splits=64)
    plan = onepass.plan(q, k, k, num_splits=64)
    out = torch.empty_like(q)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    onepass.attention(q, k, k, num_splits=64, out=out)
    assert plan.workspace_bytes > 0 and torch.cuda.max_memory_allocated() - before >= plan.workspace_bytes
    assert torch.cuda.memory_allocated() == before
