"""``rebatch``: batches of any sizes into batches of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import DataChunk
from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import refusing_misfits, stored_items
from torchpipe.node.traits import node_name
from torchpipe.node.validate import check_count

__all__ = ["ReBatcher"]

_END: Any = object()
_DEEPEST = 32


class _ReBatchIterator(ItemIterator[Any]):
    node: ReBatcher
    keeps_items = True

    def __init__(self, node: ReBatcher, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.parts: list[Any] = []  # batches that wait to be joined
        self.rows = 0  # in them
        self.loaded = False  # True while some of them are a state's, and have not been joined with others

    def get_state(self) -> dict[str, Any]:
        return {"parts": self.kept_items(self.parts)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.parts = stored_items(state, "parts")
        with refusing_misfits(node_name(self.node)):
            counts = [self._count(part) for part in self.parts]
            if len(self.parts) > 1:
                _joined(self.parts, self.node.collated)
        self.rows = sum(counts)
        self.loaded = bool(counts)
        if any(count == 0 for count in counts):
            raise StateError("a batch without rows is left over in the state")

    def run(self) -> Iterator[Any]:
        size, source = self.node.batch_size, self.source.items()
        while True:
            while self.rows >= size:
                yield self._take(size)
            batch = next(source, _END)
            if batch is _END:
                break
            rows = self._count(batch)
            if rows:
                self.parts.append(batch)
                self.rows += rows
        if self.rows and not self.node.drop_last:
            yield self._take(self.rows)

    def _count(self, batch: Any) -> int:
        rows = _rows(batch, self.node.collated)
        if rows is None:
            raise TypeError(
                f"rebatch needs batches, got {batch!r:.60} of type {type(batch).__name__}, which has no rows: put "
                "batch() before it"
            )
        return rows

    def _take(self, size: int) -> Any:
        """The first ``size`` rows; of the part that they end in, the rest stays."""
        collated, taken, wanted = self.node.collated, [], size
        while wanted:
            part = self.parts[0]
            rows = self._count(part)
            if rows <= wanted:
                taken.append(self.parts.pop(0))
                wanted -= rows
            else:
                taken.append(_cut(part, slice(0, wanted), collated))
                self.parts[0] = _cut(part, slice(wanted, rows), collated)
                wanted = 0
        self.rows -= size
        if len(taken) == 1:
            return taken[0]
        loaded, self.loaded = self.loaded, False
        with refusing_misfits(f"{node_name(self.node)} with these batches") if loaded else nullcontext():
            return _joined(taken, collated)

    def close(self) -> None:
        super().close()
        self.parts = []


@functional_datapipe("rebatch")
class ReBatcher(OneInput[Any]):
    """Cuts and joins batches so that each has ``batch_size`` rows; a shorter last one is left out with ``drop_last``.

    A batch is a list of samples (as ``batch`` makes it, and of no other type than a list), or what a ``collate`` makes
    of one: a tensor, an array, or a dict or tuple of these and of lists, all with as many rows in their first
    dimension. ``collated=True`` takes lists for tuples as well, since torch's ``default_collate`` makes lists of
    tuples.

    State: the rows that are left over.

    Raises: ValueError if ``batch_size`` is below 1. While iterating: TypeError for an item that is no batch, and for
    arrays of several types in one batch; ValueError if its parts have several numbers of rows.
    """

    iterator = _ReBatchIterator

    def __init__(
        self, datapipe: IterDataPipe[Any], batch_size: int, drop_last: bool = False, *, collated: bool = False
    ) -> None:
        super().__init__(datapipe)
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.collated = collated


def _columns(batch: Any, collated: bool) -> list[Any] | None:
    """The parts of a batch that have the rows; None if it is one itself."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, tuple) or (collated and type(batch) is list and any(map(_has_rows, batch))):
        return list(batch)
    return None


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | Mapping | tuple | list)


def _rows(batch: Any, collated: bool, depth: int = 0) -> int | None:
    columns = _columns(batch, collated)
    if columns is None:
        if isinstance(batch, torch.Tensor | np.ndarray):
            return len(batch) if batch.ndim else None
        return len(batch) if isinstance(batch, list) else None
    counts = {_rows(column, collated, depth + 1) for column in columns} if depth < _DEEPEST else {None}
    if len(counts) > 1:
        found = sorted(str(count) for count in counts)
        raise ValueError(f"the parts of a batch have {' and '.join(found)} rows: {type(batch).__name__} {batch!r:.80}")
    return counts.pop() if counts else None


def _made_as(batch: Any, columns: list[Any]) -> Any:
    if isinstance(batch, Mapping):
        pairs = dict(zip(batch, columns))
        return pairs if type(batch) is dict else type(batch)(pairs)  # type: ignore[call-arg]
    if isinstance(batch, list):
        return columns
    return type(batch)(*columns) if hasattr(batch, "_fields") else tuple(columns)


def _cut(batch: Any, rows: slice, collated: bool) -> Any:
    columns = _columns(batch, collated)
    if columns is None:
        return type(batch)(batch[rows]) if isinstance(batch, DataChunk) else batch[rows]
    return _made_as(batch, [_cut(column, rows, collated) for column in columns])


def _check_types(batches: list[Any]) -> None:
    """Raises: TypeError for arrays or tensors of several types, as joining would change their numbers."""
    dtypes = {str(batch.dtype) for batch in batches if isinstance(batch, torch.Tensor)}
    dtypes |= {  # texts and bytes are of one type, whatever their lengths
        batch.dtype.kind if batch.dtype.kind in "SU" else str(batch.dtype)
        for batch in batches
        if isinstance(batch, np.ndarray)
    }
    if len(dtypes) > 1:
        raise TypeError(
            f"rebatch cannot join batches that are not alike: arrays of {' and '.join(sorted(dtypes))}, of which one "
            "type would change numbers of the other. Give them one type before, in map()"
        )


def _joined(batches: list[Any], collated: bool) -> Any:
    """Raises: TypeError, ValueError and the like for batches that are not alike."""
    first = batches[0]
    columns = [_columns(batch, collated) for batch in batches]
    if any(type(batch) is not type(first) for batch in batches) or any(
        (column is None) != (columns[0] is None) or len(column or ()) != len(columns[0] or ()) for column in columns
    ):
        kinds = sorted({type(batch).__name__ for batch in batches})
        raise TypeError(f"rebatch cannot join batches that are not alike: {' and '.join(kinds)} {batches!r:.80}")
    if columns[0] is None:
        _check_types(batches)
        if isinstance(first, torch.Tensor):
            return torch.cat(batches)
        if isinstance(first, np.ndarray):
            return np.concatenate(batches)
        rows = [row for batch in batches for row in batch]
        return type(first)(rows) if isinstance(first, DataChunk) else rows
    if isinstance(first, Mapping):
        joined = [_joined([batch[name] for batch in batches], collated) for name in first]
    else:
        joined = [_joined([batch[index] for batch in batches], collated) for index in range(len(first))]
    return _made_as(first, joined)
