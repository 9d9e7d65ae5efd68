"""Timing of several contenders against each other: interleaved, in random order, on rotating inputs."""

import random
import statistics
import time
from collections.abc import Callable

import torch


def settle() -> None:
    """Wait until no thread of this process spins: OpenMP's workers stay awake for a while after a call."""
    for _ in range(200):
        before = time.process_time()
        time.sleep(0.002)
        if time.process_time() - before < 0.0004:
            return


def time_calls(calls: list[Callable], first: int, count: int) -> float:
    """Seconds per call over `count` calls that start at the rotating position `first`."""
    begin = time.perf_counter()
    for i in range(first, first + count):
        calls[i % len(calls)]()
    return (time.perf_counter() - begin) / count


def interleave(contenders: dict[str, list[Callable]], rounds: int, seconds_per_sample: float) -> dict[str, list[float]]:
    """Samples in seconds per call. contenders: name -> the same call on several sets of inputs.

    A round takes one sample of each contender, in random order. A sample is the mean of as many calls as fill
    `seconds_per_sample`, after one call that is not counted and wakes the threads.
    """
    order = random.Random(0)
    counts, positions = {}, dict.fromkeys(contenders, 0)
    for name, calls in contenders.items():
        calls[0]()
        counts[name] = max(1, round(seconds_per_sample / time_calls(calls, 1, 1)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        names = list(contenders)
        order.shuffle(names)
        for name in names:
            calls, first = contenders[name], positions[name]
            settle()
            calls[first % len(calls)]()
            samples[name].append(time_calls(calls, first + 1, counts[name]))
            positions[name] = first + 1 + counts[name]
    return samples


def summary(samples: list[float]) -> dict:
    """Median and spread (half the distance between the quartiles over the median) of samples in seconds."""
    low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
    return {"median_s": median, "spread": (high - low) / 2 / median, "min_s": min(samples), "samples": len(samples)}


def measure_peaks(rounds: int) -> dict[str, float]:
    """What the machine reaches at best with torch's current number of threads: matrix products and reading."""
    peaks: dict[str, float] = {}
    for name, dtype in (("matmul_f32_gflops", torch.float32), ("matmul_bf16_gflops", torch.bfloat16)):
        products = {}
        for n in (1024, 2048, 4096):
            a, b, c = (torch.randn(n, n).to(dtype) for _ in range(3))
            products[n] = [lambda a=a, b=b, c=c: torch.matmul(a, b, out=c)]
        samples = interleave(products, rounds, 0.05)
        peaks[name] = max(2 * n**3 / statistics.median(s) / 1e9 for n, s in samples.items())
    x = torch.ones(1 << 28)  # 1 GiB
    samples = interleave({"sum": [x.sum], "dot": [lambda: torch.dot(x, x)]}, rounds, 0.05)
    peaks["read_gbytes_per_s"] = max(x.numel() * 4 / statistics.median(s) / 1e9 for s in samples.values())
    return peaks
