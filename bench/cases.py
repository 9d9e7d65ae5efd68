"""The problems that the benchmarks time, as plain values. tensors.py makes their inputs."""

import itertools
import math
from dataclasses import dataclass, replace

DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Problem:
    dtype_name: str
    batch: int
    num_heads_q: int
    num_heads_k: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: bool = False

    @property
    def text(self) -> str:
        """The case text that `onepass check` and `onepass bench` take."""
        return (f"{self.dtype_name}_b{self.batch}_hq{self.num_heads_q}_hk{self.num_heads_k}_sq{self.seqlen_q}"
                f"_sk{self.seqlen_k}_d{self.head_dim}" + ("_causal" if self.causal else ""))

    @property
    def is_decode(self) -> bool:
        return self.seqlen_q == 1

    @property
    def kind(self) -> str:
        return "decode" if self.is_decode else "prefill"

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads_q // self.num_heads_k

    @property
    def flops(self) -> int:
        """Masked pairs are not counted."""
        pairs = self.seqlen_q * self.seqlen_k
        if self.causal:
            pairs -= self.seqlen_q * (self.seqlen_q - 1) // 2
        return 4 * self.batch * self.num_heads_q * pairs * self.head_dim

    @property
    def conventional_flops(self) -> int:
        """As papers on GPU kernels count: a causal mask halves the whole (its diagonal half is left out)."""
        flops = 4 * self.batch * self.num_heads_q * self.seqlen_q * self.seqlen_k * self.head_dim
        return flops // 2 if self.causal else flops

    @property
    def bytes_read(self) -> int:
        """Q, K and V, each once."""
        rows = self.num_heads_q * self.seqlen_q + 2 * self.num_heads_k * self.seqlen_k
        return self.batch * rows * self.head_dim * DTYPE_BYTES[self.dtype_name]

    @property
    def bytes_out(self) -> int:
        return self.batch * self.num_heads_q * self.seqlen_q * self.head_dim * DTYPE_BYTES[self.dtype_name]

    def num_input_sets(self, cache_bytes: int) -> int:
        """Prefill is bound by arithmetic: three sets. Decode is bound by memory: half as much again as the last
        cache holds, within 3 GiB, so that no call finds its K and V in a cache."""
        if not self.is_decode:
            return 3
        return max(3, math.ceil(min(1.5 * cache_bytes, 3 * 2**30) / self.bytes_read))

    def shrunk(self, factor: int) -> "Problem":
        """The same with lengths divided, for trying a benchmark out."""
        return replace(self, seqlen_q=max(1, self.seqlen_q // factor), seqlen_k=max(1, self.seqlen_k // factor))


def prefill_problems() -> list[Problem]:
    return [Problem(dtype, b, h, h, s, s, d, causal)
            for dtype, d, (b, h, s), causal in itertools.product(
                ("f32", "bf16"), (64, 128), ((1, 16, 1024), (1, 16, 4096), (4, 16, 512)), (False, True))]


def decode_problems() -> list[Problem]:
    return [Problem(dtype, 1, 32, 8, 1, sk, d)
            for dtype, d, sk in itertools.product(("f32", "bf16"), (64, 128), (1024, 8192, 32768))]


def memory_problems() -> list[Problem]:
    return [Problem(dtype, 1, 1, 1, 32768, 32768, 128) for dtype in ("f32", "bf16")]


def square(dtype: str, batch: int, heads: int, seqlen: int, head_dim: int, causal: bool = False) -> Problem:
    return Problem(dtype, batch, heads, heads, seqlen, seqlen, head_dim, causal)


def gpu_forward_problems() -> list[Problem]:
    """16k tokens in all and a hidden size of 2048, as the papers on GPU kernels have them; and two larger batches."""
    tokens, hidden = 16384, 2048
    return [square("bf16", tokens // s, hidden // d, s, d, causal)
            for d, causal, s in itertools.product((64, 128, 256), (False, True), (512, 1024, 2048, 4096, 8192, 16384))
            ] + [square("f16", b, 16, 4096, 64, causal) for b, causal in itertools.product((4, 8), (False, True))]


def gpu_gqa_problems() -> list[Problem]:
    return [Problem("bf16", 1, 32, 8, 4096, 4096, 128, causal) for causal in (False, True)]


def gpu_naive_problems() -> list[Problem]:
    return [square("f16", 8, 16, 4096, 64)]


def gpu_decode_problems() -> list[Problem]:
    return [Problem("bf16", batch, 32, 8, 1, sk, 128)
            for sk, batch in ((1024, 1), (1024, 32), (4096, 8), (8192, 1), (8192, 32), (32768, 1), (32768, 8),
                              (131072, 1))]


GPU_SUITES = {"forward": gpu_forward_problems, "gqa": gpu_gqa_problems, "naive": gpu_naive_problems,
              "decode": gpu_decode_problems}
