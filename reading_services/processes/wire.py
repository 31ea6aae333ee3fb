"""The messages between processes besides the engine's: data, no callables.

::

    main                      worker
      | <--- Ready ------------- |   (once, after start-up)
      | ---- StartEpoch, Deal -> |   the engine's (engine/messages.py), as are Reports
      | <--- ChunkMessage ------ |   items of one lane, as long as the window allows it
      | ---- Grant ------------> |   that many chunks of a lane were used: produce as many more
      | ---- EndEpoch ---------> |   stop producing
      | <--- Failed ------------ |   the process cannot go on; it exits
      | ---- Stop -------------> |   exit

    dispatcher                worker
      | <--- Request ----------- |   the next items of a shard
      | ---- Dealt ------------> |   some of them, and the marks between them
"""

from __future__ import annotations

from dataclasses import dataclass

from reading_services.engine.messages import Message

__all__ = [
    "ChunkMessage",
    "DispatchedMessage",
    "EndEpoch",
    "FailedMessage",
    "Grant",
    "Layout",
    "Placed",
    "ReadyMessage",
    "RequestMessage",
    "Stop",
]


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A buffer that was made in a slot and stays there: from ``start`` on in the slot's memory."""

    buffer: int  # its number among those of the layout
    slot: int
    offset: int
    capacity: int
    start: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a message's items: ``sizes`` in bytes of the pickle and of the buffers that it refers to.

    But for those that are ``placed``, they lie in a slot of the sender's arena, at ``offset`` of ``capacity`` bytes;
    without a slot, in the payload.
    """

    sizes: tuple[int, ...]
    slot: int = -1
    offset: int = 0
    capacity: int = 0
    placed: tuple[Placed, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReadyMessage(Message):
    pid: int


@dataclass(frozen=True, kw_only=True)
class ChunkMessage(Message):
    """``count`` items in ``layout``; the other fields are those of :class:`torchpipe.execution.shard.Chunk`."""

    generation: int
    lane: int
    count: int
    layout: Layout
    snapshot: bytes | None
    ended: bool
    error: bytes | None


@dataclass(frozen=True, kw_only=True)
class Grant(Message):
    """The consumer has used up ``chunks`` more of ``lane``."""

    generation: int
    lane: int
    chunks: int


@dataclass(frozen=True, kw_only=True)
class EndEpoch(Message):
    generation: int


@dataclass(frozen=True, kw_only=True)
class FailedMessage(Message):
    error: bytes


@dataclass(frozen=True, kw_only=True)
class Stop(Message):
    pass


@dataclass(frozen=True, kw_only=True)
class RequestMessage(Message):
    """Up to ``items`` more of ``shard``, as soon as there is one. A shard has one request at a time."""

    generation: int
    shard: int
    items: int


@dataclass(frozen=True, kw_only=True)
class DispatchedMessage(Message):
    """Entries of ``shard`` in ``layout``; ``over`` says that no more come, because of ``error`` if any."""

    shard: int
    layout: Layout
    over: bool
    error: bytes | None
