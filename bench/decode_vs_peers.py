#!/usr/bin/env python3
"""Time decode on a GPU: onepass on dense and on paged keys against torch's cuDNN attention, in one process.

One query row for each of B sequences, 32 query heads on 8 key heads, head_dim 128, bf16. Every contender is a CUDA
graph of calls on as many inputs as exceed the caches (400 MiB of K and V, or one set where that is larger). All read
the same memory: the cuDNN calls once as [B, S, H, D] and once as [B, H, S, D], the paged ones through a table that
shuffles the pages of each sequence. Without a mask the order of keys does not matter, so all but the second cuDNN call
must give the same result; it is checked. Prints a line for each point and writes JSON.
"""

import argparse
import datetime
import json
import math
import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import machine
import timing
from accelerator import CudaDevice, HostDevice
from gpu_vs_peers import kernel_name, name_nvrtc_of_torch, reason_of
from onepass_c import Forward, Library, Plan, find_library

ROOT = Path(__file__).resolve().parent.parent
HEADS_Q, HEADS_K, HEAD_DIM = 32, 8, 128
CONTEXTS, BATCHES = (1024, 4096, 8192, 32768, 131072), (1, 8, 32, 128)
COLD_BYTES = 400 << 20  # of K and V that a graph walks at least
ALLOWED_ERROR = 1e-2  # relative, Frobenius norm; docs/spec.md
BURST_S, PAUSE_S = 0.006, 0.005
METHOD = "CUDA graphs of calls on rotated inputs; onepass planned beforehand, cuDNN as torch's scaled_dot_product_attention"


class Memory:
    """K and V of all points in two buffers that are filled once."""

    def __init__(self, device: CudaDevice, elements: int):
        generator = torch.Generator(device=device.torch_device).manual_seed(0)
        self.k, self.v = (torch.empty(elements, dtype=torch.bfloat16, device=device.torch_device) for _ in range(2))
        part = 1 << 30
        for buffer in (self.k, self.v):
            for first in range(0, elements, part):
                buffer[first:first + part].normal_(0.5, 1.0, generator=generator)
        self.generator, self.device = generator, device

    def query(self, batch: int) -> torch.Tensor:
        q = torch.empty(batch, 1, HEADS_Q, HEAD_DIM, dtype=torch.bfloat16, device=self.device.torch_device)
        return q.normal_(0.5, 1.0, generator=self.generator)


def set_elements(batch: int, context: int) -> int:
    return batch * context * HEADS_K * HEAD_DIM


def num_sets(batch: int, context: int, device: CudaDevice) -> int:
    """As many as exceed the caches, whatever the device has."""
    cold = min(COLD_BYTES, 8 * device.cache_bytes)
    return max(1, math.ceil(cold / (4 * set_elements(batch, context))))


class OnepassCall:
    """One planned call; page: 0 for dense keys."""

    def __init__(self, library: Library, device: CudaDevice, q, k, v, page: int, splits: int):
        self.device, self.out = device, torch.full_like(q, math.nan)
        more = {}
        if page:
            batch, context = k.shape[:2]
            pages = context // page
            order = torch.rand(batch, pages, device=q.device).argsort(dim=1)
            first = torch.arange(batch, device=q.device)[:, None] * pages
            more = {"block_table": (first + order).to(torch.int32),
                    "seqused_k": torch.full((batch,), context, dtype=torch.int32, device=q.device)}
            k, v = (t.reshape(batch * pages, page, HEADS_K, HEAD_DIM) for t in (k, v))
        self.forward = Forward(library, q, k, v, self.out, False, backend=device.backend, num_splits=splits, **more)
        self.plan = Plan(self.forward)

    def __call__(self) -> torch.Tensor:
        self.forward.use_stream(self.device.stream)
        self.plan()
        return self.out


def cudnn_call(q, k, v) -> Callable:
    """q, k, v as [B, H, S, D]."""
    return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def contenders_of(args: argparse.Namespace, library: Library, device: CudaDevice) -> dict[str, tuple]:
    """Name -> (a function that makes a call of a set, the context of its calls, whether its result is checked)."""
    def onepass(page: int, splits: int = 0):
        return lambda q, k, v: OnepassCall(library, device, q, k, v, page, splits)

    def cudnn_bshd(q, k, v):
        return cudnn_call(*(t.transpose(1, 2) for t in (q, k, v)))

    def cudnn_bhsd(q, k, v):  # the same memory in another order, so other keys
        batch, context = k.shape[:2]
        return cudnn_call(q.transpose(1, 2), *(t.reshape(batch, HEADS_K, context, HEAD_DIM) for t in (k, v)))

    found = {"cudnn_bshd": (cudnn_bshd, lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), True),
             "cudnn_bhsd": (cudnn_bhsd, lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), False),
             "dense": (onepass(0), nullcontext, True),
             "page64": (onepass(64), nullcontext, True),
             "page16": (onepass(16), nullcontext, True)}
    for splits in filter(None, args.splits.split(",")):
        found[f"dense_s{splits}"] = (onepass(0, int(splits)), nullcontext, True)
    wanted = args.contenders.split(",") if args.contenders else list(found)
    return {name: found[name] for name in found if name in wanted or name.startswith("dense_s")}


def run_point(batch: int, context: int, memory: Memory, found: dict, rounds: int, deadline: timing.Deadline) -> dict:
    device = memory.device
    size, begin = set_elements(batch, context), time.perf_counter()
    sets = [tuple(t[i * size:(i + 1) * size].view(batch, context, HEADS_K, HEAD_DIM) for t in (memory.k, memory.v))
            for i in range(num_sets(batch, context, device))]
    queries = [memory.query(batch) for _ in sets]
    timed, scopes, facts, refused, reference = {}, {}, {}, {}, None
    for name, (make, scope, checked) in found.items():
        try:
            with scope():
                calls = [make(q, k, v) for q, (k, v) in zip(queries, sets)]
                out = calls[-1]().float()
                device.synchronize()
                facts[name] = {}
                if checked and reference is None:
                    reference = out
                if checked:
                    facts[name]["relative_error"] = ((out - reference).norm() / reference.norm()).item()
                if isinstance(calls[0], OnepassCall):
                    explanation = calls[0].plan.explain()
                    splits = int(re.search(r"^splits +(\d+)", explanation, re.MULTILINE).group(1))
                    facts[name] |= {"kernel": kernel_name(explanation), "splits": splits}
                timed[name], scopes[name] = [device.capture(calls)], scope
        except Exception as error:  # whatever a contender raises is its reason
            refused[name] = reason_of(error, [])
    samples = timing.interleave(timed, rounds, BURST_S, device, scopes, deadline)
    result = {"batch": batch, "context": context, "input_sets": len(sets), "kv_bytes": 4 * size, "results": {},
              "refused": refused}
    for name in timed:
        summary = timing.summary([s / len(sets) for s in samples[name]])
        result["results"][name] = (summary | facts[name]
                                   | {"tbytes_per_s": result["kv_bytes"] / summary["median_s"] / 1e12})
    return result | {"wall_s": round(time.perf_counter() - begin, 2)}


def wrong(point: dict) -> list[str]:
    """A NaN is wrong, too."""
    return [name for name, r in point["results"].items() if not r.get("relative_error", 0.0) <= ALLOWED_ERROR]


def line_of(point: dict) -> str:
    shown = [f"{name} {1e6 * r['median_s']:.1f} us {r['tbytes_per_s']:.2f}"
             + (f" s{r['splits']}" if "splits" in r else "") for name, r in point["results"].items()]
    return f"{point['context']:>7} B {point['batch']:<4}" + "  ".join(shown)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only points whose CONTEXTxBATCH matches this regular expression")
    parser.add_argument("--contenders", default="", help="some of cudnn_bshd,cudnn_bhsd,dense,page64,page16")
    parser.add_argument("--splits", default="", help="numbers of splits to time besides, such as 1,2,4,8")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, help="seconds after which no point and no round starts")
    parser.add_argument("--device", type=int, default=0, help="index of the GPU")
    parser.add_argument("--library", type=Path, help="libonepass.so (default: that of build/release)")
    parser.add_argument("--commit", help="what the library was built from, where there is no git repository")
    parser.add_argument("--out", type=Path, required=True, help="the result, JSON")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, contexts / 16: shows that all steps work")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    deadline = timing.Deadline(args.budget)
    shrink = 16 if args.dry_run else 1
    points = [(b, s // shrink) for s in CONTEXTS for b in BATCHES if re.search(args.only, f"{s}x{b}")]
    if not points:
        raise SystemExit(f"bench: no point matches --only '{args.only}'.\n  Allowed: CONTEXTxBATCH, such as 4096x8.")
    device = HostDevice() if args.dry_run else CudaDevice(args.device)
    device.pause_s = PAUSE_S
    if not args.dry_run:
        name_nvrtc_of_torch()
    library = Library((args.library or find_library(ROOT)).resolve())
    found = contenders_of(args, library, device)
    memory = Memory(device, max(set_elements(*point) * num_sets(*point, device) for point in points))
    result = {"gpu": device.facts(),
              "versions": {"onepass": library.version(), "torch": torch.__version__} | device.versions(),
              "commit": args.commit or machine.commit(ROOT), "date": datetime.date.today().isoformat(),
              "rounds": args.rounds, "method": METHOD, "points": []}
    failures = []
    with torch.inference_mode():
        for batch, context in points:
            if deadline.passed():
                break
            point = run_point(batch, context, memory, found, args.rounds, deadline)
            result["points"].append(point)
            failures += [f"{context}x{batch} {name} is wrong" for name in wrong(point)]
            failures += [f"{context}x{batch} {name}: {why}" for name, why in point["refused"].items()]
            print(line_of(point), file=sys.stderr, flush=True)
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    for failure in failures:
        print(f"bench: {failure}", file=sys.stderr)
    if len(result["points"]) < len(points):
        print(f"bench: {len(points) - len(result['points'])} points were not run", file=sys.stderr)
    print(args.out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
