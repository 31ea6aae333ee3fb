"""WebDataset's samples: files of a tar archive whose names differ in their endings. Runs wherever its reader runs.

The convention is webdataset's: the files of a sample stand side by side; the key is the name up to the first dot of
its last part, the ending is what follows that dot, in lower case. Other files, and names such as ``__meta__``, are
passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.places.content import Content
from torchpipe.formats.records import Records
from torchpipe.formats.tar import Member, TarFiles

__all__ = ["TarSamples", "check_endings"]


def check_endings(value: object) -> tuple[tuple[str, ...], ...] | None:
    """``["jpg;png", "cls"]`` as (("jpg", "png"), ("cls",)). Raises: ValueError."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f'extensions must be a list such as ["jpg;png", "cls"], at least one, got {value!r:.80}')
    found = []
    for names in value:
        if not isinstance(names, str) or not all(name.strip(" .") for name in names.split(";")):
            raise ValueError(
                f"extensions must be names, with ';' between those of which one is there, got {names!r:.80}"
            )
        found.append(tuple(name.strip(" .").lower() for name in names.split(";")))
    every = [name for names in found for name in names]
    if len(set(every)) < len(every):
        raise ValueError(f"extensions must name each ending once, got {value!r:.80}")
    return tuple(found)


def _split(name: str) -> tuple[str, str] | None:
    """(key, ending) of a file's name; None if it belongs to no sample."""
    folder, slash, last = name.rpartition("/")
    base, dot, ending = last.partition(".")
    if not base or not dot or not ending or (base.startswith("__") and base.endswith("__")):
        return None
    return folder + slash + base, ending.lower()


class TarSamples(Records[dict[str, Any]]):
    """Dicts with ``__key__``, ``__url__`` and the decoded content of each file by its ending.

    ``endings`` are those that are read, all of which a sample must have; of several in a tuple one, whose content
    stands under the first. Place: the header of the next sample's first file.
    """

    def __init__(
        self,
        content: Content,
        endings: Sequence[Sequence[str]] | None,
        decode: Mapping[str, Callable[[bytes], Any]],
    ) -> None:
        self.path = content.path
        self.size = content.size
        self._tail = None if content.ends is None else content.ends[1]
        self._content = content
        self._files = TarFiles(content)
        self._wanted = None if endings is None else {name: names[0] for names in endings for name in names}
        self._needed = [] if endings is None else [names[0] for names in endings]
        self._decode = decode
        self._sample = 0
        self._place = content.mark(0)
        self._next: tuple[str, str, Member] | None = None  # key, ending and file that come next
        self._ended = False

    def _peek(self) -> tuple[str, str, Member] | None:
        while self._next is None and not self._ended:
            member = self._files.next()
            if member is None:
                self._ended = True
            elif (parts := _split(member.name)) is not None:
                self._next = (*parts, member)
        return self._next

    def __next__(self) -> dict[str, Any]:
        first = self._peek()
        if first is None:
            raise StopIteration
        key = first[0]
        contents: dict[str, tuple[str, bytes]] = {}
        others = []
        while (found := self._peek()) is not None and found[0] == key:
            _, ending, member = found
            name = ending if self._wanted is None else self._wanted.get(ending)
            if name is None:
                others.append(ending)
            elif name in contents:
                raise ValueError(f"sample {key!r} has two files that end with .{ending}: do two samples have one name?")
            else:
                contents[name] = ending, self._files.read(member)
            self._next = None
        sample = self._made(key, contents, others)
        self._advance()
        return sample

    def _made(self, key: str, contents: Mapping[str, tuple[str, bytes]], others: Sequence[str]) -> dict[str, Any]:
        missing = [name for name in self._needed if name not in contents]
        if missing:
            there = ", ".join([ending for ending, _ in contents.values()] + [*others])
            raise ValueError(f"sample {key!r} has no file that ends with .{missing[0]}, only {there or 'none at all'}")
        sample: dict[str, Any] = {"__key__": key, "__url__": self.path}
        for name, (ending, content) in contents.items():
            decode = self._decode.get(ending) or self._decode.get(ending.rpartition(".")[2])
            try:
                sample[name] = content if decode is None else decode(content)
            except Exception as error:
                error.add_note(f"while decoding {key}.{ending}")
                raise
        return sample

    def _advance(self) -> None:
        """The sample has been read, or passed over, up to the header of the next one."""
        self._sample += 1
        found = self._peek()
        self._place = self._content.mark(self._files.offset if found is None else found[2].header)

    def skip(self, count: int) -> int:
        for done in range(count):
            first = self._peek()
            if first is None:
                return done
            while (found := self._peek()) is not None and found[0] == first[0]:
                self._next = None
            self._advance()
        return count

    def place(self) -> dict[str, Any]:
        return {"at": list(self._place), "sample": self._sample, "tail": self._tail}

    def go_to(self, place: dict[str, Any]) -> None:
        number = place["sample"]
        if type(number) is not int or number < 0:
            raise StateError(f"the state names no sample of {self.path}, but {number!r:.40}")
        if None not in (place["tail"], self._tail) and place["tail"] != self._tail:
            raise StateError(
                f"{self.path} has changed since the state was saved: it is as long, and ends with other bytes. Restore "
                "it, or begin the epoch anew"
            )
        self._files.go_to(place["at"])
        self._place, self._sample = list(place["at"]), number
        try:
            self._peek()
        except (EOFError, ValueError) as error:
            raise StateError(f"{self.path} has no file at byte {place['at'][0]}, where the state stands") from error

    def behind(self) -> tuple[int, int]:
        size = self._content.behind(self._place[0])
        return size, round(self._sample * size / max(1, self._place[0]))

    def where(self) -> str:
        return f"sample {self._sample} (byte {self._place[0]})"

    def close(self) -> None:
        self._content.close()
