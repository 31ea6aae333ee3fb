"""Everything that the main process and a worker say to each other: data, no callables.

::

    main                      worker
      | ---- StartEpoch -------> |   forget the epoch before, begin these shards at these cursors
      | <--- Ready ------------- |   (once, after start-up)
      | ---- Deal -------------> |   what the next items of a lane are to be made of, where the main process deals
      | <--- Notice ------------ |   a warning to show to the user
      | <--- Skipped ----------- |   an item was left out; comes before the chunk that would have had it
      | <--- ChunkMessage ------ |   items of one lane, as long as the window allows it
      | ---- Grant ------------> |   that many chunks of a lane were used: produce as many more
      | ---- EndEpoch ---------> |   stop producing
      | <--- Failed ------------ |   the worker itself cannot go on; it exits
      | ---- Stop -------------> |   exit

    main                      dispatcher                    worker
      | ---- StartDispatch ----> | <--- Hello, Want ---------- |   connect, and ask for items of a shard
      | <--- Grown ------------- |                             |   items pile up for a shard that does not ask
      |                          | ---- Dealt ---------------> |   items of a shard and the marks between them

``generation`` numbers the epochs of one loader; what belongs to an older one is ignored on both sides. A ``lane`` is
one shard of one branch of the graph (see ``torchpipe.execution.merge``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reading_services._transport.record import Record
from torchpipe.execution.epoch import Epoch

__all__ = [
    "ChunkMessage",
    "Deal",
    "Dealt",
    "EndEpoch",
    "Failed",
    "Grant",
    "Grown",
    "Hello",
    "Layout",
    "Message",
    "Notice",
    "Placed",
    "Ready",
    "ShardStart",
    "Skipped",
    "StartDispatch",
    "StartEpoch",
    "Stop",
    "Told",
    "Want",
]


class Message:
    """Base of all that is sent."""


class Placed(Record):
    """A buffer that was made in a slot and stays there: from ``start`` on in the slot's memory."""

    buffer: int  # its number among those of the layout
    slot: int
    offset: int
    capacity: int
    start: int


class Layout(Record):
    """Where the items of a message are: ``sizes`` in bytes of the pickle and of the buffers that it refers to.

    But for those that are ``placed``, they lie in a slot of the sender's arena, at ``offset`` of ``capacity`` bytes;
    without a slot, in the payload.
    """

    sizes: tuple[int, ...]
    slot: int = -1
    offset: int = 0
    capacity: int = 0
    placed: tuple[Placed, ...] = ()


class ShardStart(Record):
    """Begin ``lane`` after ``snapshot`` (None: the start of the epoch) and ``skip`` dropped items.

    It is ``shard`` of ``branch``; ``count`` items of it are before that point. ``held`` chunks of it are still waiting
    for the consumer. Up to item ``doubtful`` there may be one that kills its process: make these one by one.
    """

    lane: int
    branch: int
    shard: int
    snapshot: bytes | None
    skip: int
    count: int
    held: int
    doubtful: int


@dataclass(frozen=True, kw_only=True)
class StartEpoch(Epoch, Message):
    generation: int
    shards: tuple[ShardStart, ...]
    window: int  # chunks that a lane may be ahead
    window_bytes: int  # and bytes, if that is more than two chunks
    dispatch_address: str | None  # where dispatched items are to be had
    dispatch_branch: int  # the branch that wants them
    careful: bool  # note the node at work before each step, and make items one by one: slow, for naming a culprit
    dealt: bool = False  # is every item made of an entry that the main process deals?


class Deal(Record, Message):
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
    """Begin the dispatched part after its first ``mark_position`` items, where ``mark_snapshot`` was taken.

    ``needed`` has, for each shard that goes on, the first of its items that it has not had. ``fail_at`` is a position
    that has killed dispatchers, and the error to raise in its place. Up to ``doubtful`` items are made one by one.
    """

    generation: int
    mark_position: int
    mark_snapshot: bytes | None
    needed: tuple[tuple[int, int], ...]
    doubtful: int
    careful: bool
    fail_at: tuple[int, bytes] | None


class Hello(Record, Message):
    worker: int
    generation: int


class Want(Record, Message):
    generation: int
    shard: int
    items: int


class Dealt(Record, Message):
    """Entries of ``shard`` in ``layout``; ``over`` says that no more come, because of ``error`` if any."""

    shard: int
    layout: Layout
    over: bool
    error: bytes | None


class Grant(Record, Message):
    """The consumer has used up ``chunks`` more of ``lane``."""

    generation: int
    lane: int
    chunks: int


class Grown(Record, Message):
    """``items`` wait for one shard in the dispatcher, more than ever before. Sent at each doubling."""

    items: int


class EndEpoch(Record, Message):
    generation: int


class Stop(Record, Message):
    pass


class Ready(Record, Message):
    pid: int


class Told(Message):
    """What the main process is to know, of whatever epoch."""


class Notice(Record, Told):
    category: str
    text: str


class Skipped(Record, Told):
    """``on_error`` has left out an item, ``at`` this ``time.time()``. ``shard`` None: before items are dealt."""

    at: float
    shard: int | None
    node: str
    error: str
    item: str


class ChunkMessage(Record, Message):
    """``count`` items in ``layout``; the other fields are those of :class:`torchpipe.execution.shard.Chunk`."""

    generation: int
    lane: int
    count: int
    layout: Layout
    snapshot: bytes | None
    ended: bool
    error: bytes | None


class Failed(Record, Message):
    error: bytes
