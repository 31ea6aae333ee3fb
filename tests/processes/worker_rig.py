"""A worker's loop without a process: all that main says lies ready in a MemoryChannel, and what is sent is read.

``tests/processes/conftest.py`` makes fixtures of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from reading_services.engine.messages import Message, ShardStart, StartEpoch
from reading_services.processes.arena import Arena
from reading_services.processes.channel import ChannelClosed
from reading_services.processes.payloads import Receiver
from reading_services.processes.status_page import StatusPage
from reading_services.processes.wire import ChunkMessage, Grant
from reading_services.processes.worker import WorkerLoop
from tests.processes.memory_channel import MemoryChannel
from torchpipe.node.failures import load_error
from torchpipe.node.traits import DataPipe
from torchpipe.state import Cursor, SnapshotPolicy

__all__ = [
    "WINDOW",
    "ItemsAChunk",
    "MakeRig",
    "Rig",
    "Sent",
    "chunks",
    "ended",
    "epoch",
    "fail_at",
    "grant",
    "items_of",
    "only_error",
    "shard",
]

Sent = list[tuple[Message, list[Any]]]
WINDOW = 1000


def epoch(
    *shards: ShardStart,
    generation: int = 1,
    number: int = 0,
    num_shards: int = 1,
    window: int = WINDOW,
    window_bytes: int = 1 << 40,
    isolate_items: bool = False,
) -> StartEpoch:
    return StartEpoch(
        generation=generation,
        seed=5,
        epoch=number,
        num_shards=num_shards,
        rank=0,
        world_size=1,
        shards=shards,
        window=window,
        window_bytes=window_bytes,
        dispatch_branch=-1,
        isolate_items=isolate_items,
    )


def shard(
    number: int = 0, *, held: int = 0, skip: int = 0, snapshot: bytes | None = None, isolate_before: int = 0
) -> ShardStart:
    return ShardStart(
        lane=number,
        branch=0,
        shard=number,
        cursor=Cursor(snapshot, skip),
        held=held,
        isolate_before=isolate_before,
    )


def grant(chunks: int, number: int = 0, generation: int = 1) -> Grant:
    return Grant(generation=generation, lane=number, chunks=chunks)


class Rig:
    """A worker with main's end of its connection. ``run`` hands it messages and lets it work until it has to wait."""

    def __init__(
        self,
        graph: DataPipe,
        init_fn: Any = None,
        reset_fn: Any = None,
        *,
        every: int = 1000,
        arena: Arena | None = None,
    ) -> None:
        self.main, theirs = MemoryChannel.pair()
        self.page = StatusPage()
        self.stopped = False
        # In a process the worker has a descriptor and mappings of its own
        self._arenas = [] if arena is None else [arena, Arena(os.dup(arena.fd))]
        ours, workers = self._arenas or (None, None)
        self._receiver = Receiver(ours)
        policy = partial(SnapshotPolicy, every=every)
        self._worker = WorkerLoop(3, theirs, self.page, (graph,), init_fn, reset_fn, policy, arena=workers)

    def run(self, *messages: Message) -> Sent:
        """What is sent: (message, the items that it carries)."""
        for message in messages:
            self.main.send(message)
        try:
            self._worker.run()
            self._worker.close()
            self.stopped = True
        except ChannelClosed:  # it waits, with an empty inbox
            pass
        sent: Sent = []
        while (frame := self.main.receive(wait=False)) is not None:
            message, payload = frame
            items = []
            if isinstance(message, ChunkMessage):
                items = self._receiver.arrive(message.layout, memoryview(bytearray(payload))).open()
                assert message.count == len(items)
            sent.append((message, items))
        return sent

    def close(self) -> None:
        self.page.close()
        for arena in self._arenas:
            arena.close()


MakeRig = Callable[..., Rig]
ItemsAChunk = Callable[[int], None]


def chunks(sent: Sent) -> list[tuple[int, list[Any]]]:
    """(shard, items) of each chunk."""
    return [(message.lane, items) for message, items in sent if isinstance(message, ChunkMessage)]


def items_of(sent: Sent, number: int = 0) -> list[Any]:
    return [item for shard, items in chunks(sent) if shard == number for item in items]


def only_error(sent: Sent) -> BaseException:
    errors = [message.error for message, _ in sent if isinstance(message, ChunkMessage) and message.error is not None]
    assert len(errors) == 1
    last = [message for message, _ in sent if isinstance(message, ChunkMessage)][-1]
    assert last.error is errors[0]  # nothing comes after an error
    assert not last.ended
    return load_error(errors[0])


def ended(sent: Sent) -> list[int]:
    return [message.lane for message, _ in sent if isinstance(message, ChunkMessage) and message.ended]


def fail_at(number: int) -> Callable[[Any], Any]:
    def step(item: Any) -> Any:
        if item == number:
            raise ValueError(f"broken at {number}")
        return item

    return step
