"""What has arrived from a process, and how it becomes again what the main process works with.

Runs in the main process.
"""

from __future__ import annotations

from dataclasses import dataclass

from reading_services._runtime.messages import ChunkMessage
from reading_services._runtime.payloads import Delivery, Receiver
from reading_services._runtime.remote_error import load_error
from torchpipe.errors import ReplayWarning
from torchpipe.execution.shard import Chunk
from torchpipe.node.failure import add_note

__all__ = ["Arrival", "warning_category"]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A chunk that has arrived whole; its items are rebuilt when the consumer takes it, which is ``open``.

    ``over`` says that nothing comes after it. ``error`` is bytes from another process, or an exception of this one.
    """

    count: int = 0
    snapshot: bytes | None = None
    ended: bool = False
    error: bytes | BaseException | None = None
    delivery: Delivery | None = None

    @classmethod
    def of(cls, message: ChunkMessage, payload: memoryview, receiver: Receiver) -> Arrival:
        """One that cannot be received is an error in its place: what comes after it must not come in that."""
        try:
            delivery = receiver.arrive(message.layout, payload)
        except Exception as error:
            return cls(error=error)
        return cls(
            count=message.count,
            snapshot=message.snapshot,
            ended=message.ended,
            error=message.error,
            delivery=delivery,
        )

    @property
    def over(self) -> bool:
        return self.ended or self.error is not None

    def open(self, shard: int) -> Chunk:
        """The chunk, once. Items of ``shard`` that cannot be rebuilt become an error in their place."""
        try:
            items = [] if self.delivery is None else self.delivery.open()
        except Exception as error:
            add_note(
                error,
                f"torchpipe: one of the next {self.count} items of shard {shard} could not be rebuilt in the main "
                "process: its class pickles what it cannot be made of again. Give it a __reduce__, or turn it into "
                "plain data inside the pipeline",
            )
            return Chunk(error=error)
        failure = load_error(self.error) if isinstance(self.error, bytes) else self.error
        return Chunk(items=items, snapshot=self.snapshot, ended=self.ended, error=failure)


def warning_category(name: str) -> type[Warning]:
    return ReplayWarning if name == ReplayWarning.__name__ else UserWarning
