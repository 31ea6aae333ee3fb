"""Everything that the main process and a worker say to each other: data, no callables. Imports only ``state``.

::

    main                      worker
      | ---- StartEpoch -------> |   forget the epoch before, begin these shards at these cursors
      | <--- Ready ------------- |   (once, after start-up)
      | <--- Notice ------------ |   a warning to show to the user
      | <--- ChunkMessage ------ |   items of one shard, at most as many as were granted
      | ---- Grant ------------> |   that many items of a shard were used: produce as many more
      | ---- EndEpoch ---------> |   stop producing
      | <--- Failed ------------ |   the worker itself cannot go on; it exits
      | ---- Stop -------------> |   exit

``generation`` numbers the epochs of one loader; what belongs to an older one is ignored on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "ChunkMessage",
    "EndEpoch",
    "Failed",
    "Grant",
    "Message",
    "Notice",
    "Ready",
    "ShardStart",
    "StartEpoch",
    "Stop",
]


@dataclass(frozen=True, kw_only=True)
class ShardStart:
    """Begin ``shard`` behind ``snapshot`` (None: the start of the epoch) and ``skip`` dropped items.

    ``count`` items of the shard are before that point. ``credit`` items may be produced at first.
    """

    shard: int
    snapshot: bytes | None
    skip: int
    count: int
    credit: int


@dataclass(frozen=True, kw_only=True)
class StartEpoch:
    generation: int
    seed: int
    epoch: int
    num_shards: int
    shards: tuple[ShardStart, ...]
    max_chunk: int
    careful: bool  # note the node at work before each step, and send items one by one: slow, for naming a culprit


@dataclass(frozen=True, kw_only=True)
class Grant:
    generation: int
    shard: int
    items: int


@dataclass(frozen=True, kw_only=True)
class EndEpoch:
    generation: int


@dataclass(frozen=True, kw_only=True)
class Stop:
    pass


@dataclass(frozen=True, kw_only=True)
class Ready:
    pid: int


@dataclass(frozen=True, kw_only=True)
class Notice:
    category: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ChunkMessage:
    """``count`` items travel as the frame's payload; the other fields are those of :class:`torchpipe.shard.Chunk`."""

    generation: int
    shard: int
    count: int
    snapshot: bytes | None
    ended: bool
    error: bytes | None


@dataclass(frozen=True, kw_only=True)
class Failed:
    error: bytes


Message: TypeAlias = StartEpoch | Grant | EndEpoch | Stop | Ready | Notice | ChunkMessage | Failed
