"""The libraries that arrays come from, torch aside: how each makes an output, and which stream its work is on.

The extension module asks (python/src/library.cpp), which knows torch itself. No library is imported here but the one
that an array came from, which is loaded already.
"""

import sys
from typing import Any, Callable, NamedTuple

_DLPACK_CPU = 1  # kDLCPU


class Kind(NamedTuple):
    """What differs between the libraries."""

    empty: Callable[..., Any]  #: (like, shape, f32=False): an array on like's device, of like's dtype or of float32
    current_stream: Callable[[Any], int]  #: the handle of the stream that the caller's work for this array is on
    finish: Callable[[Any], Any] = lambda array: array  #: what the caller gets for an array that `empty` made


def _cupy_empty(like, shape, f32=False):
    with like.device:
        return sys.modules["cupy"].empty(shape, dtype="float32" if f32 else like.dtype)


def _cupy_stream(array) -> int:
    with array.device:
        return sys.modules["cupy"].cuda.get_current_stream().ptr


def _numpy_empty(like, shape, f32=False):
    import numpy
    return numpy.empty(shape, dtype="float32" if f32 else like.dtype)


_CUPY = Kind(_cupy_empty, _cupy_stream)
_NUMPY = Kind(_numpy_empty, lambda array: 0)


def _other(array, name: str) -> Kind:
    """Any library with __dlpack__. Its arrays may be immutable (JAX): results are NumPy arrays, which it takes over."""
    if not (hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")):
        raise TypeError(f"{name}: a {type(array).__name__} is given.\n"
                        "  Allowed: an array of NumPy, PyTorch, CuPy, JAX, or any other with __dlpack__.\n"
                        "  Fix: convert it, as numpy.asarray does.")
    if array.__dlpack_device__()[0] != _DLPACK_CPU:
        raise NotImplementedError(f"{name}: it is a {type(array).__module__} array on a GPU.\n"
                                  "  Allowed: arrays of PyTorch and CuPy on a GPU, of any library on the CPU.\n"
                                  "  Fix: hand it to one of these, as torch.from_dlpack does.")
    if hasattr(array, "__array_namespace__"):
        return _NUMPY._replace(finish=array.__array_namespace__().asarray)
    return _NUMPY


def kind_of(array, name: str) -> Kind:
    """The kind of an array that is none of torch's; that of q decides what results are.

    Raises:
        TypeError: it is no array.
        NotImplementedError: it is on a GPU, of a library whose streams are not known.
    """
    if hasattr(array, "__array_interface__"):
        return _NUMPY
    return _CUPY if type(array).__module__.partition(".")[0] == "cupy" else _other(array, name)


def check_out(out) -> None:
    """Refuses to write into arrays, none of torch's, of libraries that promise their users never to change one, and do not say so through
    DLPack (JAX).

    Raises:
        ValueError: out is such an array; TypeError and NotImplementedError as kind_of.
    """
    if kind_of(out, "out").finish is not Kind._field_defaults["finish"]:
        raise ValueError(f"out: it is a {type(out).__name__}, which may be immutable.\n"
                         "  Allowed: arrays of NumPy, PyTorch and CuPy.\n  Fix: leave out away and take the result.")


def handle_of(stream) -> int:
    """A stream as a number: an int, torch's (cuda_stream) or CuPy's (ptr)."""
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return getattr(stream, attribute)
    return int(stream)
