"""A module that stands for CuPy, over the memory of the driver that runs nothing (tests/fake_driver).

Import it in a process of its own, before onepass: then the library finds that driver. `last_launch()` tells what it was
asked to run.
"""

import ctypes
import math
import os
import sys
import types

from dlpack import GpuArray

driver = ctypes.CDLL(os.environ["ONEPASS_FAKE_DRIVER"], mode=ctypes.RTLD_GLOBAL)
_allocate = driver._ZN7onepass4fake13device_memoryEmi
_allocate.restype, _allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]


class _Launch(ctypes.Structure):
    """The beginning of onepass::fake::Launch."""

    _fields_ = [("kernel", ctypes.c_void_p), ("device_idx", ctypes.c_int), ("grid", ctypes.c_uint),
                ("threads", ctypes.c_uint), ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p)]


class _Log(ctypes.Structure):
    """onepass::fake::Log: two vectors."""

    _fields_ = [("calls", ctypes.c_void_p * 3), ("first_launch", ctypes.POINTER(_Launch)),
                ("end_of_launches", ctypes.c_void_p), ("end_of_room", ctypes.c_void_p)]


def last_launch() -> _Launch:
    """The only launch since the last call of this function."""
    find_log = driver._ZN7onepass4fake3logEv
    find_log.restype = ctypes.POINTER(_Log)
    log = find_log()
    assert log.contents.end_of_launches, "nothing was launched"
    launch = _Launch.from_buffer_copy(log.contents.first_launch.contents)
    driver._ZN7onepass4fake3Log5clearEv(log)
    return launch


class Device:
    """The current one is where new arrays go and whose current stream is told."""

    current = 0

    def __init__(self, index):
        self.index = index

    def __enter__(self):
        self.before, Device.current = Device.current, self.index

    def __exit__(self, *error):
        Device.current = self.before


class ndarray(GpuArray):
    """An array in the memory of a fake GPU, float16 or float32."""

    __module__ = "cupy"

    def __init__(self, shape, dtype="float16"):
        bits = int(dtype[-2:])
        address = _allocate(math.prod(shape) * bits // 8, Device.current)
        super().__init__(address, shape, bits, Device.current)
        self.dtype, self.device = dtype, Device(Device.current)


cupy = sys.modules["cupy"] = types.ModuleType("cupy")
cupy.ndarray = ndarray
cupy.empty = lambda shape, dtype: ndarray(shape, dtype)
cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=4660 + Device.current))
