"""``Records``: the records of one open file, and the place among them. Runs wherever its reader runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self, TypeVar

from torchpipe.errors import StateError

__all__ = ["Records", "behind_of"]

T_co = TypeVar("T_co", covariant=True)


class Records(Iterator[T_co], ABC):
    """The records of one file from a place on: :meth:`__next__` makes one, :meth:`skip` passes over some.

    State: the size of the file, by which another one is known, and the place. Going there takes no longer the further
    on it is, or says by :meth:`behind` what is read again. After an error the place is that of the record that is
    wrong.
    """

    path: str
    size: int
    """Of the stored file, in bytes."""
    step: int = 1
    """A hint: of each ``step`` records, one is going to be asked for and the others are skipped."""

    @abstractmethod
    def __next__(self) -> T_co:
        """The next record. Raises: StopIteration, EOFError and ValueError as the format has it."""

    def __iter__(self) -> Self:
        return self

    def skip(self, count: int) -> int:
        """Pass over up to ``count`` records, making none of them if that can be; how many there were."""
        for done in range(count):
            if next(self, self) is self:
                return done
        return count

    def leave_out(self) -> bool:
        """Pass over the next record, which is wrong; False if there is no telling where it ends. May raise as well."""
        return self.skip(1) == 1

    @abstractmethod
    def place(self) -> dict[str, Any]:
        """Where the next record begins: plain data."""

    @abstractmethod
    def go_to(self, place: dict[str, Any]) -> None:
        """Let the next record be the one there. Only before the first. Raises: StateError if there is no such place."""

    @abstractmethod
    def where(self) -> str:
        """The place for people, as it stands in errors: ``line 3 (byte 120)``."""

    def behind(self) -> tuple[int, int]:
        """(bytes, records) that going to this place would read again."""
        return 0, 0

    @abstractmethod
    def close(self) -> None:
        """Let go of the file. Idempotent."""

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size, "place": self.place(), "behind": list(self.behind())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: StateError if the file is another one, or has no such place."""
        if state["size"] != self.size:
            raise StateError(
                f"{self.path} has changed since the state was saved: it had {state['size']!r:.40} bytes, and has "
                f"{self.size} now. Restore it, or begin the epoch anew"
            )
        self.go_to(state["place"])


def behind_of(state: Any) -> tuple[int, int]:
    """What :meth:`Records.behind` said when ``state`` was saved; nothing if there is no state."""
    if state is None:
        return 0, 0
    size, records = state["behind"]
    if type(size) is not int or type(records) is not int:
        raise TypeError("no numbers of bytes and records")
    return size, records
