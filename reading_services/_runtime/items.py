"""A chunk's items <-> bytes. Runs in workers and in the main process; imports nothing of the runtime.

Pickle protocol 5; plain CPU tensors by their bytes, not by torch's storage machinery, which costs many times more and
sends all the memory that a view looks into.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import cloudpickle
import torch

__all__ = ["dump_items", "load_items"]


def _rebuild(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    plain = (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__  # attributes that user code has attached
    )
    if not plain:
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    # Not reshape(-1): one item or none keeps a stride other than 1, which cannot be seen as bytes
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    data: Any = flat.view(torch.uint8).numpy()
    return _rebuild, (pickle.PickleBuffer(data) if data.size else bytearray(), tensor.dtype, tuple(tensor.shape))


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | {torch.Tensor: _reduce_tensor}


def dump_items(items: list[Any]) -> bytes:
    """Raises: whatever pickling an item raises, when neither pickle nor cloudpickle can do it."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(items)
    except Exception:  # classes and functions made inside a function
        return bytes(cloudpickle.dumps(items, protocol=5))
    return buffer.getvalue()


def load_items(data: memoryview) -> list[Any]:
    items = pickle.loads(data)
    assert isinstance(items, list)
    return items
