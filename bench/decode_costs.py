#!/usr/bin/env python3
"""Time decode on a GPU where the planner may choose badly, and what options cost, with the Python package.

    sweep       a batch of 1 to 256 sequences of 4096 keys, for six pairs of query and key heads. Reports every place
                where more sequences take less time (by more than a tenth), and where the rate of reading falls so
    latent      576/512 dimensions, V a prefix of K, 128 query heads on one key head, 64 sequences of 8192 keys
    invariant   batch_invariant against the default

Each is a CUDA graph of calls on as many inputs as exceed the caches, replayed; microseconds are medians. bf16.
--dry-run takes small sizes on the CPU: shows that all steps work.
"""

import argparse
import statistics
import sys
import time

import torch

import onepass
from onepass import torch_ops

HEADS = ((8, 8), (32, 8), (40, 8), (28, 4), (64, 8), (71, 1))
HEAD_DIM, CONTEXT = 128, 4096
# Those beside a multiple of the multiprocessors of an H200 (132), for 1, 4 and 8 key heads, among others.
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 34, 48, 49, 50, 64, 66, 67, 99, 100, 128, 132, 133, 192, 256)
COLD_BYTES = 200 << 20  # of K and V that a graph walks at least
BURST_MS, ROUNDS = 2.0, 5
LESS = 0.9  # of a time or a rate: it has fallen


class Gpu:
    device = "cuda"

    def microseconds(self, calls) -> float:
        """Of one call; the calls follow each other in a graph."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            calls[0]()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        first = self.milliseconds(graph, 1)
        replays = max(1, round(BURST_MS / max(first, 1e-3)))
        return 1e3 * statistics.median(self.milliseconds(graph, replays) for _ in range(ROUNDS)) / replays / len(calls)

    @staticmethod
    def milliseconds(graph, replays: int) -> float:
        time.sleep(0.003)  # so that the power limit lowers no clock
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


class Cpu:
    device = "cpu"

    def microseconds(self, calls) -> float:
        begin = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - begin) * 1e6 / len(calls)


class Inputs:
    """One buffer of random keys and values that every point takes its sets from."""

    def __init__(self, device: str, elements: int, cold_bytes: int):
        self.cold_bytes = cold_bytes
        self.memory = torch.empty(elements, dtype=torch.bfloat16, device=device)
        for part in self.memory.split(1 << 28):
            part.normal_()

    def sets(self, *shape: int, tensors: int) -> list[list[torch.Tensor]]:
        """Sets of so many tensors each, as many as exceed the caches, none of which overlap."""
        elements = torch.Size(shape).numel()
        wanted = -(-self.cold_bytes // (2 * elements * tensors))
        count = max(1, min(wanted, self.memory.numel() // (elements * tensors)))
        return [[self.memory[(i * tensors + t) * elements:][:elements].view(shape) for t in range(tensors)]
                for i in range(count)]

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=self.memory.device)


def pages(inputs: Inputs, batch: int, context: int, page: int) -> dict:
    count = context // page
    table = torch.randperm(batch * count, device=inputs.memory.device).to(torch.int32).view(batch, count)
    return dict(block_table=table, seqused_k=torch.full((batch,), context, dtype=torch.int32, device=table.device),
                max_seqlen_k=context)


def sweep(clock, inputs: Inputs, batches, context: int) -> int:
    failures = 0
    for heads_q, heads_k in HEADS:
        points = []
        for batch in batches:
            q = inputs.random(batch, 1, heads_q, HEAD_DIM)
            sets = inputs.sets(batch, context, heads_k, HEAD_DIM, tensors=2)
            us = clock.microseconds([lambda k=k, v=v: onepass.attention(q, k, v) for k, v in sets])
            plan = onepass.plan(q, *sets[0])
            points.append((batch, us, 4 * sets[0][0].numel() / us / 1e6, f"{plan.implementation} s{plan.num_splits}"))
        print(f"{heads_q}/{heads_k}: " + "  ".join(f"{b}: {us:.1f} ({rate:.2f})" for b, us, rate, _ in points))
        for i, (batch, us, rate, choice) in enumerate(points):
            slowest = max(points[:i + 1], key=lambda point: point[1])
            if us < LESS * slowest[1]:
                failures += 1
                print(f"  CLIFF: {batch} sequences ({choice}) take {us:.1f} us, "
                      f"{slowest[0]} ({slowest[3]}) {slowest[1]:.1f}")
            if i > 0 and rate < LESS * points[i - 1][2]:
                print(f"  a wave: {batch} ({choice}) reads {rate:.2f} TB/s, {points[i - 1][0]} ({points[i - 1][3]}) "
                      f"{points[i - 1][2]:.2f}")
    print(f"sweep: {failures} cliffs")
    return failures


def latent(clock, inputs: Inputs, batch: int, context: int) -> None:
    heads, dim, dim_v, page = 128, 576, 512, 64
    for rows in (1, 2):
        q = inputs.random(batch, rows, heads, dim)
        for place in ("dense", "pages of 64"):
            dense = place == "dense"
            sets = inputs.sets(*((batch, context) if dense else (batch * context // page, page)), 1, dim, tensors=1)
            if dense:
                calls = [lambda k=k: onepass.attention(q, k, k[..., :dim_v], causal=True) for k, in sets]
                plan = onepass.plan(q, sets[0][0], sets[0][0][..., :dim_v], causal=True)
            else:
                more = pages(inputs, batch, context, page)
                calls = [lambda k=k: onepass.attention_paged(q, k, k[..., :dim_v], **more) for k, in sets]
                plan = onepass.plan(q, sets[0][0], sets[0][0][..., :dim_v], causal=True, **more)
            us = clock.microseconds(calls)
            print(f"latent    {batch} x {rows} rows, {place:11} {us:8.1f} us "
                  f"{2 * batch * rows * heads * context * (dim + dim_v) / us / 1e6:6.1f} TFLOP/s "
                  f"{2 * sets[0][0].numel() / us / 1e6:5.2f} TB/s  {plan.implementation} s{plan.num_splits}")


def invariant(clock, inputs: Inputs, scale: int) -> None:
    def compare(what: str, call, plan) -> None:
        times, choices = [], []
        for option in (False, True):
            times.append(clock.microseconds([lambda one=one: one(batch_invariant=option) for one in call]))
            made = plan(batch_invariant=option)
            choices.append(f"{made.implementation} s{made.num_splits}")
        print(f"invariant {what:42} {times[1]:8.1f} us, default {times[0]:8.1f}: {times[1] / times[0]:5.2f} x"
              f"  ({choices[1]}, {choices[0]})")

    for batch, context in ((1, 1024), (1, 8192), (1, 131072), (8, 4096), (8, 32768), (17, 8192), (32, 4096),
                           (128, 4096)):
        context //= scale
        q = inputs.random(batch, 1, 32, HEAD_DIM)
        sets = inputs.sets(batch, context, 8, HEAD_DIM, tensors=2)
        compare(f"decode, {batch} x {context}",
                [lambda k=k, v=v, **o: onepass.attention(q, k, v, **o) for k, v in sets],
                lambda **o: onepass.plan(q, *sets[0], **o))
        if batch in (8, 32):
            paged = [[t.view(-1, 16, 8, HEAD_DIM) for t in pair] for pair in sets]
            more = pages(inputs, batch, context, 16)
            compare(f"decode, {batch} x {context} in pages of 16",
                    [lambda k=k, v=v, **o: onepass.attention_paged(q, k, v, **more, **o) for k, v in paged],
                    lambda **o: onepass.plan(q, *paged[0], causal=True, **more, **o))
    for batch, length, causal in ((1, 512, True), (1, 4096, True), (4, 4096, True), (4, 4096, False)):
        length //= scale
        q = inputs.random(batch, length, 32, HEAD_DIM)
        sets = inputs.sets(batch, length, 8, HEAD_DIM, tensors=2)[:4]
        compare(f"prefill, {batch} x {length}{', causal' if causal else ''}",
                [lambda k=k, v=v, **o: onepass.attention(q, k, v, causal=causal, **o) for k, v in sets],
                lambda **o: onepass.plan(q, *sets[0], causal=causal, **o))
        gradients_cost(clock, q, sets[0], causal)


def gradients_cost(clock, q, keys, causal: bool) -> None:
    """Forward and backward through the operator."""
    times = []
    inputs = [t.detach().requires_grad_() for t in (q, *keys)]
    dout = torch.randn_like(q)
    for option in (False, True):
        def step():
            out = torch_ops.forward(*inputs, causal="bottom-right" if causal else "none", batch_invariant=option)
            return torch.autograd.grad(out, inputs, dout)
        times.append(clock.microseconds([step]))
    what = f"with gradients, {q.shape[0]} x {q.shape[1]}{', causal' if causal else ''}"
    print(f"invariant {what:42} {times[1]:8.1f} us, default {times[0]:8.1f}: {times[1] / times[0]:5.2f} x")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("sweep", "latent", "invariant"))
    parser.add_argument("--dry-run", action="store_true", help="small sizes on the CPU")
    args = parser.parse_args()
    torch.manual_seed(0)
    scale = 64 if args.dry_run else 1
    clock = Cpu() if args.dry_run else Gpu()
    batches = BATCHES[:6] if args.dry_run else BATCHES
    # K and V of the largest point, 8 key heads.
    inputs = Inputs(clock.device, 2 * max(BATCHES) * CONTEXT * 8 * HEAD_DIM // scale, COLD_BYTES // scale)
    failures = 0
    with torch.no_grad():
        if args.only in (None, "sweep"):
            failures = sweep(clock, inputs, batches, CONTEXT // scale)
        if args.only in (None, "latent"):
            latent(clock, inputs, 64 if scale == 1 else 2, 8192 // scale)
    if args.only in (None, "invariant"):
        invariant(clock, inputs, scale)
    return 1 if failures and not args.dry_run else 0


if __name__ == "__main__":
    sys.exit(main())
