#!/usr/bin/env python3
"""Time what a call from Python costs the host: onepass's functions beside torch's own, on one small problem.

On a GPU the calls queue behind a kernel that keeps it busy, so that nobody waits for it and no launch is held up: what
is left is Python, torch's layers, the allocator and the launch. On a CPU the problem is one row of one head, so that
next to nothing of the time is arithmetic, with one thread. Contenders take turns; the best of many short runs counts,
and the median says how quiet the machine was. With --layers it also times the parts of a call.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import onepass
from onepass import _core, torch_ops
from onepass.flash_attn import flash_attn_func, flash_attn_with_kvcache

RUNS, CALLS = 40, 200
BUSY_CYCLES = 20_000_000  # of the GPU's clock: more than CALLS calls take


def tensors_on(device: str):
    shape = (1, 128, 8, 64) if device == "cuda" else (1, 1, 1, 64)
    return [torch.randn(shape).to(device, torch.bfloat16) for _ in range(3)]


def calls_on(device: str) -> dict:
    q, k, v = tensors_on(device)
    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    lengths = torch.full((1,), k.shape[1], dtype=torch.int32, device=device)
    return {
        "flash_attn_func": lambda: flash_attn_func(q, k, v, causal=True),
        "flash_attn_func with lse": lambda: flash_attn_func(q, k, v, causal=True, return_attn_probs=True),
        "flash_attn_with_kvcache": lambda: flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=lengths, causal=True),
        "attention": lambda: onepass.attention(q, k, v, causal=True),
        "attention into out": lambda out=torch.empty_like(q): onepass.attention(q, k, v, causal=True, out=out),
        "scaled_dot_product_attention": lambda: onepass.scaled_dot_product_attention(*heads_first, is_causal=True),
        "torch.ops.onepass.forward": lambda: torch.ops.onepass.forward(q, k, v, causal="bottom-right"),
        "torch's scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*heads_first, is_causal=True),
    }


def layers_on(device: str) -> dict:
    """The parts of flash_attn_func, from inside out."""
    q, k, v = tensors_on(device)
    tensors, out = (q, k, v) + (None,) * 10, torch.empty_like(q)
    options = _core.ForwardOptions("bottom-right", -1, -1, None, 0.0, None, None, "auto", 0, 0)
    return {
        "layer: torch.empty_like": lambda: torch.empty_like(q),
        "layer: options": lambda: _core.ForwardOptions("bottom-right", -1, -1, None, 0.0, None, None, "auto", 0, 0),
        "layer: does torch watch?": lambda: (
            torch_ops.is_dynamo_compiling() or torch_ops._is_any_autocast_enabled() or torch_ops._is_tracing()
            or torch_ops._len_torch_dispatch_stack() or torch_ops._are_functorch_transforms_active()
            or _core.are_more_than_values((q, k, v, None, None, None))),
        "layer: extension module, given out": lambda: _core.forward(options, tensors, out, False, None, False, False),
        "layer: extension module": lambda: _core.forward(options, tensors, None, False, None, False, False),
        "layer: torch_ops.forward": lambda: torch_ops.forward(q, k, v, causal="bottom-right"),
    }


def seconds_per_call(call, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", action="store_true", help="the parts of a call, too")
    parser.add_argument("--out", help="write the figures here, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    calls = calls_on(given.device) | (layers_on(given.device) if given.layers else {})
    samples = {name: [] for name in calls}
    with torch.inference_mode():
        for call in calls.values():
            for _ in range(50):
                call()
        for _ in range(RUNS):
            for name, call in calls.items():
                samples[name].append(seconds_per_call(call, given.device))
    figures = {name: {"best_us": round(1e6 * min(times), 2), "median_us": round(1e6 * statistics.median(times), 2)}
               for name, times in samples.items()}
    for name, figure in figures.items():
        print(f"{name:<38} {figure['best_us']:8.2f} us   (median {figure['median_us']:.2f})")
    where = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(f"on {where}, torch {torch.__version__}, Python {sys.version.split()[0]}, onepass {onepass.__version__}")
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            json.dump({"where": where, "torch": torch.__version__, "figures": figures}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
