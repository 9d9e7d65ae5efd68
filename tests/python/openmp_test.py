"""Processes in which OpenMP has others: torch, a library that brings a runtime of its own, a parent that forked."""

import subprocess
import sys

import pytest

CHECK = """
import numpy as np
rng = np.random.default_rng(5)
q, k, v = (rng.standard_normal([2, 300, 8, 64]).astype(np.float32) for _ in range(3))

def check():
    np.testing.assert_array_equal(onepass.attention(q, k, v, num_threads=4),
                                  onepass.attention(q, k, v, num_threads=1))

def runtimes():
    return {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line or "libomp" in line}
"""

WITH_TORCH = """
torch.set_num_threads(4)
for _ in range(10):
    assert (torch.mm(torch.ones(512, 512), torch.ones(512, 512)) == 512).all()
    check()
assert runtimes()
"""

WITH_ANOTHER = """
import ctypes, shutil, sys, tempfile, threading
import onepass
check()
(loaded,) = runtimes()
other = ctypes.CDLL(shutil.copy(loaded, tempfile.mkdtemp() + "/libgomp_another.so"))
assert len(runtimes()) == 2
for _ in range(10):
    seen = set()
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.add(threading.get_native_id()))
    other.GOMP_parallel(body, None, 4, 0)
    assert len(seen) == 4
    check()
"""


AFTER_FORK = """
import multiprocessing, os, onepass
check()

def in_child(_):
    check()
    out, lse = onepass.attention(q, k, v, return_lse=True)
    onepass.merge(out, lse, out, lse, num_threads=4)
    return onepass.plan(q, k, v, num_threads=4).num_threads

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(in_child, range(4)).get(timeout=60) == [1] * 4
assert onepass.plan(q, k, v, num_threads=4).num_threads == 4
"""


@pytest.mark.parametrize("program", [
    pytest.param(CHECK + AFTER_FORK, id="forked"),
    pytest.param("import torch; torch.mm(torch.ones(512, 512), torch.ones(512, 512)); import onepass" + CHECK
                 + WITH_TORCH, id="torch_first"),
    pytest.param("import onepass; import torch" + CHECK + WITH_TORCH, id="torch_second"),
    pytest.param(CHECK + WITH_ANOTHER, id="another_runtime"),
])
def test_results_do_not_depend_on_who_else_uses_threads(program):
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
