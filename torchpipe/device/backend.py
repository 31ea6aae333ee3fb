"""The interface between the pipeline and a kind of device."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torchpipe.ahead.stage import Mover

__all__ = ["Backend"]


@runtime_checkable
class Backend(Mover, Protocol):
    """Moves batches to a device: one object serves one pass at a time, from ``prepare()`` to ``close()``.

    ``prepare``, ``receive`` and ``close`` are called in the consumer's thread (``close`` at times in the feed thread),
    ``transfer`` in the feed thread, batch by batch in order; with ``transfer_threads`` above 1, in several threads at
    once. ``transfer`` must leave the batch that it gets as it is, and move all of it or raise: a part that silently
    stays behind is an error. ``sync="loader"`` and ``wait_every`` need :class:`~torchpipe.device.Synchronous`, too.
    """

    @property
    def name(self) -> str:
        """The device in a word, for errors."""

    @property
    def releases_source(self) -> bool:
        """True if the memory of a batch may be overwritten as soon as ``transfer`` has returned.

        The stage drops the batch then in any case. A backend that says False keeps what it still reads in what it
        returns.
        """
