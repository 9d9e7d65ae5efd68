"""What a caller can get wrong ends in an exception with a text that helps, never in a crash or a silent result."""

import numpy as np
import pytest
import torch
from dlpack import GpuArray
from torch._subclasses.fake_tensor import FakeTensorMode

import onepass

Q = np.ones([1, 3, 4, 8], np.float32)
K = np.ones([1, 5, 2, 8], np.float32)
TORCH_Q, TORCH_K = torch.ones(1, 3, 4, 8), torch.ones(1, 5, 2, 8)


def int64(*values):
    return np.array(values, np.int64)


def read_only(array):
    array.flags.writeable = False
    return array


def fake(tensor):
    with FakeTensorMode() as mode:
        return mode.from_tensor(tensor)


BAD = {
    "a list for q": (lambda: onepass.attention([1.0], K, K), TypeError, "q: a list is given"),
    "a list for v": (lambda: onepass.attention(Q, K, [1.0]), TypeError, "v: a list is given"),
    "a missing k": (lambda: onepass.attention(Q, None, K), ValueError, "k is missing"),
    "a number": (lambda: onepass.attention(np.float32(1), K, K), ValueError, "q: tensor has ndim 0"),
    "float64": (lambda: onepass.attention(Q.astype(float), K, K), ValueError, "q: dtype is float64"),
    "torch's float64": (lambda: onepass.attention(TORCH_Q.double(), TORCH_K, TORCH_K), ValueError, "bits 64"),
    "two dtypes": (lambda: onepass.attention(Q, K.astype(np.float16), K), ValueError, "k has dtype f16"),
    "another byte order": (lambda: onepass.attention(Q.astype(">f4"), K, K), ValueError, "byte order"),
    "a field of a record": (
        lambda: onepass.attention(Q, np.ones([1, 5, 2, 8], [("a", "f4"), ("b", "i2")])["a"], K), ValueError,
        "a stride is 6 bytes"),
    "three dimensions": (lambda: onepass.attention(Q[0], K, K), ValueError, "q [3, 4, 8] has 3 dimensions"),
    "six dimensions": (lambda: onepass.attention(Q, K[None, None], K), ValueError, "k: tensor has ndim 6"),
    "exchanged heads": (lambda: onepass.attention(Q.swapaxes(1, 2), K.swapaxes(1, 2), K.swapaxes(1, 2)), ValueError,
                        "multiple of key heads"),
    "int64 offsets": (lambda: onepass.attention_varlen(Q[0], K[0], K[0], cu_seqlens_q=int64(0, 3),
                                                       cu_seqlens_k=int64(0, 5)), ValueError, "cu_seqlens_q: dtype"),
    "offsets past the end": (
        lambda: onepass.attention_varlen(Q[0], K[0], K[0], cu_seqlens_q=np.array([0, 4], np.int32),
                                         cu_seqlens_k=np.array([0, 5], np.int32)), ValueError, "cu_seqlens_q"),
    "an out of another shape": (lambda: onepass.attention(Q, K, K, out=np.empty_like(K)), ValueError, "out [1, 5, 2"),
    "a list for out": (lambda: onepass.attention(Q, K, K, out=[1.0]), TypeError, "out: a list is given"),
    "an out that is an input": (lambda: onepass.attention(Q, Q, Q, out=Q), ValueError, "start at the same address"),
    "an out that is read-only": (lambda: onepass.attention(Q, K, K, out=read_only(np.empty_like(Q))), ValueError,
                                 "out: the array is read-only"),
    "an out that is expanded": (lambda: onepass.attention(TORCH_Q, TORCH_K, TORCH_K,
                                                          out=torch.ones(1, 3, 1, 8).expand(1, 3, 4, 8)), ValueError,
                                "share memory"),
    "an unknown mask": (lambda: onepass.attention(Q, K, K, causal="left"), ValueError, "causal is 'left'"),
    "an unknown backend": (lambda: onepass.attention(Q, K, K, backend="gpu"), ValueError, "backend is 'gpu'"),
    "a window of one number": (lambda: onepass.attention(Q, K, K, window=3), TypeError, "window is 3"),
    "a window of three": (lambda: onepass.attention(Q, K, K, window=(1, 2, 3)), TypeError, "window is (1, 2, 3)"),
    "a negative window": (lambda: onepass.attention(Q, K, K, window=(-2, 0)), ValueError, "window_left is -2"),
    "an infinite scale": (lambda: onepass.attention(Q, K, K, scale=float("inf")), ValueError, "softmax_scale is inf"),
    "a scale that is a word": (lambda: onepass.attention(Q, K, K, scale="x"), TypeError, "softmax_scale"),
    "no GPU": (lambda: onepass.attention(Q, K, K, backend="cuda"), NotImplementedError, "sm80_forward"),
    "an unknown device": (lambda: onepass.plan(Q, K, K, device="h9000"), ValueError, "device is 'h9000'"),
    "a gradient": (lambda: onepass.attention(TORCH_Q, TORCH_K.clone().requires_grad_(), TORCH_K), NotImplementedError,
                   "k requires a gradient"),
    "the meta device": (lambda: onepass.attention(TORCH_Q.to("meta"), TORCH_K, TORCH_K), ValueError, "meta"),
    "k on the meta device": (lambda: onepass.attention(TORCH_Q, TORCH_K.to("meta"), TORCH_K), ValueError, "k: "),
    "a sparse tensor": (lambda: onepass.attention(TORCH_Q, TORCH_K.to_sparse(), TORCH_K), ValueError, "k: "),
    "a fake tensor": (lambda: onepass.attention(TORCH_Q, fake(TORCH_K), TORCH_K), ValueError, "k "),
    "freed storage": (lambda: onepass.attention(TORCH_Q, freed(TORCH_K.clone()), TORCH_K), ValueError, "k "),
    "a lazily conjugated tensor": (lambda: onepass.attention(TORCH_Q, negated(TORCH_K), TORCH_K), ValueError,
                                   "k is negated lazily"),
    "a merge of unlike shapes": (lambda: onepass.merge(Q, Q[..., 0], Q[:, :2], Q[:, :2, :, 0]), ValueError, "out_b"),
}


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def negated(tensor):
    """The imaginary part of a conjugate: torch keeps a bit that says "negative" instead of values."""
    return torch.complex(tensor, tensor).conj().imag


@pytest.mark.parametrize("case", BAD)
def test_the_exception_says_what_is_wrong(case):
    call, exception, words = BAD[case]
    with pytest.raises(exception) as raised:
        call()
    assert words in str(raised.value)
    if exception is not TypeError:
        assert "\n  Allowed: " in str(raised.value) and "\n  Fix: " in str(raised.value)


def test_nothing_is_written_when_a_call_fails():
    out = np.full_like(Q, 7)
    with pytest.raises(ValueError):
        onepass.attention(Q, K, K[:, :4], out=out)
    assert (out == 7).all()


def test_tensors_that_require_a_gradient_are_taken_where_torch_records_none():
    k = TORCH_K.clone().requires_grad_()
    with torch.no_grad():
        onepass.attention(TORCH_Q, k, k)
    with torch.inference_mode():
        onepass.attention(TORCH_Q, k, k)


class Immutable:
    """An array of a library like JAX: DLPack, and a namespace to make arrays with."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    @classmethod
    def asarray(cls, array):
        return cls(array)

    def __array_namespace__(self):
        return type(self)


def test_other_libraries_arrays_are_read_and_never_written():
    q, k = Immutable(Q), Immutable(K)
    result, lse = onepass.attention(q, k, k, return_lse=True)
    assert type(result) is type(lse) is Immutable
    np.testing.assert_array_equal(result.array, onepass.attention(Q, K, K))
    with pytest.raises(ValueError, match="out: it is a Immutable, which may be immutable"):
        onepass.attention(q, k, k, out=Immutable(Q.copy()))


def test_arrays_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="k is on GPU 0, but q is on the CPU"):
        onepass.attention(Q, GpuArray(4096, K.shape, 32), K)


def test_an_unknown_library_on_a_gpu_is_refused():
    with pytest.raises(NotImplementedError, match="arrays of PyTorch and CuPy on a GPU"):
        onepass.attention(GpuArray(4096, Q.shape, 32), K, K)
