"""What this machine's processor reaches at best, measured."""

import statistics

import torch

import timing


def measure(rounds: int) -> dict[str, float]:
    """What the machine reaches at best with torch's current number of threads: matrix products and reading."""
    peaks: dict[str, float] = {}
    for name, dtype in (("matmul_f32_gflops", torch.float32), ("matmul_bf16_gflops", torch.bfloat16)):
        products = {}
        for n in (1024, 2048, 4096):
            a, b, c = (torch.randn(n, n).to(dtype) for _ in range(3))
            products[n] = [lambda a=a, b=b, c=c: torch.matmul(a, b, out=c)]
        samples = timing.interleave(products, rounds, 0.05)
        peaks[name] = max(2 * n**3 / statistics.median(s) / 1e9 for n, s in samples.items())
    x = torch.ones(1 << 28)  # 1 GiB
    samples = timing.interleave({"sum": [x.sum], "dot": [lambda: torch.dot(x, x)]}, rounds, 0.05)
    peaks["read_gbytes_per_s"] = max(x.numel() * 4 / statistics.median(s) / 1e9 for s in samples.values())
    return peaks
