"""The facts that a process has learned of files: found again as long as the file is the same one.

Runs in any thread; of two that learn the same at once, one keeps it. Nothing of it is part of a state.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from torchpipe.formats.storage.streams import Stamp, seen_of

__all__ = ["Remembered", "identity_of"]

T = TypeVar("T")


def identity_of(file: Any, stamp: Stamp | None) -> object:
    """The identity of an open file: another one wherever this process finds other content; None if nobody can tell."""
    return None if stamp is None or stamp[1] is None else (stamp, seen_of(file))


class Remembered(Generic[T]):
    """A ``T`` for each of some files, by path and identity. All are forgotten once they have more than ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, tuple[object, T]] = {}
        self._size = 0

    def has(self, path: str) -> bool:
        """True for a file of that name, which may be another one by now."""
        return path in self._kept

    def get(self, path: str, identity: object) -> T | None:
        known, value = self._kept.get(path, (None, None))
        return None if identity is None or known != identity else value

    def keep(self, path: str, identity: object, value: T, size: int = 1) -> None:
        if identity is None:
            return
        if self._size + size > self._most:
            self._kept, self._size = {}, 0
        self._kept[path] = identity, value
        self._size += size
