"""A chunk's items <-> bytes, inside places and in the main process.

Pickle protocol 5. Plain CPU tensors and numpy arrays travel by their bytes: large ones out of band, as buffers of
their own, small ones within the pickle.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from torchpipe.errors import NotSerializableError
from torchpipe.state.mapped import dump_apart
from torchpipe.state.pickling import CloudPickler, Reducers
from torchpipe.state.tensors import reduce_tensor

__all__ = ["OUT_OF_BAND_BYTES", "AutogradTensorError", "dump_items", "load_items", "reduce_sendable", "unsendable"]

OUT_OF_BAND_BYTES = 16 << 10  # a smaller buffer is quicker copied along than looked after


class AutogradTensorError(TypeError):
    """A tensor belongs to an autograd graph, of which only its values would arrive."""


def reduce_sendable(tensor: torch.Tensor) -> Any:
    """How a tensor is pickled: a plain one as its bytes, which may go out of band. Raises: TypeError, see above."""
    if tensor.grad_fn is not None:
        raise AutogradTensorError(
            f"a tensor of shape {tuple(tensor.shape)} belongs to an autograd graph ({type(tensor.grad_fn).__name__}), "
            "which cannot leave its process: detach() it where it is made, or work under torch.no_grad()"
        )
    if tensor.__dict__:  # what user code has attached
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    return reduce_tensor(tensor)


class _Pickler(pickle.Pickler):
    dispatch_table = Reducers({torch.Tensor: reduce_sendable})


def dump_items(items: list[Any]) -> tuple[memoryview, list[memoryview]]:
    """The pickle, and the large buffers that it refers to, each as plain bytes in place.

    Raises: whatever pickling an item raises, when neither pickle nor cloudpickle can do it.
    """
    try:
        return dump_apart(_Pickler, items, OUT_OF_BAND_BYTES, writable=True)
    except AutogradTensorError:  # cloudpickle would drop the graph
        raise
    except Exception:  # classes and functions made inside a function
        file = io.BytesIO()
        CloudPickler(file, protocol=5).dump(items)
        return memoryview(file.getvalue()), []


def unsendable(items: list[Any], way: str) -> tuple[int, NotSerializableError] | None:
    """(which is the first of ``items`` that cannot be sent ``way``, the error that is to stand in its place)."""
    for index, item in enumerate(items):
        try:
            dump_items([item])
        except Exception as culprit:
            error = NotSerializableError(
                f"an item of type {type(item).__qualname__} cannot be sent {way}: {culprit}. Turn it into plain data "
                "or tensors inside the pipeline"
            )
            error.__cause__ = culprit
            return index, error
    return None


def load_items(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> list[Any]:
    """The items again. Arrays and tensors of ``buffers`` are views of them; what was in the pickle is private."""
    items = pickle.loads(data, buffers=buffers)
    assert isinstance(items, list)
    return items
