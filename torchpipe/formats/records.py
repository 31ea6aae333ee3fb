"""``Records``: the records of one open file, and the position among them."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import check_stamp

__all__ = ["ContentRecords", "Records", "behind_of", "wrong_piece"]

T_co = TypeVar("T_co", covariant=True)


class Records(Iterator[T_co], ABC):
    """The records of one file from a position on: :meth:`__next__` makes one, :meth:`skip` passes over some.

    State: the stamp of the file, which tells another one from it, and the position. Going there takes no longer the
    further on it is, or says by :meth:`behind` what is read again. After an error the position is that of the wrong
    record.
    """

    path: str
    stamp: list[int | str | None] | None
    has_positions = True
    """False where the file can only be read in order, so that there is no state."""
    failed = False
    """True once the next record has raised: for a file that cannot say where the record began that was read last."""
    read_whole = False
    """True if the record that is wrong has been read to its end, so that the next one can follow."""
    step: int = 1
    """A hint: of each ``step`` records, one is going to be asked for and the others are skipped."""

    @abstractmethod
    def __next__(self) -> T_co:
        """The next record. Raises: StopIteration, EOFError and ValueError as the format has it."""

    def skip(self, count: int) -> int:
        """Pass over up to ``count`` records, making none of them if that can be; how many there were."""
        for done in range(count):
            if next(self, self) is self:
                return done
        return count

    def leave_out(self) -> bool:
        """Pass over the next record, which is wrong; False if there is no telling where it ends. May raise as well."""
        return self.skip(1) == 1

    def pass_read(self) -> None:
        """Pass over the record that is wrong and ``read_whole``."""
        raise NotImplementedError

    def follow(self, failed: Any) -> None:
        """These are the records of the same file behind one that is wrong: take over what ``failed`` knows of it."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """The position at which the next record begins: plain data."""

    @abstractmethod
    def go_to(self, position: dict[str, Any]) -> None:
        """Go to ``position``; only before the first record. Raises: StateError if the file has no such position."""

    @abstractmethod
    def where(self) -> str:
        """The position for people, as it stands in errors: ``line 3 (byte 120)``."""

    def behind(self) -> tuple[int, int]:
        """(bytes, records) that going to this position would read again."""
        return 0, 0

    @abstractmethod
    def close(self) -> None:
        """Let go of the file. Idempotent."""

    def state_dict(self) -> dict[str, Any]:
        return {"file": self.stamp, "place": self.position(), "behind": list(self.behind())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: StateError if the file is another one, or lacks the position."""
        check_stamp(self.path, state["file"], self.stamp)
        self.go_to(state["place"])


class ContentRecords(Records[T_co]):
    """Records that are read one after the other from a :class:`Content`. Position: where the next begins, its number.

    ``content`` is what is read, ``offset`` the byte at which the next record begins: :meth:`advance` moves it. Of a
    piece of a file, ``span`` (start, stop), the records are those that start in it; they are counted from there.
    """

    unit = "record"
    first_number = 0  # for people

    def __init__(self, content: Content, span: tuple[int, int] | None = None) -> None:
        self.path = content.path
        self.stamp = content.stamp
        self.has_positions = content.can_seek
        self.content = content
        self._start: int = 0
        self._stop: int | None = None
        if span is not None:
            self._start, self._stop = span
        is_last = self.stamp is not None and self._stop == self.stamp[0]
        self._border = None if is_last else self._stop  # where another piece begins
        self.offset, self._number = self._start, 0
        if self._start:
            content.go_back(self._start)
        reader = weakref.ref(self)  # a cycle would keep the file open
        content.keep(lambda: 0 if (records := reader()) is None else records.offset)

    def advance(self, size: int) -> None:
        """A record of ``size`` bytes has been read: the next one begins behind it."""
        self.offset += size
        self._number += 1

    def position(self) -> dict[str, Any]:
        if self.failed and self.content.is_text:
            raise StateError(
                f"{self.path} is read as a stream of text, which cannot tell where the {self.unit} began that raised: "
                "open the file for bytes, open_files('rb'), and let the reader decode it"
            )
        return {"at": self.content.mark(self.offset), self.unit: self._number}

    def go_to(self, position: dict[str, Any]) -> None:
        number = position[self.unit]
        if type(number) is not int or number < 0:
            raise StateError(f"the state names no {self.unit} of {self.path}, but {number!r:.40}")
        self.offset = self.content.go_to(position["at"])
        self._number = number

    def behind(self) -> tuple[int, int]:
        size = self.content.behind(self.offset)
        return size, round(self._number * size / max(1, self.offset))

    def where(self) -> str:
        number = f"{self.unit} {self._number + self.first_number}"
        number += f" behind byte {self._start}" if self._start else ""
        return number if self.content.is_text else f"{number} (byte {self.offset})"

    def close(self) -> None:
        self.content.close()


def wrong_piece(path: str, what: str) -> ValueError:
    """The error for a piece that does not fit the file: ``what`` says why."""
    return ValueError(
        f"{path} is not divided as its pieces were planned: {what}. Does the index beside it belong to another file? "
        "Make it anew, or remove it, and build the graph anew"
    )


def behind_of(state: Any) -> tuple[int, int]:
    """The numbers that :meth:`Records.behind` gave when ``state`` was saved; zeros if there is no state."""
    if state is None:
        return 0, 0
    size, records = state["behind"]
    if type(size) is not int or type(records) is not int:
        raise TypeError("no numbers of bytes and records")
    return size, records
