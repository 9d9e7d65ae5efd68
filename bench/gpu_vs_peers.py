#!/usr/bin/env python3
"""Time onepass on a GPU against other libraries, in one process, interleaved.

Writes bench/results/gpu_<name>.json, from which make_tables.py makes tables and plot.py pictures. The method is in
README.md. The file is written after every case, so that a run that is stopped keeps what it has.
"""

import argparse
import datetime
import json
import math
import os
import re
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import contenders
import machine
import timing
from accelerator import SCORES_AT_ONCE, CudaDevice, HostDevice
from cases import GPU_SUITES, Problem
from onepass_c import Forward, Library, Plan, find_library
from peers import DEFAULT_PEERS, PEERS, SUITE_PEERS, Peer, importable
from tensors import Inputs, make_inputs

ROOT = Path(__file__).resolve().parent.parent
BURST_S = 0.008
METHOD = ("onepass: plan and workspace made once, one onepass_plan_run is timed; peers: one call as a user writes it, "
          "output allocated within, FlashInfer planned beforehand")


class GpuLost(Exception):
    """The GPU answers with errors, so nothing after this can be measured."""


class OnepassCall:
    """One planned call of the C ABI, as [batch, heads, seqlen, head_dim]."""

    def __init__(self, library: Library, device, problem: Problem, inputs: Inputs):
        q, k, v = (t.transpose(1, 2) for t in inputs)
        self.device, self.out = device, torch.full_like(q, math.nan)
        self.forward = Forward(library, q, k, v, self.out, problem.causal, backend=device.backend)
        self.plan = Plan(self.forward)

    def __call__(self) -> torch.Tensor:
        self.forward.use_stream(self.device.stream)
        self.plan()
        return self.out.transpose(1, 2)


def host_seconds(call: Callable, device) -> float:
    """Median time until a call returns to its caller when the GPU is idle."""
    times = []
    for _ in range(5):
        device.synchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    device.synchronize()
    return statistics.median(times)


def reason_of(error: Exception, heard: list) -> str:
    """Why a peer refuses, in one line: torch says in warnings why none of its kernels takes a call."""
    lines = [f"{type(error).__name__}: {error}".splitlines()[0], *(str(w.message).splitlines()[0] for w in heard)]
    return " | ".join(dict.fromkeys(lines))


class Contender(NamedTuple):
    calls: list[Callable]  # one an input set; they own what they work on
    timed: list[Callable]  # the calls, or one graph of them all
    calls_per_timed: int
    scope: Callable
    facts: dict


class Bench:
    def __init__(self, device, library: Library, peers: dict[str, Peer], args: argparse.Namespace):
        self.device, self.library, self.peers = device, library, peers
        self.rounds, self.memory_order, self.graphs = args.rounds, args.memory_order, not args.no_graph
        self.deadline = timing.Deadline(args.budget)

    def peers_of(self, suite: str) -> dict[str, Peer]:
        def make_onepass(problem: Problem, inputs: Inputs) -> OnepassCall:
            return OnepassCall(self.library, self.device, problem, inputs)
        extra = {name: PEERS[name] for name in SUITE_PEERS.get(suite, ())}
        return {"onepass": Peer("torch", make_onepass)} | self.peers | extra

    def prepare(self, name: str, peer: Peer, problem: Problem, sets: list[Inputs],
                reference: contenders.Reference, graph: bool) -> Contender:
        """A contender's calls, checked, with what is measured once. graph: capture the calls, if that is possible."""
        with peer.scope():
            calls = [peer.make(problem, inputs) for inputs in sets]
            facts = reference.require(name, calls[-1]())
            facts["host_s"] = host_seconds(calls[0], self.device)
            facts["beyond_bytes"] = (calls[0].plan.workspace_bytes if name == "onepass" else
                                     self.device.beyond_bytes(calls[0], problem.bytes_out))
            if not graph:
                return Contender(calls, calls, 1, peer.scope, facts | {"graph": "not used"})
            try:
                return Contender(calls, [self.device.capture(calls)], len(calls), peer.scope, facts | {"graph": "used"})
            except Exception as error:  # timed as calls then; the tables say so
                return Contender(calls, calls, 1, peer.scope, facts | {"graph": f"failed: {reason_of(error, [])}"})

    def run_case(self, suite: str, problem: Problem) -> dict:
        begin = time.perf_counter()
        generator = torch.Generator(device=self.device.torch_device).manual_seed(0)
        sets = [make_inputs(problem, generator, self.memory_order)
                for _ in range(problem.num_input_sets(self.device.cache_bytes))]
        heads_at_once = max(1, SCORES_AT_ONCE // (problem.seqlen_q * problem.seqlen_k))
        reference = contenders.Reference(problem, sets[-1], self.device.exact_type, heads_at_once)
        # A decode call is shorter than the time that the host needs to queue it. Where onepass, the first to be
        # prepared, cannot be captured, nobody is: the others would have an advantage.
        graph = problem.is_decode and self.graphs
        ready: dict[str, Contender] = {}
        refused: dict[str, str] = {}
        for name, peer in self.peers_of(suite).items():
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                try:
                    ready[name] = self.prepare(name, peer, problem, sets, reference, graph)
                    if name == "onepass":
                        graph = ready[name].facts["graph"] == "used"
                except contenders.WrongResult as error:
                    refused[name] = str(error).splitlines()[0]
                except Exception as error:  # whatever a peer raises is its reason
                    refused[name] = reason_of(error, heard)
            self.require_gpu()
        del reference
        samples = timing.interleave({name: c.timed for name, c in ready.items()}, self.rounds, BURST_S, self.device,
                                    {name: c.scope for name, c in ready.items()}, self.deadline)
        self.require_gpu()
        result = {"suite": suite, "case": problem.text, "kind": problem.kind, "flops": problem.conventional_flops,
                  "bytes": problem.bytes_read + problem.bytes_out, "input_sets": len(sets), "results": {},
                  "refused": refused}
        if "onepass" in ready:
            result["kernel"] = kernel_name(ready["onepass"].calls[0].plan.explain())
        for name, contender in ready.items():
            summary = timing.summary([s / contender.calls_per_timed for s in samples[name]])
            rates = {"tflops": problem.conventional_flops / summary["median_s"] / 1e12,
                     "gbytes_per_s": result["bytes"] / summary["median_s"] / 1e9}
            result["results"][name] = summary | rates | contender.facts
        return result | {"wall_s": round(time.perf_counter() - begin, 3)}

    def require_gpu(self) -> None:
        try:
            self.device.synchronize()
        except Exception as error:
            raise GpuLost(str(error).splitlines()[0]) from error


def kernel_name(explanation: str) -> str:
    return re.search(r"^step 1 +([^:\s]+)", explanation, re.MULTILINE).group(1)


def progress(case: dict, said: set[tuple[str, str]]) -> None:
    """One line a case; a refusal is shown when it is met first."""
    unit, key = ("GB/s", "gbytes_per_s") if case["kind"] == "decode" else ("TFLOP/s", "tflops")
    shown = [f"{name} {r[key]:.0f} {unit} ±{100 * r['spread']:.1f}%" for name, r in case["results"].items()]
    print(f"{case['suite']:<8}{case['case']:<44}{case['wall_s']:6.2f} s  {'  '.join(shown)}", file=sys.stderr, flush=True)
    for refusal in set(case["refused"].items()) - said:
        said.add(refusal)
        print(f"{'':<8}{': '.join(refusal)}", file=sys.stderr, flush=True)


def write(out: Path, result: dict) -> None:
    """Whole or not at all, also when the run is stopped at that moment."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(out)


def name_nvrtc_of_torch() -> None:
    """Tells onepass of the run-time compiler that torch's own packages brought, unless ONEPASS_NVRTC is set."""
    found = sorted(Path(torch.__file__).resolve().parents[1].glob("nvidia/*/lib/libnvrtc.so.1[23]"))
    if found:
        os.environ.setdefault("ONEPASS_NVRTC", str(found[-1]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=[*GPU_SUITES, "all"], default="all")
    parser.add_argument("--only", default="", help="only cases whose text matches this regular expression; needs --out")
    parser.add_argument("--peers", default=",".join(DEFAULT_PEERS), help=f"some of {','.join(PEERS)}; '' for none")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--budget", type=float, help="seconds after which no case and no round starts")
    parser.add_argument("--memory-order", choices=["bshd", "bhsd"], default="bshd", help="of every tensor, for all alike")
    parser.add_argument("--no-graph", action="store_true", help="decode: time calls, not CUDA graphs of them")
    parser.add_argument("--device", type=int, default=0, help="index of the GPU")
    parser.add_argument("--library", type=Path, help="libonepass.so (default: that of build/release)")
    parser.add_argument("--commit", help="what the library was built from, where there is no git repository")
    parser.add_argument("--name", help="the result is bench/results/gpu_NAME.json (default: from the GPU's name)")
    parser.add_argument("--out", type=Path, help="write this file instead")
    parser.add_argument("--dry-run", action="store_true",
                        help="on the CPU, lengths divided by 64: shows that all steps work; needs --out")
    args = parser.parse_args()
    if (args.only or args.dry_run) and not args.out:
        parser.error("--only and --dry-run must not replace a complete result: name a file with --out")
    unknown = set(filter(None, args.peers.split(","))) - set(PEERS)
    if unknown:
        parser.error(f"--peers has {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return args


def select(suite: str, only: str, shrink: int) -> list[tuple[str, Problem]]:
    names = list(GPU_SUITES) if suite == "all" else [suite]
    return [(name, problem.shrunk(shrink)) for name in names for problem in GPU_SUITES[name]()
            if re.search(only, problem.text)]


def main() -> int:
    args = arguments()
    wanted = select(args.suite, args.only, 64 if args.dry_run else 1)
    if not wanted:
        raise SystemExit(f"bench: no case matches --only '{args.only}'.\n  Fix: see bench/cases.py for the cases.")
    device = HostDevice() if args.dry_run else CudaDevice(args.device)
    if not args.dry_run:
        name_nvrtc_of_torch()
    library = Library((args.library or find_library(ROOT)).resolve())
    peers, absent, versions = importable([name for name in args.peers.split(",") if name])
    facts = device.facts()
    name = args.name or re.sub(r"[^a-z0-9]+", "_", facts["name"].lower()).strip("_")
    out = args.out or ROOT / "bench" / "results" / f"gpu_{name}.json"

    result = {
        "gpu": facts,
        "versions": {"onepass": library.version(), "torch": torch.__version__, "python": sys.version.split()[0]}
        | device.versions() | versions,
        "commit": args.commit or machine.commit(ROOT),
        "date": datetime.date.today().isoformat(),
        "rounds": args.rounds,
        "memory_order": args.memory_order,
        "method": METHOD,
        "dry_run": args.dry_run,
        "absent": absent,
        "cut": [problem.text for _, problem in wanted],
        "failed": {},
        "cases": [],
    }
    said: set[tuple[str, str]] = set()
    bench = Bench(device, library, peers, args)
    with torch.inference_mode():
        result["peaks"] = device.peaks(args.rounds)
        print(json.dumps(result | {"cut": len(wanted)}, indent=2), file=sys.stderr, flush=True)
        for suite, problem in wanted:
            if bench.deadline.passed():
                break
            try:
                case = bench.run_case(suite, problem)
            except GpuLost as error:
                result["stopped"] = f"{problem.text}: {error}"
                break
            except Exception as error:  # one case must not cost the others
                traceback.print_exc()
                result["failed"][problem.text] = reason_of(error, [])
            else:
                result["cases"].append(case)
                progress(case, said)
            result["cut"].pop(0)
            write(out, result)
    return report(result, out)


def report(result: dict, out: Path) -> int:
    """Writes the result and says what is missing from it. 0: everything is there and right; 1: not so."""
    write(out, result)
    if "stopped" in result:
        print(f"bench: stopped at {result['stopped']}", file=sys.stderr)
    if result["cut"]:
        print(f"bench: {len(result['cut'])} cases were not run: {', '.join(result['cut'])}", file=sys.stderr)
    short = [case["case"] for case in result["cases"]
             if any(r["samples"] < result["rounds"] for r in case["results"].values())]
    if short:
        print(f"bench: fewer than {result['rounds']} rounds: {', '.join(short)}", file=sys.stderr)
    without = [case["case"] for case in result["cases"] if "onepass" not in case["results"]] + list(result["failed"])
    if without:
        print(f"bench: onepass has no result for {', '.join(without)}", file=sys.stderr)
    print(out)
    return 1 if without or "stopped" in result else 0


if __name__ == "__main__":
    sys.exit(main())
