"""Plain tensors: which are no more than their values, and how these are read, and pickled, as bytes.

Runs in every process. torch's own pickling costs many times more: a descriptor, or all the memory that a view looks
into, for each tensor.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

__all__ = ["bytes_of", "is_plain", "reduce_tensor"]

_IN_NUMPY = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}


def is_plain(tensor: torch.Tensor) -> bool:
    """Do dtype, shape and bytes in this process's memory say all of its values?

    What else it may have is not asked: a class of its own, attributes, gradients.
    """
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    )


def bytes_of(tensor: torch.Tensor) -> Any:
    """The values of a plain tensor that requires no gradient, as a contiguous array: in place, if that is possible."""
    if tensor.dtype in _IN_NUMPY and tensor.is_contiguous():  # numpy sees it as it is: half the time
        return tensor.numpy()
    # Not reshape(-1): a single item keeps a stride other than 1, which cannot be seen as bytes
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """As ``__reduce_ex__``; a plain tensor that requires no gradient as its bytes, which may go out of band."""
    if tensor.requires_grad or not is_plain(tensor):
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    if not tensor.numel():
        return _rebuild, (b"", tensor.dtype, tuple(tensor.shape))
    return _rebuild, (pickle.PickleBuffer(bytes_of(tensor)), tensor.dtype, tuple(tensor.shape))


def _rebuild(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).view(shape)
