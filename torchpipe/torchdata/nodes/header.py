"""``header``: ``take`` by torchdata's name."""

from __future__ import annotations

from typing import TypeVar

from torchpipe.iter.limiting import Taker
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["Header"]

T = TypeVar("T")


@functional_datapipe("header")
class Header(Taker[T]):
    """``take`` under torchdata's name: the first ``limit`` items (None: all of them).

    State: the number of items handed out. Raises: ValueError if ``limit`` is negative.
    """

    def __init__(self, source_datapipe: IterDataPipe[T], limit: int | None = 10) -> None:
        most = None if limit is None else check_count("limit", limit, at_least=0)
        super().__init__(source_datapipe, most or 0)
        self.limit = most
