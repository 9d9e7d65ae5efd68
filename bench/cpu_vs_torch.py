#!/usr/bin/env python3
"""Time onepass on the CPU against torch's scaled_dot_product_attention, in one process, interleaved.

Writes bench/results/cpu_<name>.json, from which make_tables.py makes the tables. The method is in README.md.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import torch

import contenders
import cpu_run
import machine
import peaks
import timing
from cases import Problem, decode_problems, memory_problems, prefill_problems
from onepass_c import Library
from tensors import make_inputs

ROOT = Path(__file__).resolve().parent.parent


def make_contenders(library: Library, problem: Problem, threads: int) -> tuple[dict[str, list], list]:
    """name -> one call per input set; and the input sets."""
    generator = torch.Generator().manual_seed(0)
    sets = [make_inputs(problem, generator)
            for _ in range(problem.num_input_sets(machine.last_level_cache_bytes()))]
    calls = {
        "onepass": [contenders.onepass_bshd(library, problem, s, threads) for s in sets],
        "onepass_bhsd": [contenders.onepass_bhsd(library, problem, s, threads) for s in sets],
        "torch": [contenders.torch_sdpa(problem, s) for s in sets],
        "materialised": [contenders.materialised(problem, s) for s in sets],
    }
    if problem.is_decode:
        calls["torch_grouped"] = [contenders.torch_grouped(problem, s) for s in sets]
    return calls, sets


def run_case(library: Library, problem: Problem, threads: int, rounds: int, seconds_per_sample: float) -> dict:
    calls, sets = make_contenders(library, problem, threads)
    plan = contenders.plan_text(library, problem, sets[0], threads)
    reference = contenders.Reference(problem, sets[-1])
    checks = {name: reference.require(name, calls[name][-1]()) for name in calls}
    del reference
    samples = timing.interleave(calls, rounds, seconds_per_sample)
    return {
        "case": problem.text,
        "kind": problem.kind,
        "flops": problem.flops,
        "bytes": problem.bytes_read + problem.bytes_out,
        "input_sets": len(sets),
        "kernel": re.search(r"^step 1 +([^:\s]+)", plan, re.MULTILINE).group(1),
        "results": {name: timing.summary(s) | checks[name] for name, s in samples.items()},
    }


def run_memory(library: Path, problem: Problem, threads: int, repeats: int) -> dict:
    results = {}
    for name in ("onepass", "torch", "materialised"):
        command = [sys.executable, str(ROOT / "bench" / "memory.py"), name, str(library), str(threads),
                   problem.dtype_name, *map(str, (problem.batch, problem.num_heads_q, problem.seqlen_q,
                                                  problem.head_dim))]
        lines = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                 for _ in range(repeats)]
        results[name] = {"median_s": sorted(line["seconds"] for line in lines)[len(lines) // 2],
                         "beyond_bytes": max(line["beyond_bytes"] for line in lines)}
    return {"case": problem.text, "inputs_and_outputs_bytes": lines[0]["inputs_and_outputs_bytes"], "results": results}


def progress(problem: Problem, case: dict) -> None:
    times = {name: r["median_s"] * 1e3 for name, r in case["results"].items()}
    shown = "  ".join(f"{name} {ms:.3f} ms" for name, ms in times.items())
    print(f"{problem.text:<52} x{times['torch'] / times['onepass']:.2f}  {shown}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cpu_run.add_arguments(parser, "cpu", rounds=11)
    parser.add_argument("--only", default="", help="only cases whose text matches this regular expression; needs --out")
    args = parser.parse_args()

    if args.only and not args.out:
        parser.error("--only leaves cases out, so it must not replace a complete result: name a file with --out")

    library, result, out = cpu_run.begin(args, "cpu")
    result["peaks"] = peaks.measure(args.rounds)
    print(json.dumps(result, indent=2), file=sys.stderr)

    result["cases"], result["memory"] = [], []
    with torch.inference_mode():
        for problem in prefill_problems() + decode_problems():
            if re.search(args.only, problem.text):
                # Long cases need fewer rounds: one call averages over more than a second of the machine.
                rounds = args.rounds if problem.flops < 30e9 else max(5, args.rounds // 2)
                result["cases"].append(run_case(library, problem, args.threads, rounds, 0.05))
                progress(problem, result["cases"][-1])
    for problem in memory_problems():
        if re.search(args.only, problem.text):
            result["memory"].append(run_memory(args.library, problem, args.threads, 3))
            print(json.dumps(result["memory"][-1]), file=sys.stderr, flush=True)
    if not result["cases"] + result["memory"]:
        raise SystemExit(f"bench: no case matches --only '{args.only}'.\n  Fix: see bench/cases.py for the cases.")

    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    main()
