"""``SequenceWrapper``: begin a map-style pipeline with a sequence or mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torchpipe.node.datapipe import MapDataPipe
from torchpipe.state.copying import copy_item

__all__ = ["SequenceWrapper"]

T = TypeVar("T")


class SequenceWrapper(MapDataPipe[T]):
    """Reads items of ``sequence`` by index, or of a mapping by key.

    With ``deepcopy`` each item is copied when it is read, so that no function can change the data by changing an item
    in place; what cannot be copied is handed out itself. The sequence is used as it is, so do not change it.

    Raises: TypeError if ``sequence`` has no ``__getitem__`` or ``__len__``.
    """

    fingerprint_data = ("sequence",)

    def __init__(self, sequence: Sequence[T] | Mapping[Any, T], deepcopy: bool = True) -> None:
        if not (hasattr(sequence, "__getitem__") and hasattr(sequence, "__len__")):
            raise TypeError(
                f"SequenceWrapper needs a sequence or mapping, got {sequence!r} of type {type(sequence).__name__}: "
                "use torchpipe.iter.IterableWrapper for what can only be iterated"
            )
        self.sequence = sequence
        self.deepcopy = deepcopy

    def __getitem__(self, index: Any) -> T:
        item = self.sequence[index]
        return copy_item(item) if self.deepcopy else item

    def __len__(self) -> int:
        return len(self.sequence)
