"""DLPack capsules of any address, for arrays that no library here can make."""

import ctypes


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class GpuArray:
    """A row-major array of floats at `address` of a GPU, that speaks DLPack 0.x."""

    def __init__(self, address: int, shape, bits: int, device_idx: int = 0):
        self.shape, self.device_idx = tuple(shape), device_idx
        self._extents = (ctypes.c_int64 * len(self.shape))(*self.shape)
        self._tensor = _ManagedTensor(address, 2, device_idx, len(self.shape), 2, bits, 1,
                                      ctypes.addressof(self._extents), None, 0, None, None)
        self.streams = []  #: what consumers said

    def __dlpack_device__(self):
        return (2, self.device_idx)

    def __dlpack__(self, *, stream):
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)
