"""The files in a tar archive, in order, from the header of any of them on. Runs wherever its reader runs.

The formats are those of POSIX (pax and ustar: IEEE Std 1003.1-2001, "pax", and its "ustar Interchange Format") and of
GNU tar. ``tarfile`` of the standard library reads the same; this passes over a file in a few microseconds, can begin
anywhere, and takes no damage for the end of an archive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.places.content import BUFFER_BYTES, Content

__all__ = ["Member", "TarFiles"]

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_FILE = frozenset(b"\0" + b"07")  # the old, the usual and the contiguous kind
_WITHOUT_DATA = frozenset(b"123456")  # links, devices, folders, pipes: whatever their size says
_MOST_HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """A regular file: its name, where its header begins (with those that extend it) and its data, how many bytes it
    has."""

    name: str
    header: int
    data: int
    size: int


class TarFiles:
    """The regular files of an archive, one after the other. ``offset`` is where the next header begins.

    Raises: EOFError for an archive that is cut off, ValueError for one that is damaged; both name it.
    """

    def __init__(self, content: Content) -> None:
        self.path = content.path
        self.offset = 0
        self._content = content
        self._at = 0  # of the stream

    def next(self) -> Member | None:
        """The next file, whose content :meth:`read` gives; None at the end of the archive."""
        start = self.offset
        name: str | None = None
        size: int | None = None
        while True:
            header = self._take(self.offset, _BLOCK)
            if header == _ZEROS:
                self._check_end()
                return None
            kind, length = self._checked(header)
            data = self.offset + _BLOCK
            if kind in b"LxgK":
                extension = self._extension(data, length)
                self.offset = data + _padded(length)
                if kind == 76:  # L
                    name = extension.rstrip(b"\0").decode("utf-8", "surrogateescape")
                elif kind == 120:  # x
                    found = _pax(extension, self.path)
                    name, size = found.get("path", name), _number(found.get("size"), size, self.path)
                continue
            if kind in _WITHOUT_DATA:
                length = 0
            elif size is not None:
                length = size
            self.offset = data + _padded(length)
            if kind in _FILE:
                return Member(_name(header) if name is None else name, start, data, length)
            if kind not in _WITHOUT_DATA:
                raise ValueError(
                    f"{self.path} holds a file of type {chr(kind)!r} at byte {start}, which is not supported"
                )
            start, name, size = self.offset, None, None

    def read(self, member: Member) -> bytes:
        """The content of the last file that :meth:`next` gave."""
        return self._take(member.data, member.size)

    def go_to(self, mark: Any) -> None:
        """Let the next file be the one of which ``mark(member.header)`` said this."""
        self._content.go_to(mark)
        self.offset = self._at = mark[0]
        if self.offset % _BLOCK:
            raise StateError(f"{self.path} has no file at byte {self.offset}, where the state stands")

    def _take(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on, which never lies before what was taken last."""
        found = offset == self._at or self._content.pass_over(offset - self._at)
        taken = self._content.stream.read(size) if found else b""
        self._at = offset + len(taken)
        if len(taken) < size:
            end = self._at if self._content.kind is not None else self._content.size
            raise EOFError(f"{self.path} is cut off at byte {end}: a tar archive ends with a block of zeros")
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
        """What follows the end are zeros, unless archives were put one behind the other."""
        rest = self._content.stream.read(BUFFER_BYTES)
        if rest.strip(b"\0"):
            raise ValueError(
                f"{self.path} goes on behind its end at byte {self.offset}: archives put one behind the other are not "
                "read (GNU tar joins them with --concatenate)"
            )


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


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
