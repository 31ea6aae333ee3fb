"""What has arrived from a process, and how it becomes again what the main process works with.

Runs in the main process.
"""

from __future__ import annotations

from dataclasses import dataclass

from reading_services._transport.messages import ChunkMessage
from reading_services._transport.payloads import Delivery, Receiver
from torchpipe.errors import ReplayWarning
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures.failure import add_note
from torchpipe.node.failures.remote_error import load_error

__all__ = ["Arrival", "warning_category"]


@dataclass(slots=True, kw_only=True)
class Arrival(Chunk):
    """A chunk that has arrived whole; its ``count`` items are rebuilt when the consumer takes it, which is ``open``."""

    count: int = 0
    nbytes: int = 0
    delivery: Delivery | None = None

    @classmethod
    def of(cls, message: ChunkMessage, payload: memoryview, receiver: Receiver) -> Arrival:
        """One that cannot be received is an error in its place: what comes after it must not come in that."""
        try:
            delivery = receiver.arrive(message.layout, payload)
        except Exception as error:
            return cls(error=error)
        failure = None if message.error is None else load_error(message.error)
        return cls(
            count=message.count,
            nbytes=sum(message.layout.sizes),
            snapshot=message.snapshot,
            ended=message.ended,
            error=failure,
            delivery=delivery,
        )

    @property
    def over(self) -> bool:
        """Does nothing come after it?"""
        return self.ended or self.error is not None

    def open(self, shard: int) -> Chunk:
        """The chunk, once. Items of ``shard`` that cannot be rebuilt become an error in their place."""
        delivery, self.delivery = self.delivery, None
        try:
            self.items = [] if delivery is None else delivery.open()
        except Exception as error:
            add_note(
                error,
                f"torchpipe: one of the next {self.count} items of shard {shard} could not be rebuilt in the main "
                "process: its class pickles what it cannot be made of again. Give it a __reduce__, or turn it into "
                "plain data inside the pipeline",
            )
            return Chunk(error=error)
        return self


def warning_category(name: str) -> type[Warning]:
    return ReplayWarning if name == ReplayWarning.__name__ else UserWarning
