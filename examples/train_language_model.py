#!/usr/bin/env python3
"""Train a small causal language model with onepass and with torch's attention, from the same seed.

    python examples/train_language_model.py                  float32 on the CPU
    python examples/train_language_model.py --device cuda    larger, bfloat16 autocast

The text is Python's own language reference, half a megabyte that comes with it (module pydoc_data; Debian:
`apt install libpython3-stdlib`), byte by byte; `--text FILE` takes another. Two things are shown: the losses are those
of torch's attention, about as near as torch's own two implementations are to each other; and a second run with onepass
gives the same losses and the same weights, to the bit. Exit status 1 when one of them does not hold.
"""

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path

import torch
from pydoc_data.topics import topics
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import onepass


@dataclasses.dataclass(frozen=True)
class Config:
    """Of the model and its training. Query heads share key heads, `heads_q / heads_k` each."""
    layers: int
    heads_q: int
    heads_k: int
    head_dim: int
    context: int  # tokens of a sequence
    batch: int
    steps: int
    dtype: torch.dtype  # of the products: float32, or bfloat16 by autocast
    learning_rate: float = 1e-3

    @property
    def width(self) -> int:
        return self.heads_q * self.head_dim


CPU = Config(layers=2, heads_q=4, heads_k=2, head_dim=32, context=256, batch=4, steps=60, dtype=torch.float32)
CUDA = Config(layers=8, heads_q=8, heads_k=4, head_dim=128, context=2048, batch=16, steps=300, dtype=torch.bfloat16,
              learning_rate=3e-4)


def torchs(backend):
    def attention(q, k, v):
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return attention


ATTENTIONS = {
    "torch": torchs(SDPBackend.FLASH_ATTENTION),
    "torch, plain": torchs(SDPBackend.MATH),
    "onepass": lambda q, k, v: onepass.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
}


def python_reference() -> bytes:
    return "\n\n".join(topics.values()).encode()


class Layer(nn.Module):
    def __init__(self, config: Config, attention):
        super().__init__()
        self.config, self.attention = config, attention
        width, heads = config.width, config.heads_q + 2 * config.heads_k
        self.norm_before = nn.LayerNorm(width)
        self.to_heads = nn.Linear(width, heads * config.head_dim, bias=False)
        self.from_heads = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):  # [batch, context, width]
        c = self.config
        heads = self.to_heads(self.norm_before(x)).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        q, k, v = heads.split((c.heads_q, c.heads_k, c.heads_k), dim=1)  # [batch, heads, context, head_dim]
        x = x + self.from_heads(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class LanguageModel(nn.Module):
    """Of bytes."""

    def __init__(self, config: Config, attention):
        super().__init__()
        self.bytes = nn.Embedding(256, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.layers = nn.Sequential(*(Layer(config, attention) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.to_bytes = nn.Linear(config.width, 256, bias=False)

    def forward(self, tokens):  # [batch, context]
        x = self.bytes(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.to_bytes(self.norm(self.layers(x)))


def train(attention, text: bytes, config: Config, device: str) -> tuple[list[float], list[torch.Tensor]]:
    """The loss of every step, in nats a byte, and the trained weights. The same seed, so the same weights to begin
    with and the same batches, in every call."""
    torch.manual_seed(0)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    model = LanguageModel(config, attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    losses = []
    for _ in range(config.steps):
        starts = torch.randint(len(data) - config.context, (config.batch, 1))
        sequences = data[starts + torch.arange(config.context + 1)].to(device)  # targets are one byte further
        with torch.autocast(device, dtype=torch.bfloat16, enabled=config.dtype == torch.bfloat16):
            logits = model(sequences[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist(), [weight.detach() for weight in model.parameters()]


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def compare(text: bytes, config: Config, device: str) -> bool:
    """Trains with each attention, and with onepass again; prints the losses and whether both properties hold."""
    torch.use_deterministic_algorithms(True)
    losses, weights = {}, {}
    for name, attention in (ATTENTIONS | {"onepass again": ATTENTIONS["onepass"]}).items():
        begin = time.perf_counter()
        losses[name], weights[name] = train(attention, text, config, device)
        print(f"{name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)

    print("step " + "".join(f"{name:>15}" for name in losses))
    for step in sorted({*range(0, config.steps, max(1, config.steps // 10)), config.steps - 1}):
        print(f"{step:4} " + "".join(f"{of_run[step]:15.6f}" for of_run in losses.values()))
    noise = largest_difference(losses["torch"], losses["torch, plain"])
    difference = min(largest_difference(losses["onepass"], losses[name]) for name in ("torch", "torch, plain"))
    same_losses = losses["onepass"] == losses["onepass again"]
    same_weights = all(map(torch.equal, weights["onepass"], weights["onepass again"]))
    print(f"losses of torch's two implementations differ by {noise:.1e} at most, onepass's from the nearer by "
          f"{difference:.1e}")
    print(f"two runs of onepass: losses {'the same bits' if same_losses else 'DIFFER'}, "
          f"weights {'the same bits' if same_weights else 'DIFFER'}")
    # 1e-6 is an ulp or two of a loss: torch's implementations may happen to agree.
    return difference <= 4 * noise + 1e-6 and same_losses and same_weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: float32, on a GPU bfloat16")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--text", type=Path, help="train on this file instead of Python's documentation")
    args = parser.parse_args()
    config = CUDA if args.device == "cuda" else CPU
    overrides = {"dtype": args.dtype and getattr(torch, args.dtype), "steps": args.steps}
    config = dataclasses.replace(config, **{name: value for name, value in overrides.items() if value})
    text = args.text.read_bytes() if args.text else python_reference()
    print(f"{len(text)} bytes of text, {config}", flush=True)
    return 0 if compare(text, config, args.device) else 1


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS wants to be deterministic
    sys.exit(main())
