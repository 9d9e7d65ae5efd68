"""The problems that the CPU benchmark times, and how their inputs are made."""

import itertools
from dataclasses import dataclass

import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


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
    def dtype(self) -> torch.dtype:
        return DTYPES[self.dtype_name]

    @property
    def text(self) -> str:
        """The case text that `onepass check` and `onepass bench` take."""
        return (f"{self.dtype_name}_b{self.batch}_hq{self.num_heads_q}_hk{self.num_heads_k}_sq{self.seqlen_q}"
                f"_sk{self.seqlen_k}_d{self.head_dim}" + ("_causal" if self.causal else ""))

    @property
    def is_decode(self) -> bool:
        return self.seqlen_q == 1

    @property
    def flops(self) -> int:
        """Masked pairs are not counted."""
        pairs = self.seqlen_q * self.seqlen_k
        if self.causal:
            pairs -= self.seqlen_q * (self.seqlen_q - 1) // 2
        return 4 * self.batch * self.num_heads_q * pairs * self.head_dim

    @property
    def bytes_read(self) -> int:
        """Q, K and V, each once."""
        rows = self.num_heads_q * self.seqlen_q + 2 * self.num_heads_k * self.seqlen_k
        return self.batch * rows * self.head_dim * self.dtype.itemsize

    @property
    def bytes_out(self) -> int:
        return self.batch * self.num_heads_q * self.seqlen_q * self.head_dim * self.dtype.itemsize

    def make_inputs(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v as [batch, heads, seqlen, head_dim], normal with mean 0.5 so that no error hides in a zero mean."""
        def tensor(heads: int, seqlen: int) -> torch.Tensor:
            t = torch.empty(self.batch, heads, seqlen, self.head_dim, dtype=self.dtype)
            return t.normal_(0.5, 1.0, generator=generator)
        return (tensor(self.num_heads_q, self.seqlen_q), tensor(self.num_heads_k, self.seqlen_k),
                tensor(self.num_heads_k, self.seqlen_k))


def prefill_problems() -> list[Problem]:
    return [Problem(dtype, b, h, h, s, s, d, causal)
            for dtype, d, (b, h, s), causal in itertools.product(
                DTYPES, (64, 128), ((1, 16, 1024), (1, 16, 4096), (4, 16, 512)), (False, True))]


def decode_problems() -> list[Problem]:
    return [Problem(dtype, 1, 32, 8, 1, sk, d)
            for dtype, d, sk in itertools.product(DTYPES, (64, 128), (1024, 8192, 32768))]


def memory_problems() -> list[Problem]:
    return [Problem(dtype, 1, 1, 1, 32768, 32768, 128) for dtype in DTYPES]
