"""The parts of a stage that runs ahead: source, mover, gate, limits.

Runs in any process that iterates a graph; each says in which thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["ONE_QUEUE", "Admitted", "Gate", "Mover", "Pacer", "Source", "Stage", "StageLimits"]


class Source(Protocol):
    """The stream that runs ahead: an iterator of a node, or any other object that has a stream and a position."""

    def items(self) -> Iterator[Any]:
        """The stream; called once."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the item that came last."""

    def interrupt(self) -> None:
        """Wake whoever waits for an item in another thread; the stream is then over. Thread-safe."""

    def close(self) -> None:
        """Let go of everything it holds. Idempotent."""


class Mover(Protocol):
    """The step between the source and the consumer, for each item."""

    def prepare(self) -> None:
        """Make ready for a pass. Called in the consumer's thread, before the first :meth:`transfer`."""

    def transfer(self, batch: Any, /) -> Any:
        """The item on its way. Called in a feed thread, item by item in order; in several at once if asked for."""

    def receive(self, moved: Any, /) -> Any:
        """The item as the consumer gets it. Called in the consumer's thread with what :meth:`transfer` returned."""

    def close(self) -> None:
        """End the pass, begun or not; no call is under way. Called in either thread."""


@dataclass(slots=True, eq=False)
class Admitted:
    """The result of a :class:`Gate` for an item. ``mark`` is the gate's state from this item on; None: as it was."""

    item: Any
    nbytes: int = 0
    mark: Any = None
    # What follows is set by the feed:
    dropped: int = 0  # how many items the gate has kept back since the item before
    number: int = 0  # the source's items before it, since its start or restore
    snapshot: Any = None  # of the source, after it (``feed.Snapshot``)
    moved: bool = False  # by a transfer thread: ``item`` is on the device; or there is an ``error`` in its place
    error: BaseException | None = None


class Gate(Protocol):
    """Looks at each item before it is moved: one thread, in order, so that what it decides is part of the stream."""

    new_shapes: int

    def admit(self, item: Any, /) -> Admitted | None:
        """The item as it is to be moved, or None to leave it out. What it raises is raised at the item's place."""

    def load(self, mark: Any, /) -> None:
        """Go on from the mark of an item of an earlier pass, which is a part of that pass's state."""


class Pacer(Protocol):
    """Told, in the consumer's thread, where it stands: at the places where a training loop may execute what it has."""

    syncs: int
    waits: int

    def begin(self) -> None:
        """A pass begins. Called before the first item is awaited."""

    def returned(self) -> None:
        """The consumer is back for another item, and so is done with the one before. Called before waiting for it."""

    def ended(self) -> None:
        """The stream has ended: there will be no more items."""


@dataclass(frozen=True, kw_only=True)
class StageLimits:
    """The distance that the parts of a device stage may run ahead, besides the depth of its device queue.

    ``host_depth`` batches may wait on the host; with 0, one is pulled only when there is room on the device. A queue
    whose batches have reached its bytes takes no more; a batch that is larger than that passes alone. ``threads``
    transfer at the same time. By default one thread pulls and moves; any other setting takes two queues.
    """

    host_depth: int = 0
    host_bytes: int | None = None
    device_bytes: int | None = None
    threads: int = 1


ONE_QUEUE = StageLimits()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Keeps at most ``depth`` items ahead of its consumer, moved by ``mover``; with 0, nothing is ahead, and no thread.

    ``limits`` may add a queue before the transfer, and more threads. ``gate`` may change items or leave some out,
    ``pacer`` is told of the consumer's steps.
    """

    depth: int
    mover: Mover | None = None
    gate: Gate | None = None
    pacer: Pacer | None = None
    limits: StageLimits = ONE_QUEUE
