"""WebDataset's samples: files of a tar archive whose names differ in their endings.

The convention is webdataset's: the files of a sample stand side by side; the key is the name up to the first dot of
its last part, the ending is what follows that dot, in lower case. Other files, and names such as ``__meta__``, are
passed over.

So names with dots in front of the ending (``clip_v1.0_7.txt``) are files of one sample, ``clip_v1``, and an archive
that is not sorted by names holds samples in pieces: what gives that away is an error. A key that stood before the
position where reading began is not known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchpipe.formats.records import ContentRecords, wrong_piece
from torchpipe.formats.storage.content import Content
from torchpipe.formats.tar import Member, TarFiles

__all__ = ["MOST_ENDINGS", "TarSamples", "check_endings", "many_endings", "split_name"]

MOST_ENDINGS = 60  # of one sample; more are samples with one key


def check_endings(value: object) -> tuple[tuple[str, ...], ...] | None:
    """``["jpg;png", "cls"]`` as (("jpg", "png"), ("cls",)). Raises: ValueError."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f'extensions must be a list such as ["jpg;png", "cls"], at least one, got {value!r:.80}')
    found = []
    for names in value:
        if not isinstance(names, str) or not all(name.strip(" .") for name in names.split(";")):
            raise ValueError(f"extensions must be names, with ';' between alternatives, got {names!r:.80}")
        found.append(tuple(name.strip(" .").lower() for name in names.split(";")))
    every = [name for names in found for name in names]
    if len(set(every)) < len(every):
        raise ValueError(f"extensions must name each ending once, got {value!r:.80}")
    return tuple(found)


def split_name(name: str) -> tuple[str, str] | None:
    """(key, ending in lower case) of a file's name; None if it belongs to no sample."""
    folder, slash, last = name.rpartition("/")
    base, dot, ending = last.partition(".")
    if not base or not dot or not ending or (base.startswith("__") and base.endswith("__")):
        return None
    return folder + slash + base, ending.lower()


def many_endings(key: str, endings: Sequence[str]) -> ValueError:
    """The error for a sample of more files than any has."""
    return ValueError(
        f"sample {key!r} has more than {MOST_ENDINGS} files, which end with .{endings[0]}, .{endings[1]} ...: the key "
        "of a sample is its name up to the first dot. If these are samples of their own, rename the files when the "
        "archive is written, so that the only dot stands before the ending"
    )


class TarSamples(ContentRecords[dict[str, Any]]):
    """Dicts with ``__key__``, ``__url__`` and the decoded content of each file by its ending.

    ``endings`` are those that are read. A sample must have all; of several in a tuple one, whose content
    stands under the first. Position: the header of the next sample's first file.
    """

    unit = "sample"

    def __init__(
        self,
        content: Content,
        endings: Sequence[Sequence[str]] | None,
        decode: Mapping[str, Callable[[bytes], Any]],
        span: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(content, span)
        self._files = TarFiles(content)
        self._files.begin_at(self._start)
        self._wanted = None if endings is None else {name: names[0] for names in endings for name in names}
        self._needed = [] if endings is None else [names[0] for names in endings]
        self._decode = decode
        self._next: tuple[str, str, Member] | None = None  # key, ending and file that come next
        self._ended = False
        self._keys: set[int] = set()  # of the samples so far

    def _begin(self, key: str) -> None:
        """The next sample has this key. Raises: ValueError."""
        if (mark := hash(key)) in self._keys:
            raise ValueError(
                f"sample {key!r} stands in the archive in two places: the files of a sample stand side by side. Write "
                "the archive in the order of names (GNU tar: --sort=name), or give two samples two names"
            )
        self._keys.add(mark)

    def _first(self) -> tuple[str, str, Member] | None:
        """The first file of the next sample; None at the end of the archive, or of the piece."""
        found = self._peek()
        return None if found is None or self._is_behind(found[2]) else found

    def _is_behind(self, member: Member) -> bool:
        return self._border is not None and member.header >= self._border

    def _peek(self) -> tuple[str, str, Member] | None:
        while self._next is None and not self._ended:
            try:
                member = self._files.next()
            except ValueError as error:
                if self._start and self._files.offset == self._start:
                    raise wrong_piece(self.path, f"no file begins at byte {self._start}") from error
                raise
            if member is None:
                self._ended = True
            elif (parts := split_name(member.name)) is not None:
                self._next = (*parts, member)
        return self._next

    def __next__(self) -> dict[str, Any]:
        first = self._first()
        if first is None:
            raise StopIteration
        key = first[0]
        contents: dict[str, tuple[str, bytes]] = {}
        others: list[str] = []
        self._begin(key)
        while (found := self._peek()) is not None and found[0] == key:
            _, ending, member = found
            self._check_inside(key, member)
            name = ending if self._wanted is None else self._wanted.get(ending)
            if name is None:
                others.append(ending)
            elif name in contents:
                raise ValueError(f"sample {key!r} has two files that end with .{ending}: do two samples have one name?")
            else:
                contents[name] = ending, self._files.read(member)
            self._next = None
            if len(contents) + len(others) > MOST_ENDINGS:
                raise many_endings(key, [*contents, *others])
        sample = self._made(key, contents, others)
        self._pass_sample()
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
            except StopIteration as error:
                raise RuntimeError(
                    f"the function for .{ending} raised StopIteration for {key}.{ending}, which is no end: does it "
                    "call next() without a default?"
                ) from error
            except Exception as error:
                error.add_note(f"while decoding {key}.{ending}")
                raise
        return sample

    def _pass_sample(self) -> None:
        """The sample has been read, or passed over, up to the header of the next one."""
        found = self._peek()
        self._advance((self._files.offset if found is None else found[2].header) - self._offset)

    def _check_inside(self, key: str, member: Member) -> None:
        """Raises: ValueError for a sample that goes over the end of its piece, since the next one has the rest."""
        if self._is_behind(member) or (self._border is not None and member.data + member.size > self._border):
            raise wrong_piece(self.path, f"sample {key!r} goes over byte {self._border}, where a piece ends")

    def _pass_files(self, key: str) -> None:
        while (found := self._peek()) is not None and found[0] == key:
            self._check_inside(key, found[2])
            self._next = None

    def leave_out(self) -> bool:
        first = self._first()
        if first is not None:
            self._keys.add(hash(first[0]))
            self._pass_files(first[0])
            self._pass_sample()
        return first is not None

    def follow(self, failed: TarSamples) -> None:
        self._keys = failed._keys

    def skip(self, count: int) -> int:
        for done in range(count):
            first = self._first()
            if first is None:
                return done
            self._begin(first[0])
            self._pass_files(first[0])
            self._pass_sample()
        return count

    def go_to(self, position: dict[str, Any]) -> None:
        super().go_to(position)
        self._files.stand_at(self._offset)
