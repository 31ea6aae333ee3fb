"""Chunks that have arrived, in the main process. Items are rebuilt when the consumer takes their chunk."""

from __future__ import annotations

from dataclasses import dataclass

from reading_services.engine.workers import Arrival
from reading_services.processes.payloads import Delivery, Receiver
from reading_services.processes.wire import ChunkMessage
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures import add_note, load_error

__all__ = ["arrival_of"]


@dataclass(slots=True, kw_only=True)
class _Delivered(Arrival):
    delivery: Delivery | None = None

    def open(self, shard: int) -> Chunk:
        delivery, self.delivery = self.delivery, None
        try:
            self.items = [] if delivery is None else delivery.open()
        except Exception as error:
            add_note(
                error,
                f"torchpipe: one of the next {self.count} items of shard {shard} could not be rebuilt in the main "
                "process: its __reduce__ (of an exception: its args) gives arguments that its constructor refuses. "
                "Define __reduce__ in its class, or turn it into plain data inside the pipeline",
            )
            return Chunk(error=error)
        return self


def arrival_of(message: ChunkMessage, payload: memoryview, receiver: Receiver) -> Arrival:
    """One that cannot be received is an error in its place: what comes after it must not come in that."""
    try:
        delivery = receiver.arrive(message.layout, payload)
    except Exception as error:
        return Arrival(error=error)
    return _Delivered(
        count=message.count,
        nbytes=sum(message.layout.sizes),
        snapshot=message.snapshot,
        ended=message.ended,
        error=None if message.error is None else load_error(message.error),
        delivery=delivery,
    )
