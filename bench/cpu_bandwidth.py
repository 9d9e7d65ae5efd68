#!/usr/bin/env python3
"""Time decode on the CPU against reading: which share of the memory's bandwidth attention over 32k keys gets.

One query row for each of B sequences, 32 query heads on 8 key heads, head_dim 128, 32,768 keys, f32, bf16 and f16; K and
V as [B, S, H, D], as [B, H, S, D], and in pages of 64 and 16 in a shuffled order. Beside every case, on the same threads and in the
same rounds, torch reads 1 GiB of f32 (`sum` and `dot`; the faster one counts). Results are checked against float64 on
torch's side first. Writes bench/results/bandwidth_<name>.json, from which make_tables.py makes the tables.
"""

import argparse
import json
import statistics
import sys

import torch

import cpu_run
import timing
from onepass_c import Forward, Library

HEADS_Q, HEADS_K, HEAD_DIM, SEQLEN_K = 32, 8, 128, 32768
BATCHES = (1, 8)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LAYOUTS = ("bshd", "bhsd", "page64", "page16")
ALLOWED_ERROR = {"f32": 1e-5, "bf16": 1e-2, "f16": 2e-3}  # relative, Frobenius norm
COLD_BYTES = 3 << 29  # of K and V that the calls of a case walk at least


def reference(q, k, v) -> torch.Tensor:
    """[B, 1, Hq, D] in float64, of K and V as [B, S, Hk, D]."""
    out = torch.empty_like(q, dtype=torch.float64)
    group = HEADS_Q // HEADS_K
    for b in range(q.shape[0]):
        for h in range(HEADS_K):
            rows = q[b, 0, h * group:(h + 1) * group].double()
            p = torch.softmax(rows @ k[b, :, h].double().T / HEAD_DIM**0.5, -1)
            out[b, 0, h * group:(h + 1) * group] = p @ v[b, :, h].double()
    return out


def calls_of(library: Library, layout: str, q, k, v, threads: int) -> Forward:
    """A call on K and V in this layout, [B, S, Hk, D] given."""
    out = torch.empty_like(q)
    if layout == "bshd":
        return Forward(library, q, k, v, out, False, threads)
    if layout == "bhsd":
        k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
        return Forward(library, q, k, v, out, False, threads)
    page = int(layout.removeprefix("page"))
    batch, pages = k.shape[0], k.shape[1] // page
    order = torch.randperm(batch * pages)
    pools = []
    for t in (k, v):
        pool = torch.empty(batch * pages, page, HEADS_K, HEAD_DIM, dtype=t.dtype)
        pool[order] = t.reshape(batch * pages, page, HEADS_K, HEAD_DIM)
        pools.append(pool)
    used = torch.full((batch,), k.shape[1], dtype=torch.int32)
    return Forward(library, q, *pools, out, False, threads, block_table=order.reshape(batch, pages).int(),
                   seqused_k=used)


def run_case(library: Library, dtype_name: str, batch: int, layout: str, threads: int, rounds: int, reads) -> dict:
    dtype = DTYPES[dtype_name]
    kv_bytes = 2 * batch * SEQLEN_K * HEADS_K * HEAD_DIM * dtype.itemsize
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).add_(0.5).to(dtype)
    calls = []
    for _ in range(max(1, -(-COLD_BYTES // kv_bytes))):
        q, k, v = random(batch, 1, HEADS_Q, HEAD_DIM), *(random(batch, SEQLEN_K, HEADS_K, HEAD_DIM) for _ in range(2))
        calls.append(calls_of(library, layout, q, k, v, threads))
    expected = reference(q, k, v)
    error = float((calls[-1]().double() - expected).norm() / expected.norm())
    if not error <= ALLOWED_ERROR[dtype_name]:
        raise SystemExit(f"bench: decode of {dtype_name}, {layout} is wrong: relative error {error:.2e}.\n"
                         f"  Allowed: {ALLOWED_ERROR[dtype_name]:.0e}.\n  Fix: run the tests.")
    samples = timing.interleave({"onepass": calls} | reads, rounds, 0.1)
    read = max((1 << 30) / statistics.median(samples[name]) for name in reads)
    result = timing.summary(samples["onepass"])
    rate = kv_bytes / result["median_s"]
    print(f"{dtype_name:<5} B {batch}  {layout:<7} {rate / 1e9:6.2f} of {read / 1e9:6.2f} GB/s: {100 * rate / read:3.0f} %",
          file=sys.stderr, flush=True)
    return {"dtype": dtype_name, "batch": batch, "layout": layout, "kv_bytes": kv_bytes, "relative_error": error,
            "read_gbytes_per_s": read / 1e9, "gbytes_per_s": rate / 1e9, "result": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cpu_run.add_arguments(parser, "bandwidth", rounds=11)
    args = parser.parse_args()

    library, result, out = cpu_run.begin(args, "bandwidth")
    x = torch.ones(1 << 28)
    reads = {"sum": [x.sum], "dot": [lambda: torch.dot(x, x)]}
    result["cases"] = [run_case(library, dtype, batch, layout, args.threads, args.rounds, reads)
                       for dtype in DTYPES for batch in BATCHES for layout in LAYOUTS]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
