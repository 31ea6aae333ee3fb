"""The reports of a worker for the user, until the main process is told.

It is told with the chunk that is made next. So an item that ``on_error`` leaves out is told with the chunk that it is
missing from: where items are made again, after a death, a move or for a resume, it is then not told again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from reading_services.engine.messages import Notice, Report, Skipped
from torchpipe.errors import ReplayWarning
from torchpipe.state import LeftOut

__all__ = ["Reports"]


class Reports:
    """The reports of the chunk that is being made."""

    def __init__(self) -> None:
        self._waiting: list[Report] = []

    def add(self, report: Report) -> None:
        self._waiting.append(report)

    def left_out(self, shard: int | None, missing: LeftOut, *, lane: int = -1) -> None:
        """An item was left out just now."""
        self.add(
            Skipped(at=time.time(), lane=lane, shard=shard, node=missing.node, error=missing.error, item=missing.item)
        )

    def replay(self, text: str | None) -> None:
        """Items are made again, which ``text`` says; None: none are."""
        if text is not None:
            self.add(Notice(category=ReplayWarning.__name__, text=text))

    def warning(self, text: str, category: type[Warning] = UserWarning) -> None:
        self.add(Notice(category=category.__name__, text=text))

    @contextmanager
    def of_warnings(self) -> Iterator[None]:
        """All warnings that this process shows in the ``with`` block become reports, also if it raises."""
        with warnings.catch_warnings(record=True) as caught:
            try:
                yield
            finally:
                self._waiting += [Notice(category=item.category.__name__, text=str(item.message)) for item in caught]

    def take(self, generation: int = 0) -> list[Report]:
        """All that there are, once; of lanes, in this generation."""
        waiting, self._waiting = self._waiting, []
        return [replace(item, generation=generation) if isinstance(item, Skipped) else item for item in waiting]
