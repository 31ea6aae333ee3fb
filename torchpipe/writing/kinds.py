"""The kind of a shard: encodes samples, and puts them into files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torchpipe.writing.files import PartFile

__all__ = ["Kind", "Writing"]


class Writing(ABC):
    """A shard that is being written, in the process that iterates."""

    @abstractmethod
    def add(self, encoded: Any) -> int:
        """Take what ``encode`` has made of a sample. Returns the bytes that it counts for, before compression.

        Raises: ValueError for one that cannot stand in this shard; OSError.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is left. Raises: as :meth:`add`."""


class Kind(ABC):
    """``encode`` runs where samples are made, and is part of the graph's identity; it does not change its argument.

    ``arguments``: what else the bytes depend on, by name, as plain values. ``learned``: what the first samples have
    said of all that follow, as text; a run that goes on is given it.
    """

    encode: Callable[[Any], Any]
    arguments: dict[str, Any]
    learned: str = ""

    def files(self, name: str) -> list[str]:
        """The files of the shard ``name``, in the order in which they get their names; readers are given the last."""
        return [name]

    @abstractmethod
    def open(self, files: list[PartFile]) -> Writing:
        """Begin a shard. Raises: OSError."""
