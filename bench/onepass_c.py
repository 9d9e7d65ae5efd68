"""onepass's forward call through its C ABI (include/onepass/onepass.h), for torch tensors on a CPU or a GPU."""

import ctypes
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import torch

MAX_RANK = 5
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float8_e4m3fn: 3, torch.float8_e5m2: 4,
          torch.int32: 5, torch.int8: 6}
DEVICES = {"cpu": 0, "cuda": 1}
CAUSAL_BOTTOM_RIGHT = 1
BACKENDS = {"auto": 0, "cpu": 1, "reference": 2, "cuda": 3}
WORKSPACE_ALIGNMENT = 64


class Tensor(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("rank", c_int32),
                ("shape", c_int64 * MAX_RANK), ("strides", c_int64 * MAX_RANK), ("device", c_int32),
                ("device_idx", c_int32)]


class ForwardArgs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, POINTER(Tensor)) for name in
        ("q", "k", "v", "out", "softmax_lse", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table",
         "alibi_slopes", "bias", "sinks", "k_descale", "v_descale")] + [("stream", c_void_p)]


class BackwardArgs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("forward", POINTER(ForwardArgs))] + [
        (name, POINTER(Tensor)) for name in ("dout", "dq", "dk", "dv", "dlse", "dsinks", "dbias")]


class ForwardOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("causal", c_int32), ("has_softmax_scale", c_int32),
                ("softmax_scale", c_double), ("softcap", c_double), ("window_left", c_int64),
                ("window_right", c_int64), ("max_seqlen_q", c_int64), ("max_seqlen_k", c_int64),
                ("backend", c_int32), ("num_threads", c_int32), ("num_splits", c_int32), ("batch_invariant", c_int32)]


def describe(tensor: torch.Tensor) -> Tensor:
    """The C view of a tensor; the caller keeps the tensor alive."""
    view = Tensor(struct_size=ctypes.sizeof(Tensor), data=tensor.data_ptr(), dtype=DTYPES[tensor.dtype],
                  rank=tensor.dim(), device=DEVICES[tensor.device.type], device_idx=tensor.device.index or 0)
    view.shape[: tensor.dim()] = tensor.shape
    view.strides[: tensor.dim()] = tensor.stride()
    return view


class Forward:
    """One prepared call: the structs are filled here, so that calling it costs what a C program pays. On a GPU the
    call is queued on `stream`, a CUstream as a number; 0 is the default stream, which is torch's default, too.
    more: further tensors by their names in the arguments, such as block_table and seqused_k."""

    def __init__(self, library: "Library", q, k, v, out, causal: bool, num_threads: int = 0, backend: str = "auto",
                 num_splits: int = 0, max_seqlen_k: int = -1, **more: torch.Tensor):
        self.library = library
        self.kept = (q, k, v, out, *more.values())
        self.views = [describe(t) for t in self.kept]
        self.args = ForwardArgs(struct_size=ctypes.sizeof(ForwardArgs))
        for name, view in zip(("q", "k", "v", "out", *more), self.views):
            setattr(self.args, name, ctypes.pointer(view))
        self.options = ForwardOptions()
        library.check(library.c.onepass_forward_options_init(byref(self.options), ctypes.sizeof(ForwardOptions)))
        self.options.causal = CAUSAL_BOTTOM_RIGHT if causal else 0
        self.options.num_threads = num_threads
        self.options.num_splits = num_splits
        self.options.max_seqlen_k = max_seqlen_k
        self.options.backend = BACKENDS[backend]
        self.pointers = (byref(self.args), byref(self.options))

    def use_stream(self, stream: int) -> None:
        self.args.stream = stream

    def __call__(self) -> torch.Tensor:
        if self.library.c.onepass_forward(*self.pointers) != 0:
            self.library.fail()
        return self.kept[3]

    def explain(self) -> str:
        """The plan of this call, as text."""
        return Plan(self).explain()


class Backward:
    """One prepared backward call of a Forward with softmax_lse, which has run: its gradients."""

    def __init__(self, forward: Forward, dout, dq, dk, dv):
        self.library, self.forward = forward.library, forward
        self.kept = (dq, dk, dv, dout)
        self.views = [describe(t) for t in self.kept]
        self.args = BackwardArgs(struct_size=ctypes.sizeof(BackwardArgs), forward=ctypes.pointer(forward.args))
        for name, view in zip(("dq", "dk", "dv", "dout"), self.views):
            setattr(self.args, name, ctypes.pointer(view))
        self.pointers = (byref(self.args), byref(forward.options))


class Plan:
    """The plan of a Forward or Backward on the device of its tensors, made once; calling it is one run of the plan in
    a workspace that is kept."""

    def __init__(self, call: Forward | Backward):
        self.call, self.library = call, call.library
        self.c = self.library.c
        backward = isinstance(call, Backward)
        create = self.c.onepass_backward_plan_create if backward else self.c.onepass_plan_create
        self.run = self.c.onepass_backward_plan_run if backward else self.c.onepass_plan_run
        self.handle = c_void_p()
        self.library.check(create(*call.pointers, None, byref(self.handle)))
        size = c_size_t()
        self.library.check(self.c.onepass_plan_workspace_bytes(self.handle, byref(size)))
        self.workspace_bytes = size.value
        self.memory = torch.empty(size.value + WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=call.kept[0].device)
        address = -(-self.memory.data_ptr() // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        self.run_arguments = (self.handle, call.pointers[0], c_void_p(address if size.value else None), size)

    def __call__(self) -> torch.Tensor:
        if self.run(*self.run_arguments) != 0:
            self.library.fail()
        return self.call.kept[3]

    def explain(self) -> str:
        text = ctypes.c_char_p()
        self.library.check(self.c.onepass_plan_explain(self.handle, byref(text)))
        return text.value.decode()

    def __del__(self):
        self.c.onepass_plan_destroy(self.handle)


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
