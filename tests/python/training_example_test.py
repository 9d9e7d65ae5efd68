"""examples/train_language_model.py in short: the losses of torch's attention, the same bits in two runs."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_language_model.py"


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("train_language_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    torch.use_deterministic_algorithms(False)


def trains_as_torch_does(example, dtype):
    config = example.Config(layers=2, heads_q=4, heads_k=2, head_dim=16, context=96, batch=4, steps=12, dtype=dtype)
    return example.compare(example.python_reference(), config, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_losses_are_torchs_and_two_runs_are_the_same_bits(example, dtype):
    assert trains_as_torch_does(example, dtype)


def test_gradients_that_leave_a_key_out_are_seen(example, monkeypatch):
    def attention(q, k, v):
        v = v.clone()
        v.register_hook(lambda gradient: gradient.index_fill(2, torch.tensor([5]), 0))
        return example.ATTENTIONS["torch"](q, k, v)

    monkeypatch.setitem(example.ATTENTIONS, "onepass", attention)
    assert not trains_as_torch_does(example, torch.float32)


def test_bits_that_differ_from_run_to_run_are_seen(example, monkeypatch):
    runs = iter((example.ATTENTIONS["torch"], example.ATTENTIONS["torch, plain"]))
    train = example.train
    monkeypatch.setattr(example, "train", lambda attention, *rest: train(
        next(runs) if attention is example.ATTENTIONS["onepass"] else attention, *rest))
    assert not trains_as_torch_does(example, torch.float32)
