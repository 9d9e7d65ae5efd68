"""The ways to evaluate one problem, all called the same way, and the check that each must pass."""

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from cases import Problem
from onepass_c import Forward, Library
from tensors import Inputs

Call = Callable[[], torch.Tensor]  # returns [batch, heads, seqlen_q, head_dim]
RELATIVE_ERROR = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # Frobenius norm; docs/spec.md


class WrongResult(SystemExit):
    """A result outside its bounds: where nothing catches it, the benchmark ends with its text and status 1."""


def onepass_bshd(library: Library, problem: Problem, inputs: Inputs, threads: int) -> Call:
    """onepass in the layout that is natural to it, [batch, seqlen, heads, head_dim]."""
    return onepass(library, problem, [t.transpose(1, 2).contiguous() for t in inputs], threads)


def onepass_bhsd(library: Library, problem: Problem, inputs: Inputs, threads: int) -> Call:
    """onepass on torch's own memory, [batch, heads, seqlen, head_dim], described by strides."""
    return onepass(library, problem, [t.transpose(1, 2) for t in inputs], threads)


def onepass(library: Library, problem: Problem, qkv: list[torch.Tensor], threads: int) -> Call:
    out = torch.full_like(qkv[0], math.nan)
    forward = Forward(library, *qkv, out, problem.causal, threads)

    def call() -> torch.Tensor:
        forward()
        return out.transpose(1, 2)
    return call


def plan_text(library: Library, problem: Problem, inputs: Inputs, threads: int) -> str:
    """onepass's own account of how it evaluates the problem."""
    qkv = [t.transpose(1, 2) for t in inputs]
    return Forward(library, *qkv, torch.empty_like(qkv[0]), problem.causal, threads).explain()


def torch_sdpa(problem: Problem, inputs: Inputs) -> Call:
    """What a user of torch calls; enable_gqa where query heads share key heads."""
    q, k, v = inputs
    gqa = problem.num_heads_q != problem.num_heads_k
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=problem.causal, enable_gqa=gqa)


def torch_grouped(problem: Problem, inputs: Inputs) -> Call:
    """Decode as a careful user of torch writes it: the heads that share a key head become rows of one head, so
    that torch does not copy K and V for each of them."""
    q, k, v = inputs
    rows = q.view(problem.batch, problem.num_heads_k, -1, problem.head_dim)
    return lambda: F.scaled_dot_product_attention(rows, k, v).view_as(q)


def materialised(problem: Problem, inputs: Inputs) -> Call:
    """The three steps with S and P in memory. The mask, a constant of the problem, is made beforehand."""
    q, k, v = inputs
    if problem.is_decode:  # as in torch_grouped
        q = q.reshape(problem.batch, problem.num_heads_k, problem.group, problem.head_dim)
    scale = 1.0 / math.sqrt(problem.head_dim)
    hidden = (torch.ones(problem.seqlen_q, problem.seqlen_k, dtype=torch.bool, device=q.device)
              .triu(1 + problem.seqlen_k - problem.seqlen_q) if problem.causal else None)

    def call() -> torch.Tensor:
        s = (q @ k.transpose(-2, -1)).mul_(scale)
        if hidden is not None:
            s.masked_fill_(hidden, -math.inf)
        p = torch.softmax(s, dim=-1)
        del s
        return (p @ v).view_as(inputs[0])
    return call


class Reference:
    """An exact evaluation of a problem, and how far the plain evaluation in its own type is from it.

    exact_type: float64, or float32 for 16-bit problems on a GPU.
    heads_at_once: bounds the memory; the scores of that many heads are held in exact_type.
    """

    def __init__(self, problem: Problem, inputs: Inputs, exact_type=torch.float64, heads_at_once: int = 1):
        self.problem = problem
        self.exact = torch.empty(inputs[0].shape, dtype=exact_type, device=inputs[0].device)
        self.plain_error = 0.0
        q, k, v = (t.flatten(0, 1) for t in inputs)
        exact_heads = self.exact.flatten(0, 1)
        key_heads = torch.arange(len(q), device=q.device) // problem.group
        for first in range(0, len(q), heads_at_once):
            part = slice(first, first + heads_at_once)
            parts = tuple(t[None] for t in (q[part], k[key_heads[part]], v[key_heads[part]]))
            heads = parts[0].shape[1]
            piece = dataclasses.replace(problem, batch=1, num_heads_q=heads, num_heads_k=heads)
            exact_heads[part] = materialised(piece, tuple(t.to(exact_type) for t in parts))()[0]
            plain = materialised(piece, parts)()[0]
            self.plain_error = max(self.plain_error, (plain.to(exact_type) - exact_heads[part]).abs().max().item())

    def require(self, name: str, out: torch.Tensor) -> dict[str, float]:
        """The largest error of `out`. @raises WrongResult when it is over twice the plain evaluation's, plus 1e-5."""
        difference = out.to(self.exact.dtype) - self.exact
        error = difference.abs().max().item()
        relative = (difference.norm() / self.exact.norm()).item()
        bound = 2 * self.plain_error + 1e-5
        allowed = RELATIVE_ERROR[self.problem.dtype_name]
        if not (error <= bound and relative <= allowed):  # a NaN fails too
            raise WrongResult(
                f"bench: {name} is wrong on {self.problem.text}: max error {error:.3e}, relative error {relative:.3e}.\n"
                f"  Allowed: {bound:.3e} (2 x the plain evaluation's + 1e-5) and {allowed:.0e}.\n"
                f"  Fix: look with onepass check {self.problem.text}")
        return {"max_abs_error": error, "max_abs_error_allowed": bound}
