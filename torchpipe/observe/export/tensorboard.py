"""A loader's figures as TensorBoard scalars, beside the training's own."""

from __future__ import annotations

import os
from typing import Any, Self

from torchpipe.compat.packages import needs
from torchpipe.observe.text import FigureSource, NewEvents, own_shares
from torchpipe.stats import LoaderStats

__all__ = ["TensorBoardExporter"]


class TensorBoardExporter:
    """Writes the figures of ``loader`` whenever :meth:`write` is called: starts no thread.

    ``writer``: a ``SummaryWriter`` that there is, or a folder for one of its own, which :meth:`close` then closes.
    ``tag``: what the names begin with.

    Raises: ImportError without ``tensorboard``.
    """

    def __init__(self, loader: FigureSource, writer: Any, tag: str = "data") -> None:
        self._loader = loader
        self._tag = tag
        self._owned = isinstance(writer, str | os.PathLike)
        self._writer = _writer(writer) if self._owned else writer
        self._events = NewEvents()
        self._last: LoaderStats | None = None

    def write(self, step: int) -> None:
        """Scalars of the time since the last call in this epoch, or since it began; events as text."""
        stats, last = self._loader.stats(), self._last
        if last is not None and last.began_at == stats.began_at:
            before = last.consumer
            items, elapsed_s, wait_s = before.items, before.elapsed_s, before.wait_s
        else:
            items, elapsed_s, wait_s = 0, 0.0, 0.0
        consumer = stats.consumer
        passed_s = consumer.elapsed_s - elapsed_s
        if passed_s > 0:
            self._scalar("items_per_s", (consumer.items - items) / passed_s, step)
            self._scalar("wait_share", min(1.0, max(0.0, (consumer.wait_s - wait_s) / passed_s)), step)
        self._scalar("epoch", stats.epoch, step)
        self._scalar("restarts", stats.restarts, step)
        memory = [process.memory_bytes for process in stats.processes if process.memory_bytes is not None]
        if memory:
            self._scalar("memory_bytes", sum(memory), step)
        shares = own_shares(stats)
        for node in stats.nodes:
            name = f"{node.number} {node.name}"
            if node.number in shares:
                self._scalar(f"time_share/{name}", shares[node.number], step)
            if node.skipped:
                self._scalar(f"skipped/{name}", node.skipped, step)
        for queue in stats.queues:
            self._scalar(f"queue/{queue.name}", queue.fill, step)
        for event in self._events.of(stats):
            self._writer.add_text(f"{self._tag}/events", f"{event.kind}: {event.process}: {event.text}", step)
        self._last = stats

    def _scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(f"{self._tag}/{name}", value, step)

    def close(self) -> None:
        """Close the writer, if it is its own. Idempotent."""
        if self._owned:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _writer(folder: Any) -> Any:
    tensorboard = needs("torch.utils.tensorboard", "TensorBoardExporter", "tensorboard")
    return tensorboard.SummaryWriter(os.fspath(folder))
