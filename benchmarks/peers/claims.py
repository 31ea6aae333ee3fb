"""torchpipe with each item taken as a claim, which is done at once: what claims cost beside the plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import torchpipe_

__all__ = ["Loader", "finished"]


def finished(loader: Any) -> Iterator[Any]:
    for claim in loader.claims(ahead=64):
        yield claim.item
        claim.done()


class Loader(torchpipe_.Loader):
    def __iter__(self) -> Iterator[Any]:
        return finished(self.loader)
