#!/usr/bin/env python3
"""Run flash-attn's own test suites against onepass's drop-in modules, from a checkout of their repository.

    git clone https://github.com/Dao-AILab/flash-attention    # v2.8.3 has both suites
    python verify/flash_attn_suites.py flash-attention --cases 5000 --out suites.json

The suites are tests/test_flash_attn.py (2.8) and hopper/test_flash_attn.py (the FlashAttention-3 interface); they have
some 600,000 cases, of which as many as asked for are drawn at random, equally over all test functions. They find
`onepass.flash_attn` under the name flash_attn, and `onepass.flash_attn_interface` under flash_attn_interface; their
own helpers (padding, rotary embedding) come from the checkout. Needs torch, pytest and einops, a GPU, and triton for
the cases with rotary embedding. Nothing of the checkout is changed or kept.

What the modules do not have is left out where the rest of the case can still be checked, and listed with the case:
  backward           where a gradient is refused it is NaN; a case passes whose other assertions hold
  attention_chunk    of the values that a case tries, 0 alone
Any other argument that is refused (NotImplementedError) ends its case as "refused", with the reason.

Workers run many cases each, in processes of their own; one that dies or hangs fails its case and is replaced. Cases
that find too little memory beside the others run again alone at the end.
Exit status: 0 when no case failed, 1 otherwise.
"""

import argparse
import ast
import collections
import importlib.util
import itertools
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from pathlib import Path

SUITES = {"2.8": "tests/test_flash_attn.py", "3": "hopper/test_flash_attn.py"}
SECONDS_PER_CASE = 180

# --- What is drawn ----------------------------------------------------------------------------------------------------


def dimensions_of(function) -> list[tuple[list[str], list]]:
    """The names and values of each parametrize mark of a test function."""
    dimensions = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names = mark.args[0]
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            dimensions.append((names, list(mark.args[1])))
    return dimensions


def arguments_of(function, number: int) -> dict:
    """The arguments of case `number` of the product of all marks."""
    arguments = {}
    for names, values in dimensions_of(function):
        number, position = divmod(number, len(values))
        value = values[position]
        arguments.update(zip(names, [value] if len(names) == 1 else value))
    return arguments


def num_cases(function) -> int:
    return math.prod(len(values) for _, values in dimensions_of(function))


def drawn(functions: dict, count: int, seed: int) -> list[tuple[str, int]]:
    """`count` cases, as many of each function as of any other where it has so many, in random order."""
    shares = dict.fromkeys(functions, 0)
    left = count
    while left > 0:
        room = [name for name, function in functions.items() if shares[name] < num_cases(function)]
        if not room:
            break
        for name in room[:left]:
            share = min(max(1, left // len(room)), num_cases(functions[name]) - shares[name])
            shares[name] += share
        left = count - sum(shares.values())
    generator = random.Random(seed)
    cases = [(name, number) for name, share in shares.items()
             for number in generator.sample(range(num_cases(functions[name])), share)]
    generator.shuffle(cases)
    return cases


# --- A suite, loaded under the names that it imports --------------------------------------------------------------------


class LeftOut:
    """What the case that runs now did without."""

    names: set[str] = set()

    @classmethod
    def values(cls, values: list, name: str) -> list:
        if any(value != 0 for value in values):
            cls.names.add(name)
        return [value for value in values if value == 0]


def gradients_or_nan(gradients):
    import torch

    def call(outputs, inputs, *others, **options):
        try:
            return gradients(outputs, inputs, *others, **options)
        except NotImplementedError:
            LeftOut.names.add("backward")
            inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            return tuple(torch.full_like(x, math.nan) for x in inputs)

    return call


def install(repository: Path, device: str) -> None:
    """Puts the drop-in modules where the suites look, beside their repository's helpers."""
    import torch

    import onepass
    import onepass.flash_attn_interface
    onepass.install_as_flash_attn()
    module = onepass.flash_attn
    module.__path__ = [str(repository / "flash_attn")]  # bert_padding, layers.rotary and the like
    module.USE_TRITON_ROCM = False
    module._get_block_size_n = lambda *arguments: 0  # of the random numbers of dropout
    sys.modules["flash_attn_interface"] = onepass.flash_attn_interface
    sys.path.insert(0, str(repository / "hopper"))
    torch.autograd.grad = gradients_or_nan(torch.autograd.grad)
    if device == "cpu":
        torch.cuda.get_device_capability = lambda *arguments: (9, 0)
        helper = sys.modules["flash_attn.ops.triton.rotary"] = types.ModuleType("flash_attn.ops.triton.rotary")
        helper.apply_rotary = no_triton


def no_triton(*arguments, **options):
    raise NotImplementedError("this machine: triton is needed for rotary embedding, and is not supported on a CPU")


def load(repository: Path, suite: str, device: str):
    """The module of a suite, with its functions named SUITE::NAME."""
    path = repository / SUITES[suite]
    text = re.sub(r"^(\s*)attention_chunk_vals = (.*)$", r'\1attention_chunk_vals = _left_out(\2, "attention_chunk")',
                  path.read_text(), flags=re.MULTILINE)
    if device == "cpu":
        text = text.replace('"cuda"', '"cpu"')
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(f"flash_attn_suite_{suite}", None))
    module._left_out = LeftOut.values
    exec(compile(text, str(path), "exec"), module.__dict__)
    return {f"{suite}::{name}": value for name, value in vars(module).items() if name.startswith("test_")}, text


def load_all(repository: Path, suites, device: str, only: str) -> tuple[dict, dict]:
    functions, texts = {}, {}
    for suite in suites:
        found, texts[str(repository / SUITES[suite])] = load(repository, suite, device)
        functions |= {name: function for name, function in found.items() if re.search(only, name)}
    return functions, texts


# --- One case -----------------------------------------------------------------------------------------------------------


def reason_of(message: str) -> str:
    """A short name for what a NotImplementedError refuses."""
    for pattern in (r": (dropout)_p is", r": ((?:a gradient of )?\w+) is given, and is not supported",
                    r": (\w+) is .*not supported", r"(no implementation) on"):
        if found := re.search(pattern, message):
            return found.group(1)
    return message.splitlines()[0]


def names_gradients(node: ast.AST) -> bool:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return any(re.match(r"d(q|k|v|kv|qkv)(_|\d|$)", name) for name in names)


def is_about_gradients(text: str, line: int) -> bool:
    """Whether the statement at that line of a suite names a gradient."""
    return any(names_gradients(node) for node in ast.walk(ast.parse(text))
               if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno <= line <= node.end_lineno)


def asserts_more_than_gradients(text: str, function: str) -> bool:
    (definition,) = (node for node in ast.parse(text).body
                     if isinstance(node, ast.FunctionDef) and node.name == function)
    return any(isinstance(node, ast.Assert) and not names_gradients(node) for node in ast.walk(definition))


def outcome_of(function, arguments: dict, texts: dict) -> dict:
    import pytest
    LeftOut.names = set()
    try:
        function(**arguments)
    except pytest.skip.Exception as skip:
        return {"result": "skipped", "reason": f"by the suite: {skip.msg or 'no reason given'}"}
    except NotImplementedError as refusal:
        return {"result": "refused", "reason": reason_of(str(refusal)), "text": str(refusal)}
    except Exception as error:  # noqa: BLE001 (whatever a case raises is its result)
        if isinstance(error, AttributeError) and "'_OpNamespace' 'flash_attn_3'" in str(error):
            return {"result": "refused", "reason": "their own torch operators", "text": str(error)}
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in texts]
        at = frames[-1] if frames else None
        if not ("backward" in LeftOut.names and at and is_about_gradients(texts[at.filename], at.lineno)):
            words = "".join(traceback.format_exception_only(error)).strip()[-2000:]
            return {"result": "failed", "text": f"line {at.lineno if at else '?'}: {words}"}
    text = texts[function.__code__.co_filename]
    if "backward" in LeftOut.names and not asserts_more_than_gradients(text, function.__name__):
        return {"result": "refused", "reason": "no gradient", "text": "it tests gradients alone"}
    return {"result": "passed"} | ({"left_out": sorted(LeftOut.names)} if LeftOut.names else {})


def work(given) -> None:
    """Reads cases as lines, NAME NUMBER, and answers each with a line of JSON."""
    install(given.repository, given.device)
    functions, texts = load_all(given.repository, given.suite, given.device, given.only)
    answers, sys.stdout = sys.stdout, open("/dev/null", "w", encoding="utf-8")  # the suites print a lot
    import torch
    for line in sys.stdin:
        name, number = line.split()
        arguments = arguments_of(functions[name], int(number))
        begin = time.monotonic()
        found = outcome_of(functions[name], arguments, texts)
        if given.device == "cuda":
            torch.cuda.empty_cache()
        words = ",".join(f"{key}={value}" for key, value in arguments.items())
        found = {"case": f"{name}[{words}]", **found, "seconds": round(time.monotonic() - begin, 3)}
        print(json.dumps(found), file=answers, flush=True)
        if "CUDA error" in found.get("text", ""):
            return  # nothing that follows in this process could be believed


# --- All cases -----------------------------------------------------------------------------------------------------------


class Worker:
    """A process that takes cases, and is replaced when it dies."""

    def __init__(self, command: list[str], log):
        self.command, self.log, self.process = command, log, None

    def answer(self, case: tuple[str, int]) -> dict:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.log, text=True)
        name = f"{case[0]} {case[1]}"
        timer = threading.Timer(SECONDS_PER_CASE, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            found = json.loads(line)
            if "CUDA error" in found.get("text", ""):
                self.process.wait()
            return found
        return {"case": name, "result": "failed", "text": f"its process ended with status {self.process.wait()}"}

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait()


def run(cases: list, num_workers: int, command: list[str], log) -> list[dict]:
    results, waiting, lock = [], collections.deque(cases), threading.Lock()
    begin = time.monotonic()

    def serve():
        worker = Worker(command, log)
        while True:
            with lock:
                if not waiting:
                    break
                case = waiting.popleft()
            found = {"drawn": case, **worker.answer(case)}
            with lock:
                results.append(found)
                if len(results) % 200 == 0:
                    failed = sum(result["result"] == "failed" for result in results)
                    print(f"{len(results)} of {len(cases)} cases, {failed} failed, "
                          f"{time.monotonic() - begin:.0f} s", flush=True)
        worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def lacked_memory(result: dict) -> bool:
    return result["result"] == "failed" and bool(re.search("out of memory|t allocate memory", result["text"]))


def summary_of(results: list[dict]) -> dict:
    counts = collections.Counter(result["result"] for result in results)
    left_out = collections.Counter(name for result in results for name in result.get("left_out", ()))
    by_function: dict = {}
    for result in results:
        row = by_function.setdefault(re.split(r"[\[ ]", result["case"])[0], collections.Counter())
        row[result["result"]] += 1
    return {"drawn": len(results), **{name: counts[name] for name in ("passed", "refused", "skipped", "failed")},
            "passed_without": dict(left_out),
            "refused_for": dict(collections.Counter(r["reason"] for r in results if r["result"] == "refused")),
            "functions": {name: dict(row) for name, row in sorted(by_function.items())}}


def write(given: argparse.Namespace, results: list[dict]) -> dict:
    """The summary, which goes to the file that was asked for, too."""
    summary = summary_of(results)
    if given.out:
        given.out.write_text(json.dumps({"seed": given.seed, "summary": summary, "cases": results}, indent=1))
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=lambda text: Path(text).resolve(), help="a checkout of flash-attention")
    parser.add_argument("--cases", type=int, default=5000, help="how many are drawn (default 5000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suite", choices=SUITES, action="append", help="default: both")
    parser.add_argument("--only", default="", metavar="REGEX", help="test functions, as SUITE::NAME")
    parser.add_argument("--jobs", type=int, default=6, help="processes that share the GPU (default 6)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: for work on this program; slow, and without triton's rotary embedding")
    parser.add_argument("--out", type=Path, help="write everything here, as JSON")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.suite = given.suite or list(SUITES)
    for suite in given.suite:
        if not (given.repository / SUITES[suite]).exists():
            parser.error(f"{given.repository} has no {SUITES[suite]}")
    if given.work:
        work(given)
        return 0

    install(given.repository, given.device)
    functions, _ = load_all(given.repository, given.suite, given.device, given.only)
    if not functions:
        parser.error(f"no test function matches {given.only}")
    cases = drawn(functions, given.cases, given.seed)
    print(f"{len(cases)} cases of {sum(map(num_cases, functions.values()))}, of {len(functions)} test functions")
    command = [sys.executable, __file__, str(given.repository), "--work", "--device", given.device, "--only",
               given.only, *itertools.chain(*(("--suite", suite) for suite in given.suite))]
    with tempfile.TemporaryFile("w+") as log:
        results = run(cases, given.jobs, command, log)
        write(given, results)  # the rest may take long
        if again := [result["drawn"] for result in results if lacked_memory(result)]:
            print(f"{len(again)} cases again, one at a time, that found too little memory")
            results = [result for result in results if not lacked_memory(result)] + run(again, 1, command, log)
        log.seek(0)
        last_words = log.read()[-3000:]
    summary = write(given, results)
    for result in [result for result in results if result["result"] == "failed"][:20]:
        print(f"FAILED {result['case']}: {result['text'][:400]}")
    if summary["failed"]:
        print(last_words)
    print(json.dumps(summary, indent=1))
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
