#!/usr/bin/env python3
"""Run flash-attn's own test suites against onepass's drop-in modules, from a checkout of their repository.

    git clone https://github.com/Dao-AILab/flash-attention    # v2.8.3 has both suites
    python verify/flash_attn_suites.py flash-attention --cases 5000 --out suites.json

The suites are tests/test_flash_attn.py (2.8) and hopper/test_flash_attn.py (the FlashAttention-3 interface); they have
some 600,000 cases, of which as many as asked for are drawn at random, equally over all test functions; but of one whose
cases take most of a GPU each, one in 200. Those that need the most memory run first. They find
`onepass.flash_attn` under the name flash_attn, and `onepass.flash_attn_interface` under flash_attn_interface; their
own helpers (padding, rotary embedding) come from the checkout. Needs torch, pytest and einops; on a GPU triton, too,
for the cases with rotary embedding. Nothing of the checkout is changed or kept.

With --device cpu the same cases run without a GPU: "cuda" is read as "cpu" in the suites, loops that look for races run
twice, sequences are at most 256 long (--longest), and what may need more memory than is free is skipped. It checks the
modules and the CPU's implementations.

What the modules do not have is left out where the rest of the case can still be checked, and listed with the case:
  backward           where a gradient is refused it is NaN; a case passes whose other assertions hold
  attention_chunk    of the values that a case tries, 0 alone
  exact zeros        a bound of 0, where the reference's gradient is 0 because rows see one key, is read as 1e-5
Any other argument that is refused (NotImplementedError) ends its case as "refused", with the reason.

Workers run many cases each, in processes of their own; one that dies or hangs fails its case and is replaced. A case
starts when the memory that it may need is free beside the others'; one that finds too little all the same runs again
alone at the end. Failed cases are told by cause: where they failed, and the error without its numbers.
Exit status: 0 when no case failed, 1 otherwise.
"""

import argparse
import ast
import collections
import importlib.util
import itertools
import json
import math
import os
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
GIB = 1 << 30

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


def drawn(functions: dict, count: int, seed: int, limits: dict) -> list[tuple[str, int]]:
    """`count` cases, as many of each function as of any other where its limit allows so many, in random order."""
    shares = dict.fromkeys(functions, 0)
    left = count
    while left > 0:
        room = [name for name in functions if shares[name] < limits[name]]
        if not room:
            break
        for name in room[:left]:
            share = min(max(1, left // len(room)), limits[name] - shares[name])
            shares[name] += share
        left = count - sum(shares.values())
    generator = random.Random(seed)
    cases = [(name, number) for name, share in shares.items()
             for number in generator.sample(range(num_cases(functions[name])), share)]
    generator.shuffle(cases)
    return cases


def limit_of(function, definition: str, count: int) -> int:
    """How many of `count` cases may be a function's: one in 200 where each takes most of a GPU, so that none like it
    runs beside it."""
    return min(num_cases(function), max(1, count // 200) if taken_by(definition) > 32 else count)


def taken_by(definition: str) -> int:
    """GiB that a test takes only to leave less ("N * 1024 ** 3")."""
    return sum(map(int, re.findall(r"(\d+) \* 1024 \*\* 3", definition)))


def keep_short(function, longest: int) -> None:
    """Takes the values that ask for sequences longer than that from the marks of a test function."""
    import pytest

    def is_short(names, value):
        return all(not name.startswith("seqlen") or number <= longest
                   for name, number in zip(names, [value] if len(names) == 1 else value))

    function.pytestmark = [pytest.mark.parametrize(names, [value for value in values if is_short(names, value)]).mark
                           for names, values in dimensions_of(function)]


def memory_of(arguments: dict, definition: str) -> int:
    """Bytes that a case may need: for up to 60 sequences times heads what the suites' references keep, some 16 matrices of
    scores and three copies of q and k (of each split) in float32, and what the test takes only to leave less."""
    lengths = [value for name, value in arguments.items() if re.fullmatch("seqlen(_q|_k)?", name)] or [1]
    scores, rows = lengths[0] * lengths[-1], lengths[0] + lengths[-1]
    copies = 3 * (1 + arguments.get("num_splits", 0))
    return (2 + taken_by(definition)) * GIB + 60 * 4 * (16 * scores + copies * rows * arguments.get("d", 256))


# --- A suite, loaded under the names that it imports --------------------------------------------------------------------


class LeftOut:
    """What the case that runs now did without."""

    names: set[str] = set()

    @classmethod
    def values(cls, values: list, name: str) -> list:
        if any(value != 0 for value in values):
            cls.names.add(name)
        return [value for value in values if value == 0]

    @classmethod
    def is_within(cls, difference: float, bound: float) -> bool:
        if bound == 0 < difference <= 1e-5:
            cls.names.add("exact zeros")
            return True
        return difference <= bound


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
        torch.cuda.get_device_properties = lambda *arguments: types.SimpleNamespace(total_memory=141 * GIB)
        helper = sys.modules["flash_attn.ops.triton.rotary"] = types.ModuleType("flash_attn.ops.triton.rotary")
        helper.apply_rotary = apply_rotary


def apply_rotary(x, cos, sin, seqlen_offsets=0, interleaved=False, **of_gradients_and_packed_tensors):
    """For a CPU, what flash-attn has in triton: x [b, s, heads, d], cos and sin [positions, pairs]."""
    import torch
    positions = torch.arange(x.shape[1]) + torch.as_tensor(seqlen_offsets).reshape(-1, 1)
    cos, sin = (table[positions].float()[:, :, None] for table in (cos, sin))
    turned = x.clone()
    pairs = cos.shape[-1]
    a, b = ((slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved
            else (slice(pairs), slice(pairs, 2 * pairs)))
    turned[..., a] = (x[..., a] * cos - x[..., b] * sin).to(x.dtype)
    turned[..., b] = (x[..., a] * sin + x[..., b] * cos).to(x.dtype)
    return turned


def with_bounds_of_gradients(text: str) -> ast.Module:
    """A suite whose `assert x <= y` of gradients asks LeftOut.is_within."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if (isinstance(node, ast.Assert) and names_gradients(node) and isinstance(node.test, ast.Compare)
                and [type(operator) for operator in node.test.ops] == [ast.LtE]):
            sides = [node.test.left, *node.test.comparators]
            node.test = ast.copy_location(ast.Call(ast.Name("_is_within", ast.Load()), sides, []), node.test)
    return ast.fix_missing_locations(tree)


def load(repository: Path, suite: str, device: str, longest: int | None):
    """The module of a suite, with its functions named SUITE::NAME."""
    path = repository / SUITES[suite]
    text = re.sub(r"^(\s*)attention_chunk_vals = (.*)$", r'\1attention_chunk_vals = _left_out(\2, "attention_chunk")',
                  path.read_text(), flags=re.MULTILINE)
    if device == "cpu":
        text = text.replace('"cuda"', '"cpu"')
        text = re.sub(r"in range\(\d+0\)", "in range(2)", text)  # repeats, which look for races
        text = re.sub(r"\d+ \* 1024 \*\* 3", "1", text)  # a GPU's memory, taken to leave less
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(f"flash_attn_suite_{suite}", None))
    module._left_out = LeftOut.values
    module._is_within = LeftOut.is_within
    exec(compile(with_bounds_of_gradients(text), str(path), "exec"), module.__dict__)
    for name, function in vars(module).items():
        if longest is not None and name.startswith("test_"):
            keep_short(function, longest)
    return {f"{suite}::{name}": value for name, value in vars(module).items() if name.startswith("test_")}, text


def load_all(given: argparse.Namespace) -> tuple[dict, dict]:
    """The test functions by name, and the texts of the suites by path."""
    functions, texts = {}, {}
    for suite in given.suite:
        found, texts[str(given.repository / SUITES[suite])] = load(given.repository, suite, given.device, given.longest)
        functions |= {name: function for name, function in found.items() if re.search(given.only, name)}
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


def definition_of(function, texts: dict) -> ast.FunctionDef:
    nodes = ast.parse(texts[function.__code__.co_filename]).body
    (found,) = (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function.__name__)
    return found


def statement_at(text: str, line: int) -> ast.stmt:
    """The innermost statement at that line of a suite."""
    return [node for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno][-1]


def cause_of(error: Exception, line: int, statement: ast.stmt | None, frame) -> tuple[str, str]:
    """What failed, in one line that is the same for all cases that fail so, and the numbers of this one."""
    words = "".join(traceback.format_exception_only(error)).strip()
    if not (isinstance(error, AssertionError) and isinstance(statement, ast.Assert)):
        return f"line {line}: " + re.sub(r"\d+(\.\d+)?", "N", words.splitlines()[0])[:300], words[:2000]
    words = ast.unparse(statement)
    sides = (statement.test.left, *statement.test.comparators) if isinstance(statement.test, ast.Compare) else ()
    numbers = [str(eval(ast.unparse(side), frame.f_globals, frame.f_locals)) for side in sides]
    return f"line {line}: {words}"[:300], "; ".join((words, *numbers))[:2000]


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
        places = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)
                  if frame.f_code.co_filename in texts]
        frame, line = places[-1] if places else (None, 0)
        statement = statement_at(texts[frame.f_code.co_filename], line) if frame else None
        if not ("backward" in LeftOut.names and frame and names_gradients(statement)):
            cause, text = cause_of(error, line, statement, frame)
            return {"result": "failed", "cause": cause, "text": text}
    if "backward" in LeftOut.names and not any(isinstance(node, ast.Assert) and not names_gradients(node)
                                               for node in ast.walk(definition_of(function, texts))):
        return {"result": "refused", "reason": "no gradient", "text": "it tests gradients alone"}
    return {"result": "passed"} | ({"left_out": sorted(LeftOut.names)} if LeftOut.names else {})


def work(given) -> None:
    """Reads cases as lines, NAME NUMBER, and answers each with a line of JSON."""
    if given.device == "cpu":  # a core for each worker
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[given.work % len(cores)]})
    install(given.repository, given.device)
    functions, texts = load_all(given)
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

    def answer(self, case: tuple[str, int, int]) -> dict:
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
        ending = f"its process ended with status {self.process.wait()}"
        return {"case": name, "result": "failed", "cause": ending, "text": ending}

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait()


class Memory:
    """What the cases that run now may take together."""

    def __init__(self, size: int):
        self.size, self.left, self.changed = size, size, threading.Condition()

    def take_first_that_fits(self, waiting: list) -> tuple | None:
        """The first case, of (name, number, bytes), for which there is room now; waits if there is none yet."""
        with self.changed:
            while waiting:
                for position, case in enumerate(waiting):
                    if case[2] <= self.left or self.left == self.size:  # the largest may be too large: it runs alone
                        self.left -= case[2]
                        return waiting.pop(position)
                self.changed.wait()
            return None

    def give_back(self, case: tuple) -> None:
        with self.changed:
            self.left += case[2]
            self.changed.notify_all()


def memory_for_cases(device: str, num_workers: int) -> int:
    """What is free now, but for the context of each worker on a GPU."""
    if device == "cuda":
        import torch
        return torch.cuda.mem_get_info()[0] - num_workers * GIB
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def run(cases: list, num_workers: int, memory: int, command: list[str], log, on_progress) -> list[dict]:
    """The results of all cases; `on_progress` gets those that there are, now and then."""
    results, waiting, room, lock = [], list(cases), Memory(memory), threading.Lock()
    begin = time.monotonic()

    def serve(index):
        worker = Worker([*command, "--work", str(index)], log)
        while case := room.take_first_that_fits(waiting):
            found = {"drawn": case, **worker.answer(case)}
            room.give_back(case)
            with lock:
                results.append(found)
                if len(results) % 200 == 0:
                    failed = sum(result["result"] == "failed" for result in results)
                    print(f"{len(results)} of {len(cases)} cases, {failed} failed, "
                          f"{time.monotonic() - begin:.0f} s", flush=True)
                    on_progress(results)
        worker.stop()

    threads = [threading.Thread(target=serve, args=[index]) for index in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def lacked_memory(result: dict) -> bool:
    return result["result"] == "failed" and bool(re.search("out of memory|t allocate memory", result["text"]))


def function_of(result: dict) -> str:
    return re.split(r"[\[ ]", result["case"])[0]


def summary_of(results: list[dict]) -> dict:
    counts = collections.Counter(result["result"] for result in results)
    left_out = collections.Counter(name for result in results for name in result.get("left_out", ()))
    by_function: dict = {}
    for result in results:
        row = by_function.setdefault(function_of(result), collections.Counter())
        row[result["result"]] += 1
    causes = collections.Counter(f"{function_of(result)} {result['cause']}" for result in results
                                 if result["result"] == "failed")
    return {"drawn": len(results), **{name: counts[name] for name in ("passed", "refused", "skipped", "failed")},
            "passed_without": dict(left_out),
            "refused_for": dict(collections.Counter(r["reason"] for r in results if r["result"] == "refused")),
            "failed_for": dict(causes.most_common()),
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
                        help="cpu: the same cases where there is no GPU (default cuda)")
    parser.add_argument("--longest", type=int, metavar="N",
                        help="draw no case with longer sequences (default: any; 256 with --device cpu)")
    parser.add_argument("--out", type=Path, help="write everything here, as JSON")
    parser.add_argument("--work", type=int, metavar="WORKER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.suite = given.suite or list(SUITES)
    if given.longest is None and given.device == "cpu":
        given.longest = 256
    for suite in given.suite:
        if not (given.repository / SUITES[suite]).exists():
            parser.error(f"{given.repository} has no {SUITES[suite]}")
    if given.work is not None:
        work(given)
        return 0

    install(given.repository, given.device)
    functions, texts = load_all(given)
    if not functions:
        parser.error(f"no test function matches {given.only}")
    definitions = {name: ast.unparse(definition_of(function, texts)) for name, function in functions.items()}
    limits = {name: limit_of(function, definitions[name], given.cases) for name, function in functions.items()}
    cases = [(name, number, memory_of(arguments_of(functions[name], number), definitions[name]))
             for name, number in drawn(functions, given.cases, given.seed, limits)]
    cases.sort(key=lambda case: -case[2])  # the largest run one at a time, and the others beside them
    print(f"{len(cases)} cases of {sum(map(num_cases, functions.values()))}, of {len(functions)} test functions")
    command = [sys.executable, __file__, str(given.repository), "--device", given.device, "--only", given.only,
               *itertools.chain(*(("--suite", suite) for suite in given.suite))]
    if given.longest is not None:
        command += ["--longest", str(given.longest)]
    with tempfile.TemporaryFile("w+") as log:
        memory = memory_for_cases(given.device, given.jobs)
        too_large = [case for case in cases if case[2] > memory] if given.device == "cpu" else []
        skipped = [{"drawn": case, "case": f"{case[0]} {case[1]}", "result": "skipped", "reason": "it needs more memory"}
                   for case in too_large]
        results = skipped + run([case for case in cases if case not in too_large], given.jobs, memory, command, log,
                                lambda results: write(given, skipped + results))
        write(given, results)  # the rest may take long
        if again := [result["drawn"] for result in results if lacked_memory(result)]:
            print(f"{len(again)} cases again, one at a time, that found too little memory")
            kept = [result for result in results if not lacked_memory(result)]
            results = kept + run(again, 1, memory, command, log, lambda results: write(given, kept + results))
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
