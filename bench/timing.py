"""Timing of several contenders against each other: interleaved, in random order, on rotating inputs."""

import math
import random
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class HostClock:
    """For calls that return when they are done."""

    def settle(self) -> None:
        """Wait until no thread of this process spins: OpenMP's workers stay awake for a while after a call."""
        for _ in range(200):
            before = time.process_time()
            time.sleep(0.002)
            if time.process_time() - before < 0.0004:
                return

    def time_calls(self, calls: list[Callable], first: int, count: int) -> float:
        """Seconds per call over `count` calls that start at the rotating position `first`."""
        begin = time.perf_counter()
        for i in range(first, first + count):
            calls[i % len(calls)]()
        return (time.perf_counter() - begin) / count


class Deadline:
    """Seconds that may be spent from now on; None: any number."""

    def __init__(self, seconds: float | None):
        self.end = math.inf if seconds is None else time.monotonic() + seconds

    def passed(self) -> bool:
        return time.monotonic() >= self.end


def interleave(contenders: dict[str, list[Callable]], rounds: int, seconds_per_sample: float, clock=HostClock(),
               scopes: dict[str, Callable[[], AbstractContextManager]] | None = None,
               deadline: Deadline = Deadline(None)) -> dict[str, list[float]]:
    """Samples in seconds per call. contenders: name -> the same call on several sets of inputs.

    A round takes one sample of each contender, in random order. A sample is the mean of as many calls as fill
    `seconds_per_sample`, after one call that is not counted and wakes the threads (or, on a GPU, fills the queue).
    scopes: name -> a context that this contender's calls are made in. No round but the first starts after `deadline`.
    """
    order = random.Random(0)
    counts, positions = {}, dict.fromkeys(contenders, 0)
    scopes = dict.fromkeys(contenders, nullcontext) | (scopes or {})
    for name, calls in contenders.items():
        with scopes[name]():
            calls[0]()
            counts[name] = max(1, round(seconds_per_sample / clock.time_calls(calls, 1, 1)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for done in range(rounds):
        if done > 0 and deadline.passed():
            break
        names = list(contenders)
        order.shuffle(names)
        for name in names:
            calls, first = contenders[name], positions[name]
            clock.settle()
            with scopes[name]():
                calls[first % len(calls)]()
                samples[name].append(clock.time_calls(calls, first + 1, counts[name]))
            positions[name] = first + 1 + counts[name]
    return samples


def summary(samples: list[float]) -> dict:
    """Median, quartiles and spread (half the distance between the quartiles over the median) of samples in seconds."""
    low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
    return {"median_s": median, "quartiles_s": [low, high], "spread": (high - low) / 2 / median,
            "min_s": min(samples), "samples": len(samples)}
