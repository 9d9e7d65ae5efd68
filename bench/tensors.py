"""Inputs of a problem as torch tensors."""

import torch

from cases import Problem

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # q, k, v as [batch, heads, seqlen, head_dim]


def make_inputs(problem: Problem, generator: torch.Generator, memory_order: str = "bhsd") -> Inputs:
    """Normal with mean 0.5, so that no error hides in a zero mean; on the generator's device.

    memory_order is how they lie in memory, "bhsd" or "bshd"; the shape is [batch, heads, seqlen, head_dim] either way.
    """
    def tensor(heads: int, seqlen: int) -> torch.Tensor:
        shape = {"bhsd": (problem.batch, heads, seqlen, problem.head_dim),
                 "bshd": (problem.batch, seqlen, heads, problem.head_dim)}[memory_order]
        t = torch.empty(shape, dtype=DTYPES[problem.dtype_name], device=generator.device)
        t.normal_(0.5, 1.0, generator=generator)
        return t if memory_order == "bhsd" else t.transpose(1, 2)
    return (tensor(problem.num_heads_q, problem.seqlen_q), tensor(problem.num_heads_k, problem.seqlen_k),
            tensor(problem.num_heads_k, problem.seqlen_k))
