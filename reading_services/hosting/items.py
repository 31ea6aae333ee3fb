"""A chunk's items <-> bytes, inside workers and in the main process.

Pickle protocol 5. Plain CPU tensors and numpy arrays travel by their bytes: large ones out of band, as buffers of
their own, small ones within the pickle.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from torchpipe.errors import NotSerializableError
from torchpipe.node.containers import PLAIN
from torchpipe.state.mapped import dump_with_buffers
from torchpipe.state.pickling import CloudPickler, Reducers
from torchpipe.state.tensors import reduce_tensor

__all__ = [
    "OUT_OF_BAND_BYTES",
    "AutogradTensorError",
    "Images",
    "dump_items",
    "load_items",
    "reduce_sendable",
    "unsendable",
]

_COPIED = (dict, list, tuple)  # whose items, if nobody can change those, need no look

OUT_OF_BAND_BYTES = 16 << 10  # a smaller buffer is quicker copied along than looked after


class AutogradTensorError(TypeError):
    """A tensor belongs to an autograd graph, of which only its values would arrive."""


def reduce_sendable(tensor: torch.Tensor) -> Any:
    """Reduce a tensor for a pickle: a plain one to its bytes, perhaps out of band. Raises: TypeError, see above."""
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
        return dump_with_buffers(_Pickler, items, OUT_OF_BAND_BYTES, writable=True)
    except AutogradTensorError:  # cloudpickle would drop the graph
        raise
    except Exception:  # classes and functions made inside a function
        file = io.BytesIO()
        CloudPickler(file, protocol=5).dump(items)
        return memoryview(file.getvalue()), []


class _Image:
    """An item as it was when it was made. Pickled, and loaded again, it is the item."""

    __slots__ = ("_body", "_buffers")

    def __init__(self, body: bytes, buffers: list[bytearray]) -> None:
        self._body, self._buffers = body, buffers

    def __reduce__(self) -> Any:
        if not self._buffers:
            return pickle.loads, (self._body,)
        return _item_of, (self._body, [pickle.PickleBuffer(buffer) for buffer in self._buffers])


def _item_of(body: bytes, buffers: list[Any]) -> Any:
    return pickle.loads(body, buffers=buffers)


class Images:
    """Copies an item that waits to be sent, since the user's code may refill the same object for the next one. That
    costs 0.3 us for a dict or a list of numbers, 3 us for one of small arrays, and little more than sending it for the
    rest. ``new_tensors``: True if nobody else holds the tensors in an item, which are then kept as they are. Not
    thread-safe.
    """

    def __init__(self, new_tensors: bool = False) -> None:
        self.last: Any = None
        self._kept = PLAIN | {torch.Tensor} if new_tensors else PLAIN
        self._file = io.BytesIO()
        self._buffers: list[bytearray] = []
        self._pickler = _Pickler(self._file, protocol=5, buffer_callback=self._is_small)

    def _is_small(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # neither in C nor in Fortran order: the pickler makes a copy
            return True
        if raw.nbytes < OUT_OF_BAND_BYTES or raw.readonly:
            return True
        self._buffers.append(bytearray(raw))
        return False

    def extend(self, items: list[Any], made: Iterable[Any]) -> None:
        """Append ``made``, each as it is before the next one is begun."""
        kept, append, item = self._kept, items.append, None
        for item in made:
            append(item if type(item) in kept else self._image_of(item))
        self.last = item

    def _image_of(self, item: Any) -> Any:
        kind = type(item)
        if kind in _COPIED:
            parts = list(item.values() if kind is dict else item)
            others = [part for part in parts if type(part) not in self._kept]
            if not others:
                return item if kind is tuple else item.copy()
            if _are_arrays(others):
                copies = [part.copy("K") if type(part) is np.ndarray else part for part in parts]
                return dict(zip(item, copies)) if kind is dict else kind(copies)
        self._file.seek(0)
        self._file.truncate()
        self._buffers = []
        try:
            self._pickler.dump(item)
            return _Image(self._file.getvalue(), self._buffers)
        except AutogradTensorError:  # whoever sends it says so
            return item
        except Exception:
            return _image_of_code(item)
        finally:
            self._pickler.clear_memo()


def _are_arrays(parts: list[Any]) -> bool:
    """True if copies of the arrays are all there is to copy: several of them, not one several times."""
    for part in parts:
        if type(part) is not np.ndarray or part.dtype.hasobject or not part.flags.writeable:
            return False
    return len({id(part) for part in parts}) == len(parts)


def _image_of_code(item: Any) -> Any:
    """The image of an item that holds local classes or functions; the item itself if nobody can send it."""
    file = io.BytesIO()
    try:
        CloudPickler(file, protocol=5).dump(item)
    except Exception:  # whoever sends it tries again, and says what is wrong
        return item
    return _Image(file.getvalue(), [])


def unsendable(items: list[Any], way: str, failure: Exception) -> tuple[int, Exception]:
    """(which is the first of ``items`` that cannot be sent ``way``, the error that is to stand in its place).

    If each item can be sent alone, the batch failed as a whole: then it is the first, and the error ``failure``.
    """
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
    return 0, failure


def load_items(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> list[Any]:
    """The items again. Arrays and tensors of ``buffers`` are views of them; what was in the pickle is private."""
    items = pickle.loads(data, buffers=buffers)
    assert isinstance(items, list)
    return items
