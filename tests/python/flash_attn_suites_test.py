"""verify/flash_attn_suites.py, on a suite of ours that stands for flash-attn's: what it draws, and how results are told."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "verify" / "flash_attn_suites.py"
SUITE = '''
import os

import pytest
import torch
from flash_attn import flash_attn_func
from flash_attn.bert_padding import helper

device = "cuda"
q = torch.randn(1, 4, 2, 8, device=device, requires_grad=True)


@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
@pytest.mark.parametrize("seqlen,heads", [(3, 1), (4, 2)])
def test_output(seqlen, heads, dropout_p):
    x = q[:, :seqlen, :heads]
    slopes = torch.rand(heads, requires_grad=True)  # which has no gradient, so that the call has none
    out = flash_attn_func(x, x, x, dropout_p, alibi_slopes=slopes)
    (dq,) = torch.autograd.grad(out.sum(), x)
    assert helper(out.shape) == (1, seqlen, heads, 8)
    assert dq.abs().max() < 10


def test_gradient():
    slopes = torch.rand(2, requires_grad=True)
    (dq,) = torch.autograd.grad(flash_attn_func(q, q, q, alibi_slopes=slopes).sum(), q)
    assert dq.abs().max() < 10


def test_chunks():
    attention_chunk_vals = [3, 0]
    assert attention_chunk_vals == [0]


def test_wrong():
    out = flash_attn_func(q.detach(), q.detach(), q.detach())
    assert (out == 7).all()


def test_skipped():
    pytest.skip("not here")


def test_that_ends_its_process():
    os._exit(3)
'''


def test_each_case_has_its_result_and_its_reason(tmp_path):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "bert_padding.py").write_text("helper = tuple\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_flash_attn.py").write_text(SUITE)
    command = [sys.executable, PROGRAM, tmp_path, "--suite", "2.8", "--device", "cpu", "--jobs", "1", "--out",
               tmp_path / "out.json"]
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=300)
    assert done.returncode == 1, done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    summary = told["summary"]
    assert {name: summary[name] for name in ("drawn", "passed", "refused", "skipped", "failed")} == dict(
        drawn=9, passed=3, refused=3, skipped=1, failed=2)
    assert summary["refused_for"] == {"dropout": 2, "no gradient": 1}
    assert summary["passed_without"] == {"backward": 2, "attention_chunk": 1}
    failed = {case["case"]: case["text"] for case in told["cases"] if case["result"] == "failed"}
    assert "AssertionError" in failed["2.8::test_wrong[]"]
    assert "ended with status 3" in failed["2.8::test_that_ends_its_process 0"]


def test_a_draw_is_equal_over_the_functions_and_repeats_itself():
    specification = importlib.util.spec_from_file_location("flash_attn_suites", PROGRAM)
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)

    @pytest.mark.parametrize("a,b", [(1, 2), (3, 4)])
    @pytest.mark.parametrize("c", range(50))
    def many(a, b, c):
        pass

    @pytest.mark.parametrize("a", [1, 2, 3])
    def few(a):
        pass

    cases = program.drawn({"many": many, "few": few}, 23, seed=5)
    assert cases == program.drawn({"many": many, "few": few}, 23, seed=5) and len(set(cases)) == 23
    assert sorted(number for name, number in cases if name == "few") == [0, 1, 2]
    assert program.arguments_of(many, 50 + 7) == {"c": 7, "a": 3, "b": 4}
    everything = {tuple(sorted(program.arguments_of(many, number).items())) for number in range(100)}
    assert len(everything) == 100 == program.num_cases(many)
