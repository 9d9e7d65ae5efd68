"""A module that stands for torch 2.10 or later, over the memory of the driver that runs nothing (tests/fake_driver).

Its tensors hand themselves out through DLPack's C table, as torch's do, and so do its streams and its allocator. Import
it in a process of its own, before onepass. `allocations` and `num_freed` tell what the allocator was asked.
"""

import ctypes
import math
import sys
import types

from fake_cupy import _allocate, last_launch  # noqa: F401 (for the tests)

FLOAT16 = (2, 16)
FLOAT32 = (2, 32)
STREAM = 777  #: the current one of GPU 0; that of GPU 1 has the next number
allocations = []  #: (device, bytes), in order
num_freed = 0
answer = None  #: what the allocator refuses with


class _DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64),
                ("tensor", _DlTensor)]


_SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _free(managed):
    global num_freed
    num_freed += 1


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_DlTensor), ctypes.POINTER(ctypes.POINTER(_Managed)), ctypes.c_void_p,
                  _SET_ERROR)
def _new(prototype, result, context, set_error):
    if answer is not None:
        set_error(context, b"MemoryError", answer)
        return -1
    wanted = prototype.contents
    assert (wanted.device_type, wanted.ndim, wanted.code, wanted.bits, wanted.lanes) == (2, 1, 1, 8, 1)
    allocations.append((wanted.device_id, wanted.shape[0]))
    tensor = _DlTensor(_allocate(wanted.shape[0], wanted.device_id), 2, wanted.device_id, 1, 1, 8, 1, None, None, 0)
    _new.kept = _Managed(1, 0, None, _free, 0, tensor)
    result[0] = ctypes.pointer(_new.kept)
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DlTensor))
def _show(tensor, result):
    extents = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
    tensor.kept = extents
    result[0] = _DlTensor(tensor.address, 2, tensor.device_idx, len(tensor.shape), *tensor.dtype, 1, extents, None, 0)
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _current_stream(device_type, device_idx, result):
    assert device_type == 2
    result[0] = STREAM + device_idx
    return 0


class _Table(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
                *[(name, ctypes.c_void_p) for name in ("new", "from_object", "to_object", "show", "current_stream")]]


_table = _Table(1, 3, None, *[ctypes.cast(function, ctypes.c_void_p) if function else None
                              for function in (_new, None, None, _show, _current_stream)])
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


_NAME = b"dlpack_exchange_api"  # a capsule keeps no copy


class Tensor:
    __dlpack_c_exchange_api__ = _capsule(ctypes.addressof(_table), _NAME, None)
    requires_grad = False

    def __init__(self, shape, dtype=FLOAT16, device_idx=0):
        self.shape, self.dtype, self.device_idx = tuple(shape), dtype, device_idx
        self.address = _allocate(math.prod(shape) * dtype[1] // 8, device_idx)

    def is_neg(self):
        return False

    def new_empty(self, shape, dtype=None):
        return Tensor(shape, dtype or self.dtype, self.device_idx)


torch = sys.modules["torch"] = types.ModuleType("torch")
torch.Tensor = Tensor
torch.nn = types.SimpleNamespace(Parameter=type("Parameter", (Tensor,), {}))
torch.float32 = FLOAT32
torch.is_grad_enabled = lambda: True
torch.empty_like = lambda like: Tensor(like.shape, like.dtype, like.device_idx)
