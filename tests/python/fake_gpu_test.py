"""What reaches a GPU's driver from Python, on the driver that runs nothing: streams, devices, new arrays."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "build" / "release" / "tests" / "fake_driver" / "new" / "libcuda.so.1"

pytestmark = [
    pytest.mark.skipif(not DRIVER.exists(), reason="the fake driver is built by make test"),
    pytest.mark.skipif(importlib.util.find_spec("nvidia") is None, reason="no NVRTC: scripts/setup.sh test"),
]


def run(program, tmp_path):
    environment = {**os.environ, "ONEPASS_FAKE_DRIVER": str(DRIVER), "PYTHONPATH": str(Path(__file__).parent),
                   "ONEPASS_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_work_goes_to_the_current_stream_of_the_arrays_library_and_device(tmp_path):
    run("""
from fake_cupy import Device, last_launch, ndarray
import onepass

with Device(1):
    q, k, v = ndarray((2, 40, 4, 64)), ndarray((2, 50, 2, 64)), ndarray((2, 50, 2, 32))
out, lse = onepass.attention(q, k, v, softcap=30.0, return_lse=True)
launch = last_launch()
assert (launch.stream, launch.device_idx) == (4661, 1)
assert type(out) is ndarray and (out.shape, out.dtype, out.device_idx) == ((2, 40, 4, 32), "float16", 1)
assert type(lse) is ndarray and (lse.shape, lse.dtype, lse.device_idx) == ((2, 4, 40), "float32", 1)
assert all(set(array.streams) == {4661} for array in (q, k, v, out, lse))  # other work of the arrays comes first

class Stream:
    cuda_stream = 7

assert onepass.attention(q, k, v, softcap=30.0, out=out, stream=Stream) is out
assert last_launch().stream == 7 and q.streams[-1] == 7
onepass.attention(q, k, v, softcap=30.0, stream=0)
assert last_launch().stream is None
assert q.streams[-1] == 1  # DLPack's word for the default stream
""", tmp_path)


def test_what_a_gpu_does_not_take_is_refused(tmp_path):
    run("""
from fake_cupy import ndarray
import numpy as np, onepass

q = ndarray((1, 8, 2, 64))
try:
    onepass.attention(q, q, np.ones((1, 8, 2, 64), np.float16))
except ValueError as error:
    assert "v is on the CPU, but q is on GPU 0" in str(error), error
else:
    raise SystemExit("not refused")
try:
    onepass.attention(*[ndarray((1, 8, 2, 64), "float32")] * 3)
except NotImplementedError as error:
    assert "sm80_forward" in str(error), error
else:
    raise SystemExit("not refused")
""", tmp_path)


def test_torchs_tensors_streams_and_workspaces_come_from_its_table(tmp_path):
    run("""
import fake_torch
from fake_torch import FLOAT16, FLOAT32, STREAM, Tensor, last_launch
import onepass

q, k = Tensor((2, 96, 4, 64), device_idx=1), Tensor((2, 96, 4, 64), device_idx=1)
out, lse = onepass.attention(q, k, k, num_splits=2, return_lse=True)
launch = last_launch()
assert (launch.stream, launch.device_idx) == (STREAM + 1, 1)
assert (out.shape, out.dtype, out.device_idx) == (q.shape, FLOAT16, 1)
assert (lse.shape, lse.dtype, lse.device_idx) == ((2, 4, 96), FLOAT32, 1)
bytes_of_both_splits = 2 * 2 * 4 * 96 * (64 + 1) * 4
assert fake_torch.allocations == [(1, bytes_of_both_splits)] and fake_torch.num_freed == 1

onepass.attention(q, k, k, num_splits=2, stream=5)  # memory of the current stream would come too early there
assert last_launch().stream == 5 and len(fake_torch.allocations) == 1

fake_torch.answer = b"out of memory"
try:
    onepass.attention(q, k, k, num_splits=2)
except RuntimeError as error:
    assert "no workspace of %d bytes and answered: out of memory" % bytes_of_both_splits in str(error), error
else:
    raise SystemExit("not refused")
""", tmp_path)
