"""Random problems and arrays for the tests, as hypothesis strategies."""

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = {"float32": (np.dtype("float32"), torch.float32), "float16": (np.dtype("float16"), torch.float16),
          "bfloat16": (np.dtype(ml_dtypes.bfloat16), torch.bfloat16)}


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The same values and strides; ml_dtypes' bfloat16 goes by its bits."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(array) -> np.ndarray:
    if not isinstance(array, torch.Tensor):
        return np.asarray(array)
    if array.dtype == torch.bfloat16:
        return array.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return array.numpy()


@st.composite
def views(draw, shape, dtype, rng, may_expand=True):
    """Random numbers with a mean that is not 0, of this shape, in one of the layouts that callers have: row-major,
    heads before rows, a slice of something larger (poisoned with NaN), reversed, broadcast."""
    layout = draw(st.sampled_from(["row-major", "exchanged", "slice", "reversed", "expanded"]))
    values = (rng.standard_normal(shape) + 0.25).astype(dtype)
    if layout == "exchanged":
        return np.ascontiguousarray(values.swapaxes(-3, -2)).swapaxes(-3, -2)
    if layout == "slice":
        whole = np.full([extent + 2 for extent in shape], np.nan, dtype)
        inside = whole[tuple(slice(1, extent + 1) for extent in shape)]
        inside[...] = values
        return inside
    if layout == "reversed":
        return values[::-1]
    if layout == "expanded" and may_expand:
        return np.broadcast_to(values[..., :1, :], shape)
    return values


@st.composite
def score_terms(draw, num_heads, rng):
    """The options that change scores and mask, for `onepass.attention` and `reference.evaluate` alike."""
    terms = {}
    if draw(st.booleans()):
        terms["causal"] = draw(st.sampled_from([True, "bottom-right", "top-left"]))
    if draw(st.booleans()):
        terms["window"] = (draw(st.integers(-1, 20)), draw(st.integers(-1, 20)))
    if draw(st.booleans()):
        terms["scale"] = draw(st.sampled_from([0.0, -0.3, 0.5]))
    if draw(st.booleans()):
        terms["softcap"] = 2.5
    if draw(st.booleans()):
        terms["alibi_slopes"] = rng.random(num_heads).astype(np.float32)
    if draw(st.booleans()):
        terms["sinks"] = rng.standard_normal(num_heads).astype(np.float32)
    return terms
