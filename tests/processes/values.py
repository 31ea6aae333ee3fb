"""Tensors of every dtype and layout for the tests of how items travel, and what counts as the same tensor."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import strategies as st

__all__ = ["DTYPES", "bits", "make", "same", "tensors"]

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's items in order, NaNs and negative zeros as they are."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def same(got: torch.Tensor, sent: torch.Tensor) -> bool:
    return (
        type(got) is type(sent)
        and got.dtype == sent.dtype
        and got.shape == sent.shape
        and got.requires_grad == sent.requires_grad
        and bits(got) == bits(sent)
    )


def make(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random bytes as a tensor: every bit pattern there is."""
    if dtype is torch.bool:
        return torch.from_numpy(np.asarray(np.random.default_rng(seed).random(shape) < 0.5))
    count = math.prod(shape)
    data = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any dtype and shape, contiguous or one of the many ways not to be."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    tensor = make(draw(st.sampled_from(DTYPES)), shape, draw(st.integers(0, 2**32)))
    for way in draw(st.lists(st.sampled_from(["transpose", "step", "slice", "expand", "offset"]), max_size=2)):
        if way == "transpose" and tensor.dim() > 1:
            tensor = tensor.transpose(0, -1)
        elif way == "step" and tensor.dim():
            tensor = tensor[::2]
        elif way == "slice" and tensor.dim() > 1:
            tensor = tensor[:, 1:]
        elif way == "expand":
            tensor = tensor.expand(2, *tensor.shape)
        elif way == "offset" and tensor.dim():
            tensor = tensor[1:]
    return tensor
