"""The messages between the engine and a worker: data, no callables. Used in both.

::

    engine                      worker
      | ---- StartEpoch --------> |   begin these shards at these cursors; of the others, let go on what it says
      | ---- Deal --------------> |   what the next items of a lane are to be made of, where the engine deals
      | ---- grant -------------> |   so many chunks of a lane were used: produce as many more
      | ---- end ---------------> |   stop producing
      | <--- a chunk ------------ |   items of one lane, as long as the window allows it
      | <--- Report ------------- |   a warning, an item that was left out, a backlog

``generation`` numbers the beginnings; messages of one before a lane's last are ignored on both sides. A ``lane`` is one
shard of one branch of the graph (see ``torchpipe.execution.merge``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchpipe.execution.epoch import Epoch
from torchpipe.state import Cursor

__all__ = ["Backlog", "Deal", "Message", "Notice", "Report", "ShardStart", "Skipped", "StartDispatch", "StartEpoch"]


class Message:
    """Base of all that is sent."""


@dataclass(frozen=True, kw_only=True)
class ShardStart:
    """Begin ``lane``, which is ``shard`` of ``branch``, at ``cursor``.

    ``held`` chunks of it are still waiting for the consumer. Items before number ``isolate_before`` are each made
    alone: one of them may end its worker. ``snapshot_first``: a snapshot is due behind the first item.
    """

    lane: int
    branch: int
    shard: int
    cursor: Cursor
    snapshot_first: bool = False
    held: int
    isolate_before: int


@dataclass(frozen=True, kw_only=True)
class StartEpoch(Epoch, Message):
    """Begin ``shards``, let the lanes of ``keep`` go on as they are, and end all others. ``isolate_items``: make
    each item alone, and note the node at work before each step (slow).
    """

    generation: int
    shards: tuple[ShardStart, ...]
    keep: tuple[int, ...] = ()
    window: int  # chunks that a lane may be ahead
    window_bytes: int  # and bytes, if that is more than two chunks
    dispatch_branch: int  # the branch that dispatched items go to; -1: there are none
    isolate_items: bool
    from_entries: bool = False  # True if every item is made of an entry that the engine deals


@dataclass(frozen=True, kw_only=True)
class Deal(Message):
    """``entries`` of ``lane``, pickled one by one; ``over`` says that no more come. May come before its StartEpoch."""

    generation: int
    lane: int
    entries: tuple[bytes, ...]
    over: bool

    @classmethod
    def of(cls, generation: int, lane: int, entries: Iterable[bytes], over: bool) -> Deal:
        return cls(generation=generation, lane=lane, entries=tuple(entries), over=over)


@dataclass(frozen=True, kw_only=True)
class StartDispatch(Epoch, Message):
    """Begin the dispatched part at ``mark``, a cursor without items to drop.

    ``needed`` has, for each shard that goes on, the first of its items that it has not had. ``fail_at`` is a position
    that has ended dispatchers, and the error to raise in its place. Items before ``isolate_before`` are each made
    alone; ``isolate_items``: all of them.
    """

    generation: int
    mark: Cursor
    needed: tuple[tuple[int, int], ...]
    isolate_before: int
    isolate_items: bool
    fail_at: tuple[int, bytes] | None


class Report(Message):
    """A report for the user, of whatever epoch."""


@dataclass(frozen=True, kw_only=True)
class Notice(Report):
    """A warning."""

    category: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Skipped(Report):
    """``on_error`` has left out an item, ``at`` this ``time.time()``. ``shard`` None: before items are dealt.

    Of a lane, it comes before the chunk that the item is missing from, and counts with that alone.
    """

    generation: int = 0
    lane: int = -1
    at: float
    shard: int | None
    node: str
    error: str
    item: str


@dataclass(frozen=True, kw_only=True)
class Backlog(Report):
    """``items`` wait for one shard in the dispatcher, more than ever before. Sent at each doubling."""

    items: int
