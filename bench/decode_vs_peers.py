#!/usr/bin/env python3
"""Time decode on a GPU: onepass on dense and on paged keys against torch's cuDNN attention, in one process.

One query row for each of B sequences, 32 query heads on 8 key heads, head_dim 128, bf16. Every contender is a CUDA
graph of calls on as many inputs as exceed the caches (400 MiB of K and V, or one set where that is larger). All read
the same memory: the cuDNN calls once as [B, S, H, D] and once as [B, H, S, D], the paged ones through a table that
shuffles the pages of each sequence (pages of 5, of which the last is not full, a copy). Without a mask the order of keys does not matter, so all but the second cuDNN call
must give the same result; it is checked. Names that end in a type read a copy of K and V in it, with a factor for each
head; half the bytes for each key, so that "as fast" is half the time. Prints a line for each point and writes JSON.

--ragged times one batch of sequences of unequal lengths instead, and one of as many keys with equal lengths.
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
ALLOWED_STORED_ERROR = 4e-2  # of K and V rounded to 8 bits, of which 64 keys average little
UNUSUAL_PAGES = {"page5": 5, "page1": 1}  # only if asked for
STORED = {"f8e4m3": (torch.float8_e4m3fn, 1.0), "f8e5m2": (torch.float8_e5m2, 1.0), "i8": (torch.int8, 32.0)}
RAGGED_SEQUENCES, RAGGED_SHORTEST, RAGGED_LONGEST = 128, 128, 131072
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


def stored_as(name: str, t: torch.Tensor) -> torch.Tensor:
    """A copy in an 8-bit type, made in parts: what is between has more bytes."""
    dtype, steps = STORED[name]
    copy = torch.empty(t.shape, dtype=dtype, device=t.device)
    for source, target in zip(t.flatten(0, 1).split(1 << 17), copy.flatten(0, 1).split(1 << 17)):
        target.copy_((source * steps).round().clamp(-128, 127) if dtype == torch.int8 else source)
    return copy


class OnepassCall:
    """One planned call. page: 0 for dense keys; stored: an 8-bit type of STORED."""

    def __init__(self, library: Library, device: CudaDevice, q, k, v, page: int = 0, splits: int = 0, stored: str = "",
                 max_seqlen_k: int = -1, **more: torch.Tensor):
        self.device, self.out = device, torch.full_like(q, math.nan)
        if stored:
            k, v = (stored_as(stored, t) for t in (k, v))
            factor = torch.full((HEADS_K,), 1 / STORED[stored][1], device=q.device)
            more |= {"k_descale": factor, "v_descale": factor}
        if page:
            batch, context = k.shape[:2]
            pages, rest = math.ceil(context / page), context % page
            order = torch.rand(batch, pages, device=q.device).argsort(dim=1)
            if rest:  # the last page, which is not full, stays the last; the pool is a copy with room for it
                order = torch.cat([torch.rand(batch, pages - 1, device=q.device).argsort(dim=1),
                                   torch.full((batch, 1), pages - 1, device=q.device)], dim=1)
                k, v = (F.pad(t, (0, 0, 0, 0, 0, page - rest)) for t in (k, v))
            first = torch.arange(batch, device=q.device)[:, None] * pages
            more |= {"block_table": (first + order).to(torch.int32),
                     "seqused_k": torch.full((batch,), context, dtype=torch.int32, device=q.device)}
            k, v = (t.reshape(batch * pages, page, HEADS_K, HEAD_DIM) for t in (k, v))
        self.forward = Forward(library, q, k, v, self.out, False, backend=device.backend, num_splits=splits,
                               max_seqlen_k=max_seqlen_k, **more)
        self.plan = Plan(self.forward)

    def __call__(self) -> torch.Tensor:
        self.forward.use_stream(self.device.stream)
        self.plan()
        return self.out

    def facts(self) -> dict:
        explanation = self.plan.explain()
        splits = int(re.search(r"^splits +(\d+)", explanation, re.MULTILINE).group(1))
        k, v = self.forward.kept[1:3]
        return {"kernel": kernel_name(explanation), "splits": splits, "kv_bytes": k.nbytes + v.nbytes}


def cudnn_call(q, k, v) -> Callable:
    """q, k, v as [B, H, S, D]."""
    return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def contenders_of(args: argparse.Namespace, library: Library, device: CudaDevice) -> dict[str, tuple]:
    """Name -> (a function that makes a call of a set, the context of its calls, the error that is allowed)."""
    def onepass(page: int, splits: int = 0, stored: str = ""):
        return lambda q, k, v: OnepassCall(library, device, q, k, v, page, splits, stored)

    def cudnn_bshd(q, k, v):
        return cudnn_call(*(t.transpose(1, 2) for t in (q, k, v)))

    def cudnn_bhsd(q, k, v):  # the same memory in another order, so other keys
        batch, context = k.shape[:2]
        return cudnn_call(q.transpose(1, 2), *(t.reshape(batch, HEADS_K, context, HEAD_DIM) for t in (k, v)))

    found = {"cudnn_bshd": (cudnn_bshd, lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), ALLOWED_ERROR),
             "cudnn_bhsd": (cudnn_bhsd, lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), None)}
    layouts = {"dense": 0, "page64": 64, "page16": 16} | UNUSUAL_PAGES
    for name, page in layouts.items():
        found[name] = (onepass(page), nullcontext, ALLOWED_ERROR)
    usual = [*(name for name in found if name not in UNUSUAL_PAGES), "dense_f8e4m3", "page64_f8e4m3"]
    for name, page in layouts.items():
        for stored in STORED:
            found[f"{name}_{stored}"] = (onepass(page, 0, stored), nullcontext, ALLOWED_STORED_ERROR)
    for splits in filter(None, args.splits.split(",")):
        found[f"dense_s{splits}"] = (onepass(0, int(splits)), nullcontext, ALLOWED_ERROR)
        usual.append(f"dense_s{splits}")
    wanted = args.contenders.split(",") if args.contenders else usual
    if unknown := set(wanted) - set(found):
        raise SystemExit(f"bench: no contender is called {', '.join(sorted(unknown))}.\n  Allowed: {', '.join(found)}.")
    return {name: found[name] for name in found if name in wanted}


def run_point(batch: int, context: int, memory: Memory, found: dict, rounds: int, deadline: timing.Deadline) -> dict:
    device = memory.device
    size, begin = set_elements(batch, context), time.perf_counter()
    sets = [tuple(t[i * size:(i + 1) * size].view(batch, context, HEADS_K, HEAD_DIM) for t in (memory.k, memory.v))
            for i in range(num_sets(batch, context, device))]
    queries = [memory.query(batch) for _ in sets]
    timed, scopes, facts, refused, reference = {}, {}, {}, {}, None
    for name, (make, scope, allowed_error) in found.items():
        try:
            with scope():
                calls = [make(q, k, v) for q, (k, v) in zip(queries, sets)]
                out = calls[-1]().float()
                device.synchronize()
                facts[name] = {}
                if allowed_error and reference is None:
                    reference = out
                if allowed_error:
                    facts[name] = {"allowed_error": allowed_error,
                                   "relative_error": ((out - reference).norm() / reference.norm()).item()}
                if isinstance(calls[0], OnepassCall):
                    facts[name] |= calls[0].facts()
                timed[name], scopes[name] = [device.capture(calls)], scope
        except Exception as error:  # whatever a contender raises is its reason
            refused[name] = reason_of(error, [])
    samples = timing.interleave(timed, rounds, BURST_S, device, scopes, deadline)
    result = {"batch": batch, "context": context, "input_sets": len(sets), "kv_bytes": 4 * size, "results": {},
              "refused": refused}
    for name in timed:
        summary = timing.summary([s / len(sets) for s in samples[name]])
        result["results"][name] = (summary | facts[name]
                                   | {"tbytes_per_s": facts[name].get("kv_bytes", result["kv_bytes"])
                                      / summary["median_s"] / 1e12})
    return result | {"wall_s": round(time.perf_counter() - begin, 2)}


def run_ragged(library: Library, device: CudaDevice, rounds: int, shrink: int) -> dict:
    """A batch of log-uniform lengths, packed and paged, and dense batches of as many keys in sequences of one length.
    The plan knows the longest length; lengths are in device memory. Every layout reads the same K and V."""
    generator = torch.Generator().manual_seed(0)
    shortest, longest = RAGGED_SHORTEST // shrink, RAGGED_LONGEST // shrink
    draws = torch.rand(RAGGED_SEQUENCES, generator=generator, dtype=torch.float64)
    page = 64
    lengths = (shortest * (longest / shortest) ** draws / page).ceil().to(torch.int64) * page
    mean = int(lengths.sum()) // RAGGED_SEQUENCES // page * page
    equal = RAGGED_SEQUENCES * mean
    memory = Memory(device, int(lengths.sum()) * HEADS_K * HEAD_DIM)
    rows = tuple(t.view(-1, HEADS_K, HEAD_DIM) for t in (memory.k, memory.v))
    q, on = memory.query(RAGGED_SEQUENCES), {"device": device.torch_device, "dtype": torch.int32}
    used, ends = lengths.to(**on), lengths.cumsum(0)
    pages = lengths // page
    first, table = (ends - lengths) // page, torch.full((RAGGED_SEQUENCES, longest // page + 1), -1, dtype=torch.int32)
    for b, count in enumerate(pages.tolist()):
        table[b, :count] = torch.arange(count) + first[b]
    pool = tuple(t.view(-1, page, HEADS_K, HEAD_DIM) for t in rows)
    packed = {"cu_seqlens_k": torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(**on), "max_seqlen_k": longest + page}
    paged = {"block_table": table.to(device.torch_device), "seqused_k": used}
    uniform = tuple(t[:equal].view(RAGGED_SEQUENCES, mean, HEADS_K, HEAD_DIM) for t in rows)
    calls = {"uniform": OnepassCall(library, device, q, *uniform),
             "uniform_page64": OnepassCall(library, device, q, *uniform, page=page),
             "ragged_packed": OnepassCall(library, device, q, *rows, **packed),
             "ragged_page64": OnepassCall(library, device, q, *pool, **paged)}
    out = {name: call().float() for name, call in calls.items()}
    device.synchronize()
    samples = timing.interleave({name: [device.capture([call])] for name, call in calls.items()}, rounds, BURST_S, device)
    result = {"lengths": lengths.tolist(), "uniform_length": mean, "results": {}}
    for name, call in calls.items():
        summary, facts = timing.summary(samples[name]), call.facts()
        facts["kv_bytes"] = 4 * HEADS_K * HEAD_DIM * (equal if name.startswith("uniform") else int(lengths.sum()))
        other = out["uniform" if name.startswith("uniform") else "ragged_packed"]
        facts |= {"allowed_error": ALLOWED_ERROR, "relative_error": ((out[name] - other).norm() / other.norm()).item()}
        result["results"][name] = summary | facts | {"tbytes_per_s": facts["kv_bytes"] / summary["median_s"] / 1e12}
    rates = {name: r["tbytes_per_s"] for name, r in result["results"].items()}
    return result | {"ragged_over_uniform": {"packed": rates["ragged_packed"] / rates["uniform"],
                                             "page64": rates["ragged_page64"] / rates["uniform_page64"]}}


def wrong(point: dict) -> list[str]:
    """A NaN is wrong, too."""
    return [name for name, r in point["results"].items()
            if "relative_error" in r and not r["relative_error"] <= r["allowed_error"]]


def times_of(point: dict) -> str:
    return "  ".join(f"{name} {1e6 * r['median_s']:.1f} us {r['tbytes_per_s']:.2f}"
                     + (f" s{r['splits']}" if "splits" in r else "") for name, r in point["results"].items())


def line_of(point: dict) -> str:
    return f"{point['context']:>7} B {point['batch']:<4}" + times_of(point)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only points whose CONTEXTxBATCH matches this regular expression")
    parser.add_argument("--contenders", default="", help="some of cudnn_bshd,cudnn_bhsd,dense,page64,page16,page5,page1 "
                        "and, with _f8e4m3, _f8e5m2 or _i8 at the end, all but the first two on K and V of 8 bits; pages of "
                        "5 and 1 and most of 8 bits only if named")
    parser.add_argument("--ragged", action="store_true", help="a batch of unequal lengths instead of the points")
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
    facts = {"gpu": device.facts(),
             "versions": {"onepass": library.version(), "torch": torch.__version__} | device.versions(),
             "commit": args.commit or machine.commit(ROOT), "date": datetime.date.today().isoformat(),
             "rounds": args.rounds, "method": METHOD}
    if args.ragged:
        with torch.inference_mode():
            ragged = run_ragged(library, device, args.rounds, shrink)
        print(times_of(ragged), ragged["ragged_over_uniform"], file=sys.stderr)
        args.out.write_text(json.dumps(facts | {"ragged": ragged}, indent=1) + "\n")
        for name in wrong(ragged):
            print(f"bench: {name} is wrong", file=sys.stderr)
        print(args.out)
        return 1 if wrong(ragged) else 0
    memory = Memory(device, max(set_elements(*point) * num_sets(*point, device) for point in points))
    result = facts | {"points": []}
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
