"""The files in a tar archive, in order, from the header of any of them on.

The formats are those of POSIX (pax and ustar: IEEE Std 1003.1-2001, "pax", and its "ustar Interchange Format") and of
GNU tar. ``tarfile`` of the standard library reads the same; this passes over a file in a few microseconds, can begin
anywhere, and takes no damage for the end of an archive.

WebDataset's samples: files of a tar archive whose names differ in their endings.

The convention is webdataset's: the files of a sample stand side by side; the key is the name up to the first dot of
its last part, the ending is what follows that dot, in lower case. Other files, and names such as ``__meta__``, are
passed over.

So names with dots in front of the ending (``clip_v1.0_7.txt``) are files of one sample, ``clip_v1``, and an archive
that is not sorted by names holds samples in pieces: what gives that away is an error. A key that stood before the
position where reading began is not known any more.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.records import ContentRecords, wrong_piece
from torchpipe.formats.storage.content import BUFFER_BYTES, Content
from torchpipe.formats.storage.streams import Remembered, StreamWrapper, close_stream_after_parts, wrap_stream

__all__ = [
    "BLOCK_BYTES",
    "MOST_ENDINGS",
    "Member",
    "TarFiles",
    "TarSamples",
    "TarStreams",
    "check_endings",
    "many_endings",
    "split_name",
]

BLOCK_BYTES = 512
_ZEROS = bytes(BLOCK_BYTES)
_FILE = frozenset(b"\0" + b"07")  # the old, the usual and the contiguous kind
_HARD_LINK, _SYMBOLIC_LINK = b"12"
_WITHOUT_DATA = frozenset(b"123456")  # links, devices, folders, pipes: whatever their size says
_MOST_HEADER_BYTES = 1 << 20
_ARCHIVES = 16  # whose names a process keeps, of those with links


@dataclass(frozen=True)
class Member:
    """A regular file: its name, where its header begins (with those that extend it) and its data, how many bytes it
    has. Of a link, the data are those of the file that it names; ``lacks`` says why it has none."""

    name: str
    header: int
    data: int
    size: int
    lacks: str = ""


class _Names:
    """The files of an archive that stand before byte ``reached``, by their names: in each list in any order.

    Several threads may read one archive, and note the same files: a file is there before ``reached`` says so.
    """

    def __init__(self) -> None:
        self.reached = 0
        self._by_name: dict[str, list[Member]] = {}

    def add(self, member: Member) -> None:
        self._by_name.setdefault(_normal(member.name), []).append(member)

    def file_before(self, name: str, end: int) -> Member | None:
        """The last file of that name before byte ``end``."""
        before = [member for member in self._by_name.get(name, ()) if member.header < end]
        return max(before, key=lambda member: member.header, default=None)

    def has_folder_before(self, name: str, end: int) -> bool:
        inside = (members for path, members in list(self._by_name.items()) if path.startswith(name + "/"))
        return name in ("", ".") or any(member.header < end for members in inside for member in members)


_names = Remembered[_Names](_ARCHIVES)


class TarFiles:
    """The regular files of an archive, one after the other. ``offset`` is where the next header begins.

    A hard or symbolic link is the file that it names, which has to stand before it: as tar writes a file with several
    names. With the first link the names that stand before it are read, once; a stream that cannot seek has no way back
    to what they name. One that names no such file is an error when its content is asked for, and not before; one that
    names a folder is none of the files. With ``follows_links=False`` nothing but headers from ``offset`` on is read: a
    link is a file without data, whatever it names.

    Raises: EOFError for an archive that is cut off, ValueError for one that is damaged and, reading and opening, for a
    link to a file that does not stand before it; all name the archive.
    """

    def __init__(self, content: Content, *, follows_links: bool = True) -> None:
        self.path = content.path
        self.offset = 0
        self._follows_links = follows_links
        self._content = content
        self._at = 0  # of the stream
        self._held: list[Member | None] = []  # found by stand_at()
        self._lock = threading.Lock()
        self._names: _Names | None = None  # from the first link on

    def next(self) -> Member | None:
        """The next file, whose content :meth:`read` gives; None at the end of the archive."""
        if self._held:
            return self._held.pop()
        start = self.offset
        name: str | None = None
        target: str | None = None  # of a link
        size: int | None = None
        while True:
            header = self._take(self.offset, BLOCK_BYTES)
            if header == _ZEROS:
                self._check_end()
                return None
            kind, length = self._checked(header)
            data = self.offset + BLOCK_BYTES
            if kind in b"LxgK":
                extension = self._extension(data, length)
                self.offset = data + _padded(length)
                if kind in b"LK":
                    text = extension.rstrip(b"\0").decode("utf-8", "surrogateescape")
                    name, target = (text, target) if kind == 76 else (name, text)
                elif kind == 120:  # x
                    found = _pax(extension, self.path)
                    name, size = found.get("path", name), _number(found.get("size"), size, self.path)
                    target = found.get("linkpath", target)
                continue
            if kind in _WITHOUT_DATA:
                length = 0
            elif size is not None:
                length = size
            self.offset = data + _padded(length)
            file: Member | None = None
            if kind in _FILE:
                file = Member(_name(header) if name is None else name, start, data, length)
            elif kind in (_HARD_LINK, _SYMBOLIC_LINK):
                file = Member(_name(header) if name is None else name, start, 0, 0)
                if self._follows_links:
                    file = self._named(file, _text(header[157:257]) if target is None else target, kind)
            elif kind not in _WITHOUT_DATA:
                raise ValueError(
                    f"{self.path} holds a file of type {chr(kind)!r} at byte {start}, which is not supported"
                )
            if self._names is not None and self._names.reached == start:
                if file is not None and not file.lacks:
                    self._names.add(file)
                self._names.reached = max(self._names.reached, self.offset)
            if file is not None:
                return file
            start, name, target, size = self.offset, None, None, None

    def _named(self, link: Member, target: str, kind: int) -> Member | None:
        """The file that a link names; None if that is a folder."""
        if not self._content.can_seek:
            why = f"and {self.path} is read as a stream that cannot seek, which has no way back to it"
            return replace(link, lacks=f"{self.path} holds {link.name!r} as a link to {target!r}, {why}")
        names = self._names_before(link.header)
        wanted = _normal(target if kind == _HARD_LINK else os.path.join(os.path.dirname(link.name), target))
        if (found := names.file_before(wanted, link.header)) is not None:
            return replace(link, data=found.data, size=found.size)
        if names.has_folder_before(wanted, link.header):
            return None
        return replace(
            link,
            lacks=f"{self.path} holds {link.name!r} as a link to {target!r}, which is no file that stands before it in "
            "the archive: write it with its content (GNU tar: --dereference --hard-dereference)",
        )

    def _names_before(self, end: int) -> _Names:
        """The names of the files that stand before ``end``: this process reads each header of an archive once."""
        identity = self._content.identity
        if self._names is None:
            self._names = _names.get(self.path, identity) or _Names()
            _names.keep(self.path, identity, self._names)
        behind, self.offset = self.offset, self._names.reached
        try:
            while self.offset < end and self.next() is not None:
                pass
        finally:
            self.offset = behind
        return self._names

    def read(self, member: Member) -> bytes:
        """The content of the last file that :meth:`next` gave."""
        _check_there(member)
        return self._take(member.data, member.size)

    def open(self, member: Member) -> io.BufferedReader:
        """The content of a file as a stream, which can be read while others are."""
        _check_there(member)
        return io.BufferedReader(_Part(self, member), BUFFER_BYTES)

    def begin_at(self, offset: int) -> None:
        """Go on with the header at ``offset``, where the content stands."""
        self.offset = self._at = offset

    def stand_at(self, offset: int) -> None:
        """Go on with the file at ``offset``, where the content stands. Raises: StateError if there is none."""
        self.begin_at(offset)
        try:
            if offset % BLOCK_BYTES:
                raise ValueError("files begin at multiples of 512")
            self._held = [self.next()]
        except EOFError:
            self.offset = offset  # it is cut off behind this position: next() says so, as in the pass that was saved
        except ValueError as error:
            raise StateError(f"{self.path} has no file at byte {offset}, where the state stands") from error

    def _take(self, offset: int, size: int, whole: bool = True) -> bytes:
        """``size`` bytes from ``offset`` on. Raises: EOFError if there are fewer and ``whole`` is asked for."""
        end = offset + size
        with self._lock:  # parts may be read in other threads
            if offset < self._at:
                self._content.go_back(offset)
            elif offset > self._at:
                self._content.pass_over(offset - self._at)  # behind the end there is nothing to read
            taken: bytes = self._content.stream.read(size)
            self._at = offset + len(taken)
            if self._at < end and taken:  # a stream may give less than it has
                taken += self._content.read(end - self._at)
                self._at = offset + len(taken)
        if whole and len(taken) < size:
            raise EOFError(f"{self.path} is cut off before byte {end}: a tar archive ends with zeros")
        return taken

    def _checked(self, header: bytes) -> tuple[int, int]:
        """(type, size) of a header whose checksum is right."""
        try:
            expected = int(header[148:156].strip(b" \0") or b"-1", 8)
            size = header[124:136]
            length = int.from_bytes(size[1:], "big") if size[0] == 0x80 else int(size.strip(b" \0") or b"0", 8)
        except ValueError:
            expected, length = -1, 0
        if expected != sum(header) - sum(header[148:156]) + 256:
            raise ValueError(
                f"{self.path} is damaged: there is no header at byte {self.offset}, where one should begin"
            )
        return header[156], length

    def _extension(self, data: int, length: int) -> bytes:
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"{self.path} is damaged: a header of {length} bytes at byte {data}")
        return self._take(data, length)

    def _check_end(self) -> None:
        """Check that only zeros follow the end: archives put one behind the other are not read."""
        at = self.offset + BLOCK_BYTES
        while rest := self._take(at, BUFFER_BYTES, whole=False):  # to the last byte: records may be of any size
            if rest.strip(b"\0"):
                raise ValueError(
                    f"{self.path} goes on behind its end at byte {self.offset}: archives put one behind the other are "
                    "not read (GNU tar joins them with --concatenate)"
                )
            at += len(rest)


class _Part(io.RawIOBase):
    """A file in an archive, as a stream."""

    def __init__(self, files: TarFiles, member: Member) -> None:
        self._files = files
        self._member = member
        self._offset = 0
        self.size = member.size  # for figures

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._member.size}[whence]
        if self._offset < 0:
            raise ValueError(f"{self._member.name} has no position {self._offset}")
        return self._offset

    def _next(self, most: int) -> bytes:
        size = max(0, min(most, self._member.size - self._offset))
        data = self._files._take(self._member.data + self._offset, size) if size else b""
        self._offset += size
        return data

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._next(self._member.size)


class TarStreams(ContentRecords[tuple[str, StreamWrapper]]):
    """(archive/name, open stream) of each file. ``archive`` is closed once the streams made of it are, too."""

    unit = "file"

    def __init__(self, content: Content, archive: StreamWrapper) -> None:
        super().__init__(content)
        self._archive = archive
        self._files = TarFiles(content)

    def __next__(self) -> tuple[str, StreamWrapper]:
        member = self._files.next()
        if member is None:
            raise StopIteration
        name = os.path.normpath(os.path.join(self.path, member.name))
        opened = self._files.open(member)
        self.advance(self._files.offset - self.offset)
        return name, wrap_stream(opened, parent=self._archive, name=name)

    def skip(self, count: int) -> int:
        for done in range(count):
            if self._files.next() is None:
                return done
            self.advance(self._files.offset - self.offset)
        return count

    def go_to(self, position: dict[str, Any]) -> None:
        super().go_to(position)
        self._files.stand_at(self.offset)

    def close(self) -> None:
        close_stream_after_parts(self._archive)


def _check_there(member: Member) -> None:
    """Raises: ValueError for a link that names no file."""
    if member.lacks:
        raise ValueError(member.lacks)


def _padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _normal(name: str) -> str:
    return os.path.normpath(name).lstrip("/")


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return name.decode("utf-8", "surrogateescape")


def _pax(data: bytes, path: str) -> dict[str, str]:
    """The records ``LENGTH KEY=VALUE\\n`` of a pax header."""
    found = {}
    while data:
        length = data.partition(b" ")[0]
        if not length.isdigit() or not 0 < int(length) <= len(data):
            raise ValueError(f"{path} is damaged: a pax header with the record {data[:40]!r}")
        key, _, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
        if key.startswith(b"GNU.sparse"):
            raise ValueError(f"{path} holds a sparse file, which is not supported: write it without --sparse")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        data = data[int(length) :]
    return found


def _number(text: str | None, otherwise: int | None, path: str) -> int | None:
    if text is None:
        return otherwise
    if not text.isdecimal():
        raise ValueError(f"{path} is damaged: a file of {text[:40]!r} bytes")
    return int(text)


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
        self.advance((self._files.offset if found is None else found[2].header) - self.offset)

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
        self._files.stand_at(self.offset)
