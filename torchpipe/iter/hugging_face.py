"""``HuggingFaceReader``: the rows of a Hugging Face dataset, map-style or streaming."""

from __future__ import annotations

import _thread
import copy
import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import msgpack
import numpy as np
import torch

from torchpipe.compat.datasets_private import files_of_shards, keeps_a_buffer, why_not_by_shards
from torchpipe.compat.packages import needs
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.indexed.keys import KeysIterator
from torchpipe.iter._shared.bases import form_on
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.pieces import StreamPieces
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import MayReplay, NodeIterator, refusing_misfits, stored_count, stored_items
from torchpipe.node.traits import node_name
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_count
from torchpipe.randomness.global_random import GlobalRandom, RandomStates

__all__ = ["HuggingFaceReader"]

_END: Any = object()
_MARK_EVERY = 64  # rows


class HuggingFaceReader(IterDataPipe[Any]):
    """Yields the rows of a dataset of Hugging Face ``datasets``, or with ``batch_size`` its batches, as it gives them.

    A map-style ``Dataset`` is read by index: a shard reads its own rows alone, ``shuffle`` shuffles numbers, and
    resuming reads nothing before the position. A streaming ``IterableDataset`` is told the epoch, on a private copy,
    and resumed by its own state; since that has lost rows in several versions, the node does not believe it: the
    state is one from up to 128 rows before, and the rows since then are read again and compared. Where they differ,
    and where the stream has a ``shuffle`` of its own, whose buffer its state does not hold, it is replayed from its
    start, with a :class:`~torchpipe.ReplayWarning`: shuffle with the pipeline's ``shuffle`` instead, whose state is
    exact.

    ``shard_pieces()`` right behind a stream of several files, or shards of its own, lets each shard of the loader read
    its own of them alone, in another order in each epoch.

    State: one integer; of a stream its own state, a count and a checksum of 4 bytes for each of the rows read again.

    Raises: ImportError without ``datasets``; TypeError for anything but such a dataset, a ``DatasetDict`` included;
    StateError where not even a replay gives the same rows as before.
    """

    fingerprint_data = ("dataset",)
    source: IterDataPipe[int] | None = None  # of the numbers of a stream's shards, if it is read in pieces

    def __init__(self, dataset: Any, batch_size: int | None = None) -> None:
        datasets = needs("datasets", "HuggingFaceReader")
        if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
            raise TypeError(
                f"HuggingFaceReader reads one split, got several: choose of {', '.join(map(repr, dataset))}"
            )
        if not isinstance(dataset, datasets.Dataset | datasets.IterableDataset):
            raise TypeError(
                f"HuggingFaceReader needs a Dataset or IterableDataset, got {dataset!r:.80} of type "
                f"{type(dataset).__name__}: load_dataset(...) makes one"
            )
        self.dataset = dataset
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size, at_least=1)
        self.streams = isinstance(dataset, datasets.IterableDataset)

    @property
    def by_index(self) -> bool:  # type: ignore[override]
        """True if it is read by index."""
        return not self.streams

    @property
    def seeded(self) -> bool:  # type: ignore[override]
        """True for a stream that shuffles anew in each epoch."""
        return self.streams and keeps_a_buffer(self.dataset)

    def in_pieces(self, shuffle: bool) -> IterDataPipe[Any]:
        """The same stream, of which each shard reads its own files.

        Raises: TypeError for a ``Dataset``, and for a stream whose shards have other rows by themselves: behind its
        ``take``, ``skip``, ``interleave_datasets`` that does not take all rows once, and ``with_indices=True``.
        """
        if not self.streams or self.source is not None:
            why = "divided already" if self.streams else "read by index: put shuffle() and sharding_filter() behind it"
            raise TypeError(f"shard_pieces() divides streams once, and the dataset of {node_name(self)} is {why}")
        count = self.dataset.num_shards
        refused = why_not_by_shards(self.dataset) if count > 1 else None
        if refused is not None:
            raise TypeError(
                f"shard_pieces() lets each shard read files of {node_name(self)}'s stream by itself, and {refused}; "
                "or divide rows with sharding_filter() in the place of shard_pieces(), with which each shard reads all"
            )
        divided = copy.copy(self)
        divided.source = form_on(StreamPieces(count, files_of_shards(self.dataset), shuffle), "sharding_filter")()
        return divided

    def __len__(self) -> int:
        if self.streams:
            raise TypeError("a streaming dataset does not know its length")
        size = self.batch_size or 1
        return (len(self.dataset) + size - 1) // size

    def iterate(self, context: Context) -> NodeIterator[Any]:
        if self.source is not None:
            return _PiecesIterator(self, context, self.source)
        if self.streams:
            return _StreamIterator(self, context)
        size = self.batch_size
        data = self.dataset if size is None else _Batches(self.dataset, size)
        return KeysIterator(self, context, data, len(self), lambda: range(len(self)))


class _Batches:
    """A map-style dataset as its batches."""

    def __init__(self, dataset: Any, size: int) -> None:
        self._dataset = dataset
        self._size = size

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number * self._size : (number + 1) * self._size]


@dataclass(frozen=True)
class _Mark:
    """A position of a stream: its own state there (None: at its start), and the global random states."""

    position: int
    stream: Any
    random: Any


class _StreamIterator(MayReplay[Any]):
    """State: the stream's own from up to ``2 * _MARK_EVERY`` rows before, and what tells the rows since then."""

    node: HuggingFaceReader

    def __init__(self, node: HuggingFaceReader, context: Context) -> None:
        super().__init__(node, context)
        self._rows = _Rows(node, node.dataset, context.epoch)

    def get_state(self) -> dict[str, Any]:
        return self._rows.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        self._rows.load_state_dict(state)

    def run(self) -> Iterator[Any]:
        return self._rows

    @property
    def replayed(self) -> bool:  # type: ignore[override]
        return self._rows.replayed

    def to_replay(self) -> tuple[str, int]:
        return self._rows.to_replay()


class _PiecesIterator(ExpandingIterator[Any]):
    """State: the number of the piece, and of that as of a stream."""

    node: HuggingFaceReader

    def expand(self, item: Any) -> Iterator[Any]:
        dataset = self.node.dataset
        return _Rows(self.node, dataset.shard(num_shards=dataset.num_shards, index=item), self.context.epoch)

    @property
    def replayed(self) -> bool:  # type: ignore[override]
        return self._current is not None and self._current.replayed

    def to_replay(self) -> tuple[str, int]:
        if self._current is not None:
            return self._current.to_replay()  # type: ignore[no-any-return]
        replayed = keeps_a_buffer(self.node.dataset) and self._loaded is not None
        return _buffer_of(self.node), self._handed_out if replayed else 0

    def close(self) -> None:
        rows = self._current
        super().close()
        if rows is not None:
            rows.close()


class _Rows(Iterator[Any]):
    """The rows of a stream from a position on.

    Some streams have threads, which end with their generator, and are waited for there. A garbage collection may come
    in any thread, also in one that is being started, and must not wait: the generator of one that was dropped ends in
    a thread of its own.
    """

    def __init__(self, node: HuggingFaceReader, dataset: Any, epoch: int) -> None:
        self.node = node
        self._given = dataset
        self.replayed = keeps_a_buffer(dataset)  # nothing but a replay of everything is exact then
        self._name = node_name(node)
        self._epoch = epoch
        self._position = 0
        self._ended = False
        self._dataset: Any = None  # that is being iterated
        self._held: list[Any] = []  # the generator, if it has begun: whoever ends it has this list as well
        self._dropped: weakref.finalize[[list[Any]], _Rows] | None = None
        self._marks: list[_Mark] = []  # one or two, once it has begun
        self._sums: deque[int] = deque(maxlen=2 * _MARK_EVERY)  # of the last rows
        self._loaded: dict[str, Any] = {"position": 0}

    def to_replay(self) -> tuple[str, int]:
        return _buffer_of(self.node), self._position if self.replayed and not self._ended else 0

    def state_dict(self) -> dict[str, Any]:
        if self._ended:
            return {"position": self._position, "ended": True}
        if not self._marks:
            return copy.deepcopy(self._loaded)
        mark = self._marks[0]
        count = min(self._position - mark.position, len(self._sums))
        state = {"position": self._position, "sums": list(self._sums)[len(self._sums) - count :]}
        return state if self.replayed else state | {"stream": copy.deepcopy(mark.stream), "random": mark.random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = stored_count(state, "position")
        self._ended = state.get("ended") is True
        self._loaded = copy.deepcopy(state)
        if self._position and not self._ended:
            sums = stored_items(state, "sums", at_most=min(self._position, 2 * _MARK_EVERY))
            if not all(type(value) is int for value in sums):
                raise TypeError("no checksums")

    def __next__(self) -> Any:
        if not self._held:
            self._begin()
        item = next(self._held[0], _END)
        if item is _END:
            self._ended = True
            self._end()
            raise StopIteration
        self._sums.append(_checksum(item))
        self._position += 1
        if self._position % _MARK_EVERY == 0 and not self.replayed:
            self._marks = [self._marks[-1], self._mark()]
        return item

    def close(self) -> None:
        """End the stream's threads, if it has any; the state stays."""
        self._loaded = self.state_dict()
        self._end()
        self._dataset, self._marks = None, []

    def _end(self) -> None:
        """End the stream's threads, if it has any."""
        held, self._held = self._held, [iter(())]
        held.clear()  # the last reference
        if self._dropped is not None:
            self._dropped.detach()

    def _begin(self) -> None:
        if self._ended:
            self._end()
        elif self._position:
            self._resume()
        else:
            self._open(_Mark(0, None, RandomStates.now().to_dict()))

    def _mark(self) -> _Mark:
        return _Mark(self._position, copy.deepcopy(self._dataset.state_dict()), RandomStates.now().to_dict())

    def _open(self, mark: _Mark) -> None:
        """Stand there, if the stream's own state is right."""
        self._end()
        self._dataset = _private(self._given)
        self._dataset.set_epoch(self._epoch)
        if mark.stream is not None:
            self._dataset.load_state_dict(copy.deepcopy(mark.stream))
        self._marks = [mark]
        self._sums.clear()
        size = self.node.batch_size
        if size is not None:
            held = [iter(self._dataset.iter(size))]
        elif torch.utils.data.get_worker_info() is None:
            held = [iter(self._dataset)]
        else:  # iterated in a worker of a torch loader, it would leave rows to the others, as sharding_filter does
            held = [_single_rows(self._dataset.iter(1))]
        self._held = held
        self._dropped = weakref.finalize(self, _end_elsewhere, held)
        self._dropped.atexit = False

    def _resume(self) -> None:
        position, sums = self._position, self._loaded["sums"]
        mark = _Mark(position - len(sums), self._loaded.get("stream"), self._loaded.get("random"))
        if not self.replayed:
            with refusing_misfits(f"the dataset in {self._name}"):
                self._open(mark)
                with _as_it_was(mark.random):
                    if self._gives(sums):
                        return
            warn_user(
                f"the state of the dataset in {self._name} did not lead to the row where it was taken: replaying its "
                f"first {position} rows to resume",
                ReplayWarning,
            )
        self._open(_Mark(0, None, None))
        for done in range(mark.position):
            if next(self._held[0], _END) is _END:
                raise StateError(f"the dataset in {self._name} ended after {done} of {position} rows: is it the same?")
        if not self._gives(sums):
            raise StateError(
                f"the dataset in {self._name} does not give the rows again that it gave before row {position}: has it "
                "changed, does a function in it draw random numbers, or has its shuffle() no seed?"
            )
        self._marks = [self._mark()]

    def _gives(self, sums: list[int]) -> bool:
        """True if the next rows have these checksums."""
        for expected in sums:
            item = next(self._held[0], _END)
            if item is _END or _checksum(item) != expected:
                return False
            self._sums.append(expected)
        return True


def _end_elsewhere(held: list[Any]) -> None:
    """Let go of a generator in a thread of its own, and wait for nothing: not even for that thread to be started."""
    with suppress(RuntimeError):  # the interpreter ends
        _thread.start_new_thread(_start_ending, (held,))


def _start_ending(held: list[Any]) -> None:
    Thread(target=held.clear, daemon=True).start()  # which threading knows, as the end of other threads needs


def _buffer_of(node: HuggingFaceReader) -> str:
    return f"the shuffle buffer of the dataset in {node_name(node)}"


def _as_it_was(random: Any) -> AbstractContextManager[Any]:
    if random is None:
        return nullcontext()
    return GlobalRandom.at(RandomStates.from_dict(random))


def _private(dataset: Any) -> Any:
    """A copy, but for the file systems that it keeps at hand: copied in another thread, each would make one of that
    thread's own, in the dict that is being copied.
    """
    from fsspec import AbstractFileSystem

    held = [value for value in vars(dataset).values() if isinstance(value, dict)]
    shared = [value for value in held if any(isinstance(item, AbstractFileSystem) for item in value.values())]
    return copy.deepcopy(dataset, {id(value): value for value in shared})


def _single_rows(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield {name: values[0] for name, values in batch.items()} if isinstance(batch, dict) else batch


def _checksum(item: Any) -> int:
    """Four bytes that tell rows apart; of what is no plain data or array, the type alone."""
    try:
        return zlib.crc32(msgpack.packb(item, default=_plain))
    except (ValueError, TypeError, OverflowError):
        return zlib.crc32(repr(type(item)).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return [str(value.dtype), list(value.shape), value.tobytes()]
    return [repr(type(value)), str(value) if isinstance(value, int) else ""]
