"""Plain tensors: which are no more than their values, and how these are read, and pickled, as bytes.

Runs in every process. torch's own pickling costs many times more: a descriptor, or all the memory that a view looks
into, for each tensor.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

__all__ = ["bytes_of", "copy_tensor", "is_plain", "memory_of", "reduce_tensor", "span_of", "tensor_in"]

_IN_NUMPY = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}


def is_plain(tensor: torch.Tensor) -> bool:
    """True if dtype, shape and bytes in this process's memory say all of its values.

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
    return _flat(tensor.contiguous(), tensor.numel())


def memory_of(tensor: torch.Tensor) -> tuple[Any, tuple[int, ...] | None]:
    """(the elements of a plain tensor that requires no gradient, as they lie in memory; its strides over these).

    The array is in place, unless there are gaps between the elements. No strides: contiguous.
    """
    if not tensor.numel() or (tensor.is_contiguous() and (1 not in tensor.shape or _has_usual_strides(tensor))):
        return bytes_of(tensor), None
    size = _span(tensor)
    if size > tensor.numel():
        tensor = tensor.clone(memory_format=torch.preserve_format)
        size = _span(tensor)
    return _flat(tensor, size), tensor.stride()


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, if there are no gaps between the elements: one that is expanded stays so."""
    if is_plain(tensor) and tensor.numel() and not tensor.is_contiguous() and (size := _span(tensor)) <= tensor.numel():
        return tensor.as_strided((size,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
    return tensor.clone()


def tensor_in(data: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> torch.Tensor:
    """The tensor whose elements lie in the flat ``data`` as :func:`memory_of` has found them."""
    return data.view(shape) if strides is None else data.as_strided(shape, strides)


def span_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The number of elements from the first to the last of a tensor that has some, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _flat(tensor: torch.Tensor, size: int) -> Any:
    # Not reshape(-1): a single item keeps a stride other than 1, which cannot be seen as bytes
    flat = tensor.as_strided((size,), (1,))
    return flat.numpy() if tensor.dtype in _IN_NUMPY else flat.view(torch.uint8).numpy()


def _has_usual_strides(tensor: torch.Tensor) -> bool:
    """True if its strides are usual. A dimension of one may have any other, and torch tells memory formats by it."""
    usual = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if stride != usual:
            return False
        usual *= size
    return True


def _span(tensor: torch.Tensor) -> int:
    return span_of(tensor.shape, tensor.stride())


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """The parts of a tensor for pickle; of a plain one that requires no gradient its bytes, which may go out of band.

    An expanded tensor goes as the elements that it has in memory, and is expanded again.
    """
    if tensor.requires_grad or not is_plain(tensor):
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    shape = tuple(tensor.shape)
    if not tensor.numel():
        return _rebuild, (b"", tensor.dtype, shape)
    data, strides = memory_of(tensor)
    how = () if strides is None else (strides,)
    return _rebuild, (pickle.PickleBuffer(data), tensor.dtype, shape, *how)


def _rebuild(
    data: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> torch.Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype, device="cpu")
    return tensor_in(torch.frombuffer(data, dtype=dtype), shape, strides)
