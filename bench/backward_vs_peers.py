#!/usr/bin/env python3
"""Time onepass's backward on a GPU against other libraries, in one process, interleaved.

Writes bench/results/backward_<name>.json. The method is that of gpu_vs_peers.py: bursts of 8 ms with pauses between,
contenders in random order. A contender makes dQ, dK and dV from what its own forward call kept; each is checked
against an exact evaluation. FLOPs are 2.5 times those of forward.
"""

import argparse
import datetime
import itertools
import math
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import machine
import timing
from accelerator import CudaDevice, HostDevice
from cases import Problem
from contenders import RELATIVE_ERROR
from gpu_vs_peers import BURST_S, ROOT, name_nvrtc_of_torch, reason_of, write
from onepass_c import Backward, Forward, Library, Plan, find_library
from tensors import make_inputs

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # of [batch, seqlen, heads, head_dim] tensors


def problems() -> list[Problem]:
    """16384 rows and 2048 columns of Q, as FlashAttention's papers time it."""
    return [Problem("bf16", 16384 // s, 2048 // d, 2048 // d, s, s, d, causal)
            for d, causal, s in itertools.product((128, 64), (False, True), (512, 1024, 2048, 4096, 8192, 16384))]


class OnepassCall:
    def __init__(self, library: Library, device, problem: Problem, qkv: Gradients, dout: torch.Tensor,
                 num_threads: int = 0):
        q, k, v = qkv
        out = torch.full_like(q, math.nan)
        lse = torch.full((problem.batch, problem.num_heads_q, problem.seqlen_q), math.nan, device=q.device)
        forward = Forward(library, q, k, v, out, problem.causal, num_threads, device.backend, softmax_lse=lse)
        forward.use_stream(device.stream)
        forward()
        self.gradients = tuple(torch.full_like(t, math.nan) for t in qkv)
        self.plan = Plan(Backward(forward, dout, *self.gradients))

    def __call__(self) -> Gradients:
        self.plan()
        return self.gradients

    def forward_and_backward(self) -> Gradients:
        self.plan.call.forward()
        return self()


def differentiated(out: torch.Tensor, qkv: Gradients, dout: torch.Tensor) -> Callable[[], Gradients]:
    return lambda: torch.autograd.grad(out, qkv, dout, retain_graph=True)


def torch_call(backend: SDPBackend):
    def make(problem: Problem, qkv: Gradients, dout: torch.Tensor) -> Callable[[], Gradients]:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in qkv), is_causal=problem.causal,
                enable_gqa=problem.group > 1)
        return differentiated(out.transpose(1, 2), qkv, dout)
    return make


def fa3_call(problem: Problem, qkv: Gradients, dout: torch.Tensor) -> Callable[[], Gradients]:
    from flash_attn_interface import flash_attn_func
    out = flash_attn_func(*qkv, causal=problem.causal)
    return differentiated(out[0] if isinstance(out, tuple) else out, qkv, dout)


PEERS = {"torch_cudnn": torch_call(SDPBackend.CUDNN_ATTENTION), "torch_flash": torch_call(SDPBackend.FLASH_ATTENTION),
         "torch_math": torch_call(SDPBackend.MATH), "fa3": fa3_call}


def exact_gradients(problem: Problem, qkv: Gradients, dout: torch.Tensor, exact_type: torch.dtype) -> Gradients:
    """By autograd of the formula, head by head."""
    result = tuple(torch.zeros_like(t, dtype=exact_type) for t in qkv)
    hidden = (torch.ones(problem.seqlen_q, problem.seqlen_k, dtype=torch.bool, device=dout.device)
              .triu(1 + problem.seqlen_k - problem.seqlen_q) if problem.causal else None)
    for b, h in itertools.product(range(problem.batch), range(problem.num_heads_q)):
        places = [(b, slice(None), h), *[(b, slice(None), h // problem.group)] * 2]
        q, k, v = (t[place].detach().to(exact_type).requires_grad_() for t, place in zip(qkv, places))
        s = q @ k.T / math.sqrt(problem.head_dim)
        if hidden is not None:
            s = s.masked_fill(hidden, -math.inf)
        out = torch.softmax(s, dim=-1) @ v
        for total, place, gradient in zip(result, places, torch.autograd.grad(out, (q, k, v), dout[b, :, h].to(exact_type))):
            total[place] += gradient
    return result


def worst_error(got: Gradients, want: Gradients) -> float:
    """Relative, in the Frobenius norm; NaN where anything is."""
    errors = [((a.to(b.dtype) - b).norm() / b.norm()).item() for a, b in zip(got, want)]
    return max(errors) if all(map(math.isfinite, errors)) else math.nan


class Bench:
    def __init__(self, device, library: Library, peers: list[str], args: argparse.Namespace):
        self.device, self.library, self.peers, self.rounds = device, library, peers, args.rounds
        self.deadline = timing.Deadline(args.budget)

    def run_case(self, problem: Problem) -> dict:
        generator = torch.Generator(device=self.device.torch_device).manual_seed(0)
        *inputs, dout = (*make_inputs(problem, generator, "bshd"), make_inputs(problem, generator, "bshd")[0])
        # Without their mean: dP and delta would share one that is lost in their difference, and O's rounding with it.
        qkv = tuple((t.transpose(1, 2) - 0.5).detach().requires_grad_() for t in inputs)
        dout = dout.transpose(1, 2) - 0.5
        want = exact_gradients(problem, qkv, dout, self.device.exact_type)
        calls, facts, refused = {}, {}, {}
        makers = {"onepass": lambda *args: OnepassCall(self.library, self.device, *args)}
        for name, make in (makers | {peer: PEERS[peer] for peer in self.peers}).items():
            try:
                call = make(problem, qkv, dout)
                got = call()
                self.device.synchronize()
                error = worst_error(got, want)
                if not error <= RELATIVE_ERROR[problem.dtype_name]:
                    raise RuntimeError(f"a gradient is off by {error:.2e} of its norm")
                facts[name] = {"error": error}
                if name == "onepass":
                    first = [t.clone() for t in got]
                    facts[name] |= {"workspace_bytes": call.plan.workspace_bytes,
                                    "same_bits": all(all(map(torch.equal, call(), first)) for _ in range(10))}
                calls[name] = [call]
            except Exception as error:  # whatever a peer raises is its reason
                refused[name] = reason_of(error, [])
        samples = timing.interleave(calls, self.rounds, BURST_S, self.device, deadline=self.deadline)
        flops = 2.5 * problem.conventional_flops
        result = {"case": problem.text, "flops": flops, "refused": refused, "results": {}}
        for name in calls:
            summary = timing.summary(samples[name])
            result["results"][name] = summary | {"tflops": flops / summary["median_s"] / 1e12} | facts[name]
        if "onepass" in calls:
            result["plan"] = calls["onepass"][0].plan.explain()
        return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only cases whose text matches this regular expression; needs --out")
    parser.add_argument("--peers", default="torch_cudnn,torch_flash,fa3", help=f"some of {','.join(PEERS)}; '' for none")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--budget", type=float, help="seconds after which no case and no round starts")
    parser.add_argument("--library", type=Path, help="libonepass.so (default: that of build/release)")
    parser.add_argument("--commit", help="what the library was built from, where there is no git repository")
    parser.add_argument("--out", type=Path, help="write this file instead of bench/results/backward_<GPU>.json")
    parser.add_argument("--dry-run", action="store_true",
                        help="on the CPU, lengths divided by 64: shows that all steps work; needs --out")
    args = parser.parse_args()
    if (args.only or args.dry_run) and not args.out:
        parser.error("--only and --dry-run must not replace a complete result: name a file with --out")
    return args


def main() -> int:
    args = arguments()
    wanted = [p.shrunk(64 if args.dry_run else 1) for p in problems() if re.search(args.only, p.text)]
    if not wanted:
        raise SystemExit(f"bench: no case matches --only '{args.only}'.\n  Fix: see problems() for the cases.")
    device = HostDevice() if args.dry_run else CudaDevice()
    if not args.dry_run:
        name_nvrtc_of_torch()
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    library = Library((args.library or find_library(ROOT)).resolve())
    facts = device.facts()
    slug = re.sub(r"[^a-z0-9]+", "_", facts["name"].lower()).strip("_")
    out = args.out or ROOT / "bench" / "results" / f"backward_{slug}.json"
    result = {"gpu": facts, "commit": args.commit or machine.commit(ROOT), "date": datetime.date.today().isoformat(),
              "versions": {"onepass": library.version(), "torch": torch.__version__} | device.versions(),
              "rounds": args.rounds, "dry_run": args.dry_run, "failed": {}, "cases": []}
    bench = Bench(device, library, [name for name in args.peers.split(",") if name], args)
    for problem in wanted:
        if bench.deadline.passed():
            break
        try:
            case = bench.run_case(problem)
        except Exception as error:  # one case must not cost the others
            traceback.print_exc()
            result["failed"][problem.text] = reason_of(error, [])
            continue
        result["cases"].append(case)
        shown = [f"{name} {r['tflops']:.0f} TFLOP/s ±{100 * r['spread']:.1f}%" for name, r in case["results"].items()]
        bits = case["results"].get("onepass", {}).get("same_bits")
        print(f"{case['case']:<44}{'  '.join(shown)}  same bits: {bits}", file=sys.stderr, flush=True)
        for refusal in case["refused"].items():
            print(f"{'':<8}{': '.join(refusal)}", file=sys.stderr, flush=True)
        write(out, result)
    write(out, result)
    print(out)
    return 1 if result["failed"] or any("onepass" not in case["results"] for case in result["cases"]) else 0


if __name__ == "__main__":
    sys.exit(main())
