"""verify/flash_attn_suites.py, on a suite of ours that stands for flash-attn's: what it draws, and how results are told."""

import importlib.util
import json
import subprocess
import sys
import threading
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


@pytest.mark.parametrize("seqlen", [1, 4, 300])
def test_wrong(seqlen):
    x = q.detach()[:, :seqlen]
    assert flash_attn_func(x, x, x).shape[1] + 0.5 <= seqlen - 1


@pytest.mark.parametrize("difference", [1e-6, 1e-4])
def test_zero(difference):
    dq = torch.tensor(difference)
    assert dq.item() <= 0.0


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
        drawn=12, passed=4, refused=3, skipped=1, failed=4)  # none with 300 keys
    assert summary["refused_for"] == {"dropout": 2, "no gradient": 1}
    assert summary["passed_without"] == {"backward": 2, "attention_chunk": 1, "exact zeros": 1}
    failed = {case["case"]: case["text"] for case in told["cases"] if case["result"] == "failed"}
    assert failed["2.8::test_wrong[seqlen=4]"].endswith("<= seqlen - 1; 4.5; 3")
    assert "ended with status 3" in failed["2.8::test_that_ends_its_process 0"]
    assert failed["2.8::test_zero[difference=0.0001]"].startswith("assert dq.item() <= 0.0; ")
    assert list(summary["failed_for"].values()) == [2, 1, 1]
    assert list(summary["failed_for"])[0].startswith("2.8::test_wrong line 38: assert flash_attn_func(x")


def load_program():
    specification = importlib.util.spec_from_file_location("flash_attn_suites", PROGRAM)
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    return program


def test_cases_that_run_together_fit_into_memory():
    program = load_program()
    small = program.memory_of({"seqlen_q": 16, "seqlen_k": 128, "d": 64}, "")
    assert small < 3 << 30 < 50 << 30 < program.memory_of({"seqlen": 4096, "d": 64}, "")
    assert program.memory_of({"seqlen_q": 1, "seqlen_k": 128 * 1024, "d": 256}, "") > 20 << 30
    assert program.memory_of({"seqlen_q": 16, "seqlen_k": 128, "d": 64},
                             "x = torch.empty(70 * 1024 ** 3)") == small + (70 << 30)
    room, waiting = program.Memory(10), [("a", 0, 6), ("b", 0, 7), ("c", 0, 4), ("d", 0, 12)]
    first, second = (room.take_first_that_fits(waiting) for _ in range(2))
    assert (first[0], second[0]) == ("a", "c")
    room.give_back(first)
    threading.Timer(0.2, room.give_back, [second]).start()
    third = room.take_first_that_fits(waiting)  # when there is room
    room.give_back(third)
    assert third[0] == "b" and room.take_first_that_fits(waiting)[0] == "d"  # larger than all memory: alone
    assert room.take_first_that_fits(waiting) is None


def test_few_cases_are_drawn_that_take_most_of_a_gpu_each():
    program = load_program()

    @pytest.mark.parametrize("a", range(50))
    def function(a):
        pass

    assert program.limit_of(function, "x = torch.empty(70 * 1024 ** 3)", 5000) == 25
    assert program.limit_of(function, "x = torch.empty(70 * 1024 ** 3)", 10) == 1
    assert program.limit_of(function, "x = torch.empty(8 * 1024 ** 3)", 5000) == 50


def test_a_draw_is_equal_over_the_functions_and_repeats_itself():
    program = load_program()

    @pytest.mark.parametrize("a,b", [(1, 2), (3, 4)])
    @pytest.mark.parametrize("c", range(50))
    def many(a, b, c):
        pass

    @pytest.mark.parametrize("a", [1, 2, 3])
    def few(a):
        pass

    functions, limits = {"many": many, "few": few}, {"many": 100, "few": 3}
    cases = program.drawn(functions, 23, 5, limits)
    assert cases == program.drawn(functions, 23, 5, limits) and len(set(cases)) == 23
    assert sorted(number for name, number in cases if name == "few") == [0, 1, 2]
    assert len(program.drawn(functions, 23, 5, limits | {"many": 7})) == 10
    assert program.arguments_of(many, 50 + 7) == {"c": 7, "a": 3, "b": 4}
    everything = {tuple(sorted(program.arguments_of(many, number).items())) for number in range(100)}
    assert len(everything) == 100 == program.num_cases(many)
