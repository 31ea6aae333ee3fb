"""Shards at work inside a worker: begun at cursors, producing chunks, closed. The same for every kind of worker.

The reports of a worker for the user, until the main process is told.

It is told with the chunk that is made next. So an item that ``on_error`` leaves out is told with the chunk that it is
missing from: where items are made again, after a death, a move or for a resume, it is then not told again.

A chunk's items <-> bytes, inside workers and in the main process.

Pickle protocol 5. Plain CPU tensors and numpy arrays travel by their bytes: large ones out of band, as buffers of
their own, small ones within the pickle.
"""

from __future__ import annotations

import io
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from reading_services.engine.messages import Notice, Report, ShardStart, Skipped, StartEpoch
from torchpipe.errors import NotSerializableError, ReplayWarning
from torchpipe.execution.dispatch import DispatchSupply
from torchpipe.execution.shard import Chunk, InitFn, ResetFn, Shard, ShardGraphs
from torchpipe.node.containers import PLAIN
from torchpipe.node.failures import add_note
from torchpipe.node.host import Host, Trace
from torchpipe.node.traits import DataPipe
from torchpipe.state import LeftOut, SnapshotPolicy
from torchpipe.state.pickling import CloudPickler, Reducers
from torchpipe.state.shared_list import dump_with_buffers
from torchpipe.state.tensors import reduce_tensor

__all__ = [
    "OUT_OF_BAND_BYTES",
    "AutogradTensorError",
    "Images",
    "ProgressNote",
    "Reports",
    "ShardHost",
    "Supply",
    "dump_items",
    "keep_sendable",
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


class Reports:
    """The reports of the chunk that is being made."""

    def __init__(self) -> None:
        self._waiting: list[Report] = []

    def add(self, report: Report) -> None:
        self._waiting.append(report)

    def left_out(self, shard: int | None, missing: LeftOut, *, lane: int = -1) -> None:
        """An item was left out just now."""
        self.add(
            Skipped(at=time.time(), lane=lane, shard=shard, node=missing.node, error=missing.error, item=missing.item)
        )

    def replay(self, text: str | None) -> None:
        """Items are made again, which ``text`` says; None: none are."""
        if text is not None:
            self.add(Notice(category=ReplayWarning.__name__, text=text))

    def warning(self, text: str, category: type[Warning] = UserWarning) -> None:
        self.add(Notice(category=category.__name__, text=text))

    @contextmanager
    def of_warnings(self) -> Iterator[None]:
        """All warnings that this process shows in the ``with`` block become reports, also if it raises."""
        with warnings.catch_warnings(record=True) as caught:
            try:
                yield
            finally:
                self._waiting += [Notice(category=item.category.__name__, text=str(item.message)) for item in caught]

    def take(self, generation: int = 0) -> list[Report]:
        """All that there are, once; of lanes, in this generation."""
        waiting, self._waiting = self._waiting, []
        return [replace(item, generation=generation) if isinstance(item, Skipped) else item for item in waiting]


class ProgressNote(Protocol):
    """Notes what is being made, so that somebody can tell after a death."""

    def skipping_to(self, lane: int, index: int) -> None:
        """``lane`` is being brought to item ``index``, which is not begun yet."""

    def making(self, lane: int, index: int, count: int) -> int:
        """``count`` items from ``index`` on of ``lane`` are being made from now on; or fewer: so many."""

    def remade(self) -> None:
        """An item before that one was made again."""

    def idle(self) -> None:
        """Nothing is being made."""

    def trace(self, *, note_steps: bool) -> Trace | None:
        """The trace of each node at work: with ``note_steps`` to name a culprit; else to time nodes, if wanted."""


class Supply(DispatchSupply):
    """The supply of dispatched items, or entries, for the shards of a worker."""

    def check(self) -> None:
        """Raises: whatever says that the items are not wanted any more."""

    def close(self) -> None:
        """Let go of what it holds. Idempotent."""


@dataclass(slots=True)
class _Lane:
    shard: Shard
    isolate_before: int
    images: Images


class ShardHost:
    """``memory(size_bytes)`` gives room to make large items in. ``passing``: what is no error of the user's.

    Reports are told before the chunk that they belong to: :meth:`take_reports`.
    """

    def __init__(
        self,
        graphs: tuple[DataPipe, ...],
        init_fn: InitFn | None,
        reset_fn: ResetFn | None,
        policy: Callable[[], SnapshotPolicy],
        progress: ProgressNote,
        *,
        memory: Callable[[int], Any] | None = None,
        passing: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._graphs, self._reset_fn, self._policy, self._progress = (
            ShardGraphs(graphs, init_fn, reset_fn),
            reset_fn,
            policy,
            progress,
        )
        self._memory, self._passing = memory, passing
        self.epoch: StartEpoch | None = None
        self.supply: Supply | None = None
        self._lanes: dict[int, _Lane] = {}
        self._installed: Shard | None = None  # whose global random states are in place
        self._reports = Reports()

    @property
    def lanes(self) -> list[int]:
        """The lanes that produce."""
        return list(self._lanes)

    def take_reports(self) -> list[Report]:
        """The reports for the user, each once."""
        return self._reports.take(0 if self.epoch is None else self.epoch.generation)

    def begin(self, start: StartEpoch, supply: Supply | None) -> None:
        """Let this be the present epoch: its shards can be started. Those that it says go on; all others end."""
        if not start.keep:
            self.end()
        elif supply is not self.supply and self.supply is not None:
            self.supply.close()
        for number in [number for number in self.lanes if number not in start.keep]:
            self._graphs.forget(self._lanes[number].shard.spec)  # another worker goes on with it
            self.retire(number)
        self.epoch, self.supply = start, supply

    def start(self, start: ShardStart) -> Chunk | None:
        """Bring a shard to its cursor. None, or the chunk of one that cannot be started: its error."""
        epoch, supply = self.epoch, self.supply
        assert epoch is not None
        self._progress.skipping_to(start.lane, start.cursor.count)
        spec = epoch.spec(start.shard)
        self._install(None)
        with self._reports.of_warnings():
            try:
                shard = Shard(
                    self._graphs.of(spec),
                    spec,
                    branch=start.branch,
                    reset_fn=self._reset_fn,
                    host=Host(
                        policy=self._policy,
                        supply=supply,
                        trace=self._progress.trace(note_steps=epoch.isolate_items),
                        memory=self._memory,
                        on_left_out=partial(self._reports.left_out, start.shard, lane=start.lane),
                        on_again=self._progress.remade,
                        warn=self._reports.warning,
                    ),
                    passing=(SystemExit, *self._passing),
                )
                shard.within(partial(shard.start, start.cursor, snapshot_first=start.snapshot_first))
                self._check_wanted()
                self._lanes[start.lane] = _Lane(shard, start.isolate_before, Images(shard.yields_new_tensors))
                return None
            except Exception as error:
                self._check_wanted()
                add_note(error, f"torchpipe: while shard {start.shard} of {epoch.num_shards} was being started")
                return Chunk(error=error)
            finally:
                self._progress.idle()

    def produce(self, number: int, limit: int, seconds: float) -> Chunk:
        """The next chunk of a lane: at most ``limit`` items, of which none is begun after ``seconds``."""
        lane = self._lanes[number]
        assert self.epoch is not None
        if self.epoch.isolate_items or lane.shard.produced < lane.isolate_before:
            limit = 1
        self._install(lane.shard)
        keep = lane.images if limit > 1 else None  # one alone is sent before the next is begun
        chunk = lane.shard.produce(limit, seconds, partial(self._progress.making, number), keep)
        self._check_wanted()
        self._progress.idle()
        self._reports.replay(chunk.notice)
        return chunk

    def retire(self, number: int) -> None:
        """Close a shard."""
        shard = self._lanes.pop(number).shard
        self._install(shard)
        shard.close()
        self._install(None)

    def leave(self) -> None:
        """Put the global random states back that the worker had: somebody else is at work in its process."""
        self._install(None)

    def end(self) -> None:
        """Close all shards of the epoch. Idempotent."""
        for number in self.lanes:
            self.retire(number)
        self.epoch = None
        self._reports.take()
        supply, self.supply = self.supply, None
        if supply is not None:
            supply.close()

    def _check_wanted(self) -> None:
        """Also where the user's code has swallowed what the supply has raised."""
        if self.supply is not None:
            self.supply.check()

    def _install(self, shard: Shard | None) -> None:
        """Let the global random states be those of ``shard``; they stay while no other one is at work."""
        if shard is not self._installed:
            if self._installed is not None:
                self._installed.leave()
            self._installed = shard
            if shard is not None:
                shard.enter()


def keep_sendable(chunk: Chunk, error: Exception) -> None:
    """Cut the chunk before the first item that cannot be sent, which becomes its error."""
    index, chunk.error = unsendable(chunk.items, "from the worker to the main process", error)
    del chunk.items[index:]
    chunk.snapshot, chunk.ended = None, False
