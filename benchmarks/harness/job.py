"""``Job``: what a loader is to deliver, in words that every peer can carry out.

Runs in the measured process. Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Job", "Unsupported"]


class Unsupported(Exception):
    """Raised by a peer that has no counterpart of what a workload needs; the text says why, and the table shows it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Indices ``0 .. count - 1``, each made into a sample by ``make`` in a worker, and batched there.

    ``batch_size`` None delivers samples one by one. ``collate`` None means torch's ``default_collate``, which some
    peers have built in. ``item_bytes`` is the size of what is delivered at once, for peers that must be told.
    ``shuffle_buffer`` shuffles the indices of each shard in a buffer of that size (0: not at all); ``permute`` draws a
    whole permutation of them, for loaders with a sampler. ``persistent``: are workers to be kept from epoch to epoch?
    ``tars`` and ``decode``, which makes a sample of a file's content and index, say the same for peers that read tars.
    ``tables`` gives the parquet files that hold so many rows, of which ``columns`` are read, for peers that read those.
    """

    count: int
    make: Callable[[int], Any]
    batch_size: int | None = None
    collate: Callable[[list[Any]], Any] | None = None
    item_bytes: int = 0
    workers: int = 2
    start_method: str = "fork"
    shuffle_buffer: int = 0
    permute: bool = False
    persistent: bool = True
    tars: tuple[str, ...] = ()
    decode: Callable[[bytes, int], Any] | None = None
    tables: Callable[[int], list[str]] | None = None
    columns: tuple[str, ...] = ()

    @property
    def deliveries(self) -> int:
        """How many items a whole pass delivers if ``batch_size`` and ``workers`` divide ``count``."""
        return self.count if self.batch_size is None else self.count // self.batch_size

    def whole(self, count: int) -> int:
        """The least number of samples from ``count`` on of which its workers make whole batches, each as many."""
        together = (self.batch_size or 1) * max(1, self.workers)
        return -(-count // together) * together
