"""What the GPU benchmark asks of the device it runs on: clock, memory, facts. HostDevice stands in for a dry run."""

import statistics
import time
from collections.abc import Callable

import torch

import machine
import timing

SCORES_AT_ONCE = 1 << 28  # of the exact evaluation: 1 GiB in float32


class CudaDevice:
    """A GPU, timed by its own events. Everything runs on the default stream, but for what is captured in a graph."""

    pause_s = 0.06  # between bursts, so that the power limit lowers no clock

    def __init__(self, device_idx: int = 0):
        if device_idx >= torch.cuda.device_count():
            raise SystemExit(f"bench: GPU {device_idx} was asked for, and torch {torch.__version__} sees "
                             f"{torch.cuda.device_count()}.\n"
                             "  Allowed: the index of an NVIDIA GPU, with a build of torch for CUDA.\n"
                             "  Fix: run it on a machine with one; --dry-run tries the steps without.")
        torch.cuda.set_device(device_idx)
        torch.set_float32_matmul_precision("highest")  # the exact evaluation: float32, not TF32
        self.torch_device = torch.device("cuda", device_idx)
        self.properties = torch.cuda.get_device_properties(device_idx)
        self.cache_bytes = self.properties.L2_cache_size
        self.exact_type = torch.float32
        self.backend = "cuda"
        self.stream = 0  # where onepass queues its work; as a number, 0 is the default stream

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def settle(self) -> None:
        torch.cuda.synchronize()
        time.sleep(self.pause_s)

    def time_calls(self, calls: list[Callable], first: int, count: int) -> float:
        """Seconds per call between two events. The call before it keeps the GPU busy while the first ones are queued."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(first, first + count):
            calls[i % len(calls)]()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / count

    def beyond_bytes(self, call: Callable, bytes_out: int) -> int:
        """Peak of torch's memory during a call, without its output."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = call()
        torch.cuda.synchronize()
        del out
        return max(0, torch.cuda.max_memory_allocated() - before - bytes_out)

    def capture(self, calls: list[Callable]) -> Callable:
        """One replay of a CUDA graph of all the calls: no host time between them."""
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        self.synchronize()
        self.stream = stream.cuda_stream
        try:
            with torch.cuda.stream(stream):  # what is set up in a first call on a stream must not be captured
                for call in calls:
                    call()
            self.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for call in calls:
                    call()
        finally:
            self.stream = 0
        self.synchronize()

        def replay(kept: list[Callable] = calls) -> None:  # a graph has addresses in the memory that they own
            graph.replay()

        return replay

    def versions(self) -> dict:
        return {"cuda": torch.version.cuda, "cudnn": version_text(torch.backends.cudnn.version())}

    def facts(self) -> dict:
        return {"name": self.properties.name, "memory_gib": round(self.properties.total_memory / 2**30, 1),
                "multiprocessors": self.properties.multi_processor_count, "l2_bytes": self.cache_bytes,
                "compute_capability": f"{self.properties.major}.{self.properties.minor}",
                "idle": machine.nvidia_smi(self.torch_device.index)}

    def peaks(self, rounds: int) -> dict:
        """Matrix products of 8192 and a copy of 2 GiB, by the method of the cases; clock and power under that load."""
        n = 8192
        products = {}
        for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            a, b = (torch.randn(n, n, dtype=dtype, device=self.torch_device) for _ in range(2))
            c = torch.empty_like(a)
            products[name] = [lambda a=a, b=b, c=c: torch.matmul(a, b, out=c)]
        x = torch.ones(1 << 29, device=self.torch_device)
        y = torch.empty_like(x)
        samples = timing.interleave(products | {"copy": [lambda: y.copy_(x)]}, rounds, 0.008, clock=self)
        for _ in range(500):  # more than half a second of work, while nvidia-smi looks
            products["bf16"][0]()
        under_load = machine.nvidia_smi(self.torch_device.index)
        torch.cuda.synchronize()
        return {f"matmul_{name}_tflops": 2 * n**3 / statistics.median(samples[name]) / 1e12 for name in products} | {
            "copy_gbytes_per_s": 2 * x.nbytes / statistics.median(samples["copy"]) / 1e9, "under_load": under_load}


class HostDevice:
    """The CPU in the place of the GPU, for a dry run: the same steps, no result worth keeping."""

    torch_device = torch.device("cpu")
    cache_bytes = 1 << 20
    exact_type = torch.float64
    backend = "auto"
    stream = 0

    def synchronize(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def time_calls(self, calls: list[Callable], first: int, count: int) -> float:
        return timing.HostClock().time_calls(calls, first, count)

    def beyond_bytes(self, call: Callable, bytes_out: int) -> int:
        call()
        return 0

    def capture(self, calls: list[Callable]) -> Callable:
        def replay() -> None:
            for call in calls:
                call()
        return replay

    def versions(self) -> dict:
        return {"cuda": None, "cudnn": None}

    def facts(self) -> dict:
        return {"name": machine.cpu_info()["model"], "idle": machine.nvidia_smi(0)}

    def peaks(self, rounds: int) -> dict:
        return {"matmul_bf16_tflops": 1.0, "matmul_f16_tflops": 1.0, "copy_gbytes_per_s": 1.0, "under_load": None}


def version_text(number: int | None) -> str | None:
    """cuDNN's version number as text: 91900 is 9.19.0."""
    return None if number is None else f"{number // 10000}.{number // 100 % 100}.{number % 100}"
