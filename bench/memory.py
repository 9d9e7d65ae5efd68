#!/usr/bin/env python3
"""Peak memory of one evaluation, in a process of its own; prints one line of JSON.

    memory.py CONTENDER LIBRARY THREADS DTYPE BATCH HEADS SEQLEN HEAD_DIM

Inputs are made first (and the output, where the contender is given one). Then the kernel's record of the peak
is reset, one call is made, and the new peak is read: what the call added on top of inputs and output is
`beyond_bytes`. A call on a tiny problem comes first, so that loading code does not count.
"""

import json
import sys
import time
from pathlib import Path

import torch

import contenders
from cases import Problem
from onepass_c import Library
from tensors import make_inputs


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def prepare(name: str, library: Path, problem: Problem, threads: int):
    inputs = make_inputs(problem, torch.Generator().manual_seed(0))
    if name == "onepass":
        return contenders.onepass_bhsd(Library(library), problem, inputs, threads)
    return {"torch": contenders.torch_sdpa, "materialised": contenders.materialised}[name](problem, inputs)


def main() -> None:
    name, library, threads, dtype, *numbers = sys.argv[1:]
    batch, heads, seqlen, head_dim = map(int, numbers)
    torch.set_num_threads(int(threads))
    prepare(name, Path(library), Problem(dtype, 1, heads, heads, 128, 128, head_dim), int(threads))()

    problem = Problem(dtype, batch, heads, heads, seqlen, seqlen, head_dim)
    call = prepare(name, Path(library), problem, int(threads))
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS
    begin = time.perf_counter()
    call()
    seconds = time.perf_counter() - begin
    added = status_bytes("VmHWM") - before
    given_output = name == "onepass"  # the others allocate their output within the call
    print(json.dumps({"seconds": seconds, "beyond_bytes": max(0, added - (0 if given_output else problem.bytes_out)),
                      "inputs_and_outputs_bytes": problem.bytes_read + problem.bytes_out}))


if __name__ == "__main__":
    main()
