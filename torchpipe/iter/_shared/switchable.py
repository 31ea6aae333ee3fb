"""Random nodes that torch's loaders seed, and switch on and off."""

from __future__ import annotations

from typing import Any, TypeVar

from torchpipe.indexed.shuffled import Switched
from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.datapipe import IterDataPipe

__all__ = ["Switchable"]

T = TypeVar("T")


class Switchable(Switched[T], OneInput[T]):  # type: ignore[misc]  # the forms of both are the same
    """Base of those with one input."""

    seeded = True  # from the context: a pass is not told a seed by set_seed

    def __init__(self, source: IterDataPipe[Any]) -> None:
        OneInput.__init__(self, source)
        self.own_seed: int | None = None
        self.enabled = True
