#!/usr/bin/env python3
"""Time the calls of a serving step on a GPU with the Python package: append_kv, a mixed batch, a shared prefix.

Each is a CUDA graph of one call, replayed; microseconds are medians. Beside each stands what it replaces:

    append    the bytes that it moves, against a copy of as many
    mixed     one call for parts of prompts and decoding sequences, against one launch for all (num_splits=1) and
              against two calls of the caller's, one for each kind
    cascade   a prefix read once, against the same keys in every sequence's pages

32 query heads on 8 key heads, head_dim 128, bf16, pages of 16. Results are compared before anything is timed.
"""

import argparse
import statistics

import torch

import onepass

HEADS_Q, HEADS_K, HEAD_DIM, PAGE = 32, 8, 128, 16
DEVICE = "cuda"


def microseconds(call, repeats: int = 30) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 100)
    return statistics.median(times)


def noise(*shape):
    return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)


def ints(values):
    return torch.tensor(list(values), dtype=torch.int32, device=DEVICE)


def pages_for(lengths):
    """A pool of random keys and values, and a shuffled table of pages for each sequence."""
    columns = (max(lengths) + PAGE - 1) // PAGE
    table = torch.randperm(len(lengths) * columns, device=DEVICE).to(torch.int32).reshape(len(lengths), columns)
    shape = (table.numel(), PAGE, HEADS_K, HEAD_DIM)
    return noise(*shape), noise(*shape), table


def append(batch: int, rows: int, rotary: bool) -> None:
    k, v = noise(batch, rows, HEADS_K, HEAD_DIM), noise(batch, rows, HEADS_K, HEAD_DIM)
    q = noise(batch, rows, HEADS_Q, HEAD_DIM)
    held = [1000] * batch
    k_cache, v_cache, table = pages_for([n + rows for n in held])
    more = dict(q=q, q_out=torch.empty_like(q), rotary_cos=torch.rand(2000 + rows, 64, device=DEVICE),
                rotary_sin=torch.rand(2000 + rows, 64, device=DEVICE)) if rotary else {}
    lengths = ints(held)
    time = microseconds(lambda: onepass.append_kv(k, v, k_cache, v_cache, cache_seqlens=lengths, block_table=table,
                                                  **more))
    moved = 2 * 2 * (k.numel() + v.numel() + (q.numel() if rotary else 0))
    source = torch.empty(moved // 2, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    print(f"append   {batch:4} x {rows:5}{' rotary' if rotary else '':7} {time:8.1f} us {moved / time / 1e6:7.2f} TB/s"
          f"    copy of as many bytes {microseconds(lambda: target.copy_(source)):8.1f} us")


def mixed(num_long: int, rows: int, num_short: int, keys: int) -> None:
    lengths_q = [rows] * num_long + [1] * num_short
    lengths_k = [keys] * len(lengths_q)
    q = noise(sum(lengths_q), HEADS_Q, HEAD_DIM)
    k, v, table = pages_for(lengths_k)
    starts = [0]
    for n in lengths_q:
        starts.append(starts[-1] + n)
    used = ints(lengths_k)

    def call(first: int, last: int, **options):
        rows_of = slice(starts[first], starts[last])
        arguments = dict(block_table=table[first:last], seqused_k=used[first:last],
                         cu_seqlens_q=ints(s - starts[first] for s in starts[first:last + 1]),
                         max_seqlen_q=max(lengths_q[first:last]), max_seqlen_k=keys, **options)
        return lambda: onepass.attention_paged(q[rows_of], k, v, **arguments)

    together, one_launch = call(0, len(lengths_q)), call(0, len(lengths_q), num_splits=1)
    prompts, decoding = call(0, num_long), call(num_long, len(lengths_q))
    separate = torch.cat((prompts(), decoding()))
    torch.testing.assert_close(together(), separate, rtol=2e-2, atol=2e-2)
    plan = onepass.plan(q, k, v, block_table=table, seqused_k=used, cu_seqlens_q=ints(starts), max_seqlen_q=rows,
                        max_seqlen_k=keys, causal=True)

    def both():
        prompts()
        decoding()

    print(f"mixed    {num_long} x {rows} and {num_short} x 1 against {keys}: {microseconds(together):8.1f} us "
          f"({plan.implementation})    one launch {microseconds(one_launch):8.1f} us"
          f"    two calls {microseconds(both):8.1f} us")


def cascade(batch: int, prefix: int, own: int) -> None:
    q = noise(batch, 1, HEADS_Q, HEAD_DIM)
    pool_k, pool_v, table = pages_for([own] * batch)
    prefix_k, prefix_v, prefix_table = pages_for([prefix])
    k, v = torch.cat((pool_k, prefix_k)), torch.cat((pool_v, prefix_v))
    prefix_table = prefix_table[0] + pool_k.shape[0]
    whole_table = torch.cat((prefix_table.expand(batch, -1), table), dim=1).contiguous()
    lengths, whole_lengths = ints([own] * batch), ints([prefix + own] * batch)

    def shared():
        return onepass.attention_cascade(q, k, v, k, v, prefix_table=prefix_table, prefix_seqlen=ints_prefix,
                                         block_table=table, seqused_k=lengths, max_seqlen_k=own)

    def repeated():
        return onepass.attention_paged(q, k, v, block_table=whole_table, seqused_k=whole_lengths,
                                       max_seqlen_k=prefix + own)

    ints_prefix = ints([prefix])
    torch.testing.assert_close(shared(), repeated(), rtol=2e-2, atol=2e-2)
    print(f"cascade  {batch} sequences, {prefix} shared and {own} own: {microseconds(shared):8.1f} us"
          f"    without {microseconds(repeated):8.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("append", "mixed", "cascade"))
    only = parser.parse_args().only
    torch.manual_seed(0)
    if only in (None, "append"):
        for batch, rows in ((1, 1), (32, 1), (128, 1), (1, 512), (1, 8192)):
            for rotary in (False, True):
                append(batch, rows, rotary)
    if only in (None, "mixed"):
        for num_long, rows, num_short, keys in ((1, 512, 31, 8192), (1, 2048, 63, 4096), (4, 512, 124, 4096),
                                                (1, 512, 7, 32768), (1, 256, 15, 1024)):
            mixed(num_long, rows, num_short, keys)
    if only in (None, "cascade"):
        for batch, prefix, own in ((8, 4096, 256), (32, 8192, 256), (64, 32768, 512), (128, 2048, 128)):
            cascade(batch, prefix, own)


if __name__ == "__main__":
    main()
