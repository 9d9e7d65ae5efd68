#!/usr/bin/env python3
"""Time onepass's backward on the CPU against torch's scaled_dot_product_attention, in one process, interleaved.

Writes bench/results/backward_cpu_<name>.json, from which make_tables.py makes the tables. The method is that of
cpu_vs_torch.py, the check that of backward_vs_peers.py. Each is timed twice: backward alone, from what its own forward
call kept, and both. FLOPs of backward are 2.5 times those of forward.
"""

import argparse
import itertools
import json
import re
import sys

import torch
from torch.nn.attention import SDPBackend

import cpu_run
import timing
from accelerator import HostDevice
from backward_vs_peers import OnepassCall, exact_gradients, torch_call, worst_error
from cases import Problem
from contenders import RELATIVE_ERROR, WrongResult
from onepass_c import Library
from tensors import make_inputs


def problems() -> list[Problem]:
    shapes = ((4, 16, 16, 512), (1, 16, 16, 1024), (1, 8, 8, 2048), (1, 4, 4, 4096))
    square = [Problem(dtype, b, hq, hk, s, s, d, causal) for dtype, d, (b, hq, hk, s), causal in
              itertools.product(("f32", "bf16"), (64, 128), shapes, (False, True))]
    return square + [Problem(dtype, 1, 16, 4, 1024, 1024, 128, causal) for dtype, causal in
                     itertools.product(("f32", "bf16"), (False, True))]


def run_case(library: Library, problem: Problem, threads: int, rounds: int) -> dict:
    generator = torch.Generator().manual_seed(0)
    *inputs, dout = (*make_inputs(problem, generator, "bshd"), make_inputs(problem, generator, "bshd")[0])
    # Without their mean: dP and delta would share one that is lost in their difference.
    qkv = tuple((t.transpose(1, 2) - 0.5).detach().requires_grad_() for t in inputs)
    dout = dout.transpose(1, 2) - 0.5
    ours = OnepassCall(library, HostDevice(), problem, qkv, dout, threads)
    torchs = torch_call(SDPBackend.FLASH_ATTENTION)
    calls = {"onepass": ours, "torch": torchs(problem, qkv, dout),
             "onepass_both": ours.forward_and_backward, "torch_both": lambda: torchs(problem, qkv, dout)()}
    want = exact_gradients(problem, qkv, dout, torch.float64)
    facts = {}
    for name, call in calls.items():
        error = worst_error(call(), want)
        if not error <= RELATIVE_ERROR[problem.dtype_name]:
            raise WrongResult(f"bench: {name} is wrong on {problem.text}: a gradient is off by {error:.2e} of its norm.\n"
                              f"  Allowed: {RELATIVE_ERROR[problem.dtype_name]:.0e}.\n"
                              f"  Fix: look with onepass check bwd_{problem.text}")
        facts[name] = {"error": error}
    first = [t.clone() for t in ours()]
    facts["onepass"] |= {"workspace_bytes": ours.plan.workspace_bytes,
                         "same_bits": all(all(map(torch.equal, ours(), first)) for _ in range(3))}
    samples = timing.interleave({name: [call] for name, call in calls.items()}, rounds, 0.05)
    # A backward pass is 2.5 forward passes.
    return {"case": problem.text, "flops": 2.5 * problem.flops,
            "results": {name: timing.summary(s) | facts[name] for name, s in samples.items()}}


def progress(case: dict) -> None:
    times = {name: r["median_s"] * 1e3 for name, r in case["results"].items()}
    shown = "  ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
    print(f"{case['case']:<52} x{times['torch'] / times['onepass']:.2f} alone, "
          f"x{times['torch_both'] / times['onepass_both']:.2f} both  {shown}  "
          f"{case['flops'] / times['onepass'] / 1e6:.0f} GFLOP/s, same bits: {case['results']['onepass']['same_bits']}",
          file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cpu_run.add_arguments(parser, "backward_cpu", rounds=7)
    parser.add_argument("--only", default="", help="only cases whose text matches this regular expression; needs --out")
    args = parser.parse_args()
    if args.only and not args.out:
        parser.error("--only leaves cases out, so it must not replace a complete result: name a file with --out")
    wanted = [p for p in problems() if re.search(args.only, p.text)]
    if not wanted:
        raise SystemExit(f"bench: no case matches --only '{args.only}'.\n  Fix: see problems() for the cases.")

    library, result, out = cpu_run.begin(args, "backward_cpu")
    result["cases"] = []
    for problem in wanted:
        result["cases"].append(run_case(library, problem, args.threads, args.rounds))
        progress(result["cases"][-1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    main()
