"""onepass's forward call through its C ABI (include/onepass/onepass.h), for torch tensors in CPU memory."""

import ctypes
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import torch

MAX_RANK = 5
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
CAUSAL_BOTTOM_RIGHT = 1


class Tensor(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("rank", c_int32),
                ("shape", c_int64 * MAX_RANK), ("strides", c_int64 * MAX_RANK), ("device", c_int32),
                ("device_idx", c_int32)]


class ForwardArgs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, POINTER(Tensor)) for name in
        ("q", "k", "v", "out", "softmax_lse", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table",
         "alibi_slopes", "bias", "sinks", "k_descale", "v_descale")]


class ForwardOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("causal", c_int32), ("has_softmax_scale", c_int32),
                ("softmax_scale", c_double), ("softcap", c_double), ("window_left", c_int64),
                ("window_right", c_int64), ("max_seqlen_q", c_int64), ("max_seqlen_k", c_int64),
                ("backend", c_int32), ("num_threads", c_int32), ("num_splits", c_int32), ("reserved", c_int32)]


def describe(tensor: torch.Tensor) -> Tensor:
    """The C view of a tensor; the caller keeps the tensor alive."""
    view = Tensor(struct_size=ctypes.sizeof(Tensor), data=tensor.data_ptr(), dtype=DTYPES[tensor.dtype],
                  rank=tensor.dim())
    view.shape[: tensor.dim()] = tensor.shape
    view.strides[: tensor.dim()] = tensor.stride()
    return view


class Forward:
    """One prepared call: the structs are filled here, so that calling it costs what a C program pays."""

    def __init__(self, library: "Library", q, k, v, out, causal: bool, num_threads: int):
        self.library = library
        self.kept = (q, k, v, out)
        self.views = [describe(t) for t in self.kept]
        self.args = ForwardArgs(struct_size=ctypes.sizeof(ForwardArgs))
        for name, view in zip(("q", "k", "v", "out"), self.views):
            setattr(self.args, name, ctypes.pointer(view))
        self.options = ForwardOptions()
        library.check(library.c.onepass_forward_options_init(byref(self.options), ctypes.sizeof(ForwardOptions)))
        self.options.causal = CAUSAL_BOTTOM_RIGHT if causal else 0
        self.options.num_threads = num_threads
        self.pointers = (byref(self.args), byref(self.options))

    def __call__(self) -> torch.Tensor:
        if self.library.c.onepass_forward(*self.pointers) != 0:
            self.library.fail()
        return self.kept[3]

    def explain(self) -> str:
        """The plan of this call as text."""
        plan, text = c_void_p(), ctypes.c_char_p()
        self.library.check(self.library.c.onepass_plan_create(*self.pointers, None, byref(plan)))
        try:
            self.library.check(self.library.c.onepass_plan_explain(plan, byref(text)))
            return text.value.decode()
        finally:
            self.library.c.onepass_plan_destroy(plan)


class Library:
    """The loaded shared library."""

    def __init__(self, path: Path):
        self.path = path
        self.c = ctypes.CDLL(str(path))
        self.c.onepass_version.restype = ctypes.c_char_p
        self.c.onepass_last_error_message.restype = ctypes.c_char_p
        self.c.onepass_plan_destroy.restype = None

    def version(self) -> str:
        return self.c.onepass_version().decode()

    def check(self, status: int) -> None:
        if status != 0:
            self.fail()

    def fail(self) -> None:
        raise RuntimeError(self.c.onepass_last_error_message().decode())


def find_library(root: Path) -> Path:
    """The shared library of the release build."""
    found = sorted((root / "build" / "release").rglob("libonepass.so"))
    if not found:
        raise SystemExit(f"bench: there is no libonepass.so below {root / 'build' / 'release'}.\n"
                         "  Fix: make build")
    return found[0]
