"""The content of one file as a stream that can go back to a position: local, remote or open already, compressed or not.

A file that is not compressed is gone to by seeking. A compressed one can be begun at its *members* alone: gzip calls
the parts so that lie one behind the other in a file (RFC 1952, 2.2), zstandard (RFC 8878) and xz call them frames and
streams. The bytes between the beginning of the member around a position and the position are decompressed again.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from torchpipe.compat.packages import needs
from torchpipe.errors import StateError
from torchpipe.formats.storage.ahead import AheadFile
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.remote import open_url
from torchpipe.formats.storage.streams import can_seek, close_stream, identity_of, stamp_of
from torchpipe.formats.storage.writing import write_whole

__all__ = [
    "COMPRESSIONS",
    "Content",
    "check_compression",
    "is_compressed",
    "open_stored",
    "open_up_to",
    "recompress",
]

BUFFER_BYTES = 1 << 18
_REMOTE_BYTES = 1 << 22  # in one request, of what is read up to a byte
_BEHIND_BYTES = 1 << 13  # at first, behind that byte: most lines end there
_INPUT_BYTES = 1 << 16  # of compressed data at a time, or of what is looked up
_ENDINGS = {
    ".gz": "gzip", ".gzip": "gzip", ".bgz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".xz": "xz",
    ".zst": "zstd", ".zstd": "zstd",
}  # fmt: skip
_PADDED = ("gzip", "xz")  # zeros may stand behind a member
COMPRESSIONS = ("infer", "gzip", "bz2", "xz", "zstd", None)
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC_BYTES = max(map(len, _MAGIC))
_LARGEST_PLACE = 1 << 320  # a text file tells five numbers of 64 bits in one


def check_compression(value: object) -> Any:
    """``value``. Raises: ValueError unless it is one of ``COMPRESSIONS``."""
    if value not in COMPRESSIONS:
        raise ValueError(f"compression must be one of {', '.join(map(repr, COMPRESSIONS))}, got {value!r}")
    return value


def _zstandard() -> Any:
    return needs("zstandard", "reading .zst files")


def _damage(kind: str) -> tuple[type[Exception], ...]:
    """The errors that a decompressor raises for damaged data."""
    own = _zstandard().ZstdError if kind == "zstd" else {"gzip": zlib.error, "bz2": OSError, "xz": lzma.LZMAError}[kind]
    return own, EOFError, ValueError


def _decompressor(kind: str) -> Callable[[], Any]:
    """A function that makes an object with ``decompress(data)``, ``eof`` and ``unused_data`` for a member."""
    if kind == "gzip":
        return lambda: zlib.decompressobj(31)
    if kind == "zstd":
        return lambda: _zstandard().ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    return bz2.BZ2Decompressor if kind == "bz2" else lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)


def open_stored(
    path: str, storage_options: Mapping[str, Any] | None = None, buffer_bytes: int = BUFFER_BYTES
) -> BinaryIO:
    """The file as it is stored, buffered: local ones by ``open``, URLs by fsspec with these options."""
    if not is_remote(path):
        return open(path, "rb", buffering=buffer_bytes)
    return open_url(path, options=storage_options, buffer_bytes=buffer_bytes)  # type: ignore[no-any-return]


def is_compressed(path: str, compression: str | None) -> bool:
    """True if the file at ``path`` is compressed, as ``compression``, an argument of a reader's, says."""
    return _kind_of(path, compression) is not None


def _kind_of(path: str, compression: str | None) -> str | None:
    return _ENDINGS.get(os.path.splitext(path)[1].lower()) if compression == "infer" else compression


def open_up_to(path: str, stop: int | None, storage_options: Mapping[str, Any] | None = None) -> BinaryIO:
    """Open as :func:`open_stored` does, for a reader that needs little from byte ``stop`` on; ``raw.stop`` says so
    later.
    """
    if not is_remote(path):
        return io.BufferedReader(_UpTo(open(path, "rb", buffering=0), stop), BUFFER_BYTES)
    # What fsspec reads ahead is for whoever reads the whole file, and chained file systems may keep files
    ahead = {} if "::" in path else {"cache_type": "none"}
    file = open_url(path, options=storage_options, open_options=ahead)
    return io.BufferedReader(_UpTo(file.detach(), stop), _REMOTE_BYTES)


class _UpTo(io.RawIOBase):
    """A file of which large parts are read up to the byte ``stop``, and small ones behind it."""

    def __init__(self, file: Any, stop: int | None) -> None:
        self._file = file
        self.stop = stop
        self._reads_ahead = isinstance(file, AheadFile)
        self._behind = _BEHIND_BYTES
        self._most = _REMOTE_BYTES
        self.size = getattr(file, "size", None)  # these three for ``stamp_of``
        self.version = getattr(file, "version", None)
        self.name = getattr(file, "name", "")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._file.fileno())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def begin_small(self) -> None:
        """Expect small reads from now on: the reader looks something up."""
        self._most = _INPUT_BYTES

    def readinto(self, buffer: Any) -> int:
        if self._reads_ahead:
            self._file.stop = self.stop
        most = len(buffer) if self.stop is None else self.stop - self._file.tell()
        if most <= 0:
            most, self._behind = self._behind, 2 * self._behind
        elif self._most < _REMOTE_BYTES:
            most, self._most = min(most, self._most), 2 * self._most
        return int(self._file.readinto(memoryview(buffer)[:most]))

    def close(self) -> None:
        self._file.close()
        super().close()


class _Members(io.RawIOBase):
    """The content of the members of a compressed file, in order. Notes where members begin.

    Raises: EOFError for a file that is cut off, ValueError for one that is damaged; both name it.
    """

    def __init__(self, path: str, kind: str, file: Any, start: tuple[int, int], seeks: bool) -> None:
        self.path = path
        self.needed: Callable[[], int] | None = None  # the position in the content that may be gone back to
        self.starts = [start]  # (position in the file, position in the content) of members, from that position's on
        self._kind = kind
        self._file = file
        self._new = _decompressor(kind)
        self._member: Any = None
        self._stored, self._made = start  # how far each has been read, and made
        self._input = b""
        self._output = memoryview(b"")
        self._ended = False
        if seeks:
            file.seek(start[0])

    def start_before(self, position: int) -> tuple[int, int]:
        """The beginning of the member that holds ``position`` of the content."""
        return next(start for start in reversed(self.starts) if start[1] <= position)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output and not self._ended:
            self._make()
        count = min(len(self._output), len(buffer))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _make(self) -> None:
        if not self._input:
            self._input = self._file.read(_INPUT_BYTES)
            self._stored += len(self._input)
        if self._member is None:
            self._begin_member()
            return
        if not self._input:
            raise EOFError(f"{self.path} is cut off: its {self._kind} data end within a member, at byte {self._stored}")
        try:
            made = self._member.decompress(self._input)
        except _damage(self._kind) as error:
            raise ValueError(
                f"{self.path} is damaged: its {self._kind} data cannot be read before byte {self._stored} ({error})"
            ) from error
        self._input = b""
        self._output = memoryview(made)
        self._made += len(made)
        if self._member.eof:
            self._input, self._member = self._member.unused_data, None

    def _begin_member(self) -> None:
        if self._kind in _PADDED and self._stored > len(self._input):
            self._input = self._input.lstrip(b"\0")
        if self._input:
            start = (self._stored - len(self._input), self._made)
            if start != self.starts[-1]:
                self.starts.append(start)
            needed = self._made - BUFFER_BYTES if self.needed is None else self.needed()
            while len(self.starts) > 1 and self.starts[1][1] <= needed:
                del self.starts[0]
            self._member = self._new()
        elif more := self._file.read(1):  # there were zeros alone
            self._input = more
            self._stored += 1
        elif self._stored == 0:
            raise EOFError(f"{self.path} is empty, and so no {self._kind} file: was it written to its end?")
        else:
            self._ended = True


class Content:
    """A file's content: ``stream`` reads it from where it stands, ``go_to`` changes that position.

    The file is at ``path``, or open as ``opened`` (a StreamWrapper), of bytes or, without compression, of text. It is
    read from where it stands; ``compression="found"`` goes by its first bytes. Only one that ``can_seek`` goes back.
    Of one that is not compressed, ``stop`` says behind which byte little is read; without it, what is stored is read
    ``buffer_bytes`` at a time.

    ``stamp`` tells another file from this one (``stamp_of``), and ``identity`` within this process (``identity_of``).
    Raises: the OSError of a file that cannot be opened;
    ImportError where zstandard is missing; reading, EOFError for compressed data that are cut off and ValueError for
    damaged ones.
    """

    def __init__(
        self,
        path: str,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
        *,
        opened: Any = None,
        stop: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.path = path
        self.kind = _kind_of(path, compression)
        if self.kind == "zstd":
            _zstandard()
        self._opened = opened
        if stop is not None and self.kind:
            raise ValueError(f"{path} is compressed ({self.kind}), and cannot be read from a byte on: read it whole")
        if opened is not None:
            self._file: Any = opened
        else:
            self._file = (
                open_stored(path, storage_options, buffer_bytes)
                if stop is None
                else open_up_to(path, stop, storage_options)
            )
        self.stamp = stamp_of(self._file)
        self.identity = identity_of(self._file, self.stamp)
        size = None if self.stamp is None or opened is not None else self.stamp[0]
        self._size = size if isinstance(size, int) else None
        self.can_seek = opened is None or can_seek(opened)
        self.is_text = opened is not None and not self.kind and isinstance(opened.read(0), str)
        self._first = self._file.tell() if self.can_seek else 0
        if self.kind == "found":
            self.kind = self._found()
        self._members: _Members | None = None
        self._needed: Callable[[], int] | None = None
        self.stream: Any = self._file
        if self.kind is not None:
            self._begin_at((self._first, 0))

    def _found(self) -> str | None:
        """The compression that the first bytes tell."""
        head = self._file.read(_MAGIC_BYTES)
        if self.can_seek:
            self._file.seek(self._first)
        else:
            self._file = _Ahead(head, self._file)
        return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)

    def _begin_at(self, start: tuple[int, int]) -> None:
        assert self.kind is not None
        self._members = _Members(self.path, self.kind, self._file, start, self.can_seek)
        self._members.needed = self._needed
        self.stream = io.BufferedReader(self._members, BUFFER_BYTES)

    def keep(self, needed: Callable[[], int]) -> None:
        """``needed`` says the position that the reader has come to: :meth:`mark` is asked for none before it, however
        long what it reads there is. Without this, what lies more than a buffer behind is forgotten.
        """
        self._needed = needed
        if self._members is not None:
            self._members.needed = needed

    def mark(self, position: int) -> list[int]:
        """The numbers that :meth:`go_to` needs for ``position``, up to which the content has been read: plain data.

        The position in a text is that of the stream: its characters are no bytes.
        """
        if self._members is not None:
            return [position, *self._members.start_before(position)]
        return [self._file.tell() if self.is_text else self._first + position]

    def behind(self, position: int) -> int:
        """The number of bytes that :meth:`go_to` would decompress again to come back to ``position``."""
        return 0 if self._members is None else position - self._members.start_before(position)[1]

    def go_to(self, mark: object) -> int:
        """Let ``stream`` stand at the position that ``mark``, of :meth:`mark`, names; returns that position.

        Raises: StateError if the file has no such position.
        """
        numbers: list[int] = mark if isinstance(mark, list) else []
        valid = all(type(number) is int and 0 <= number < _LARGEST_PLACE for number in numbers)
        if not valid or len(numbers) != (1 if self._members is None else 3):
            raise StateError(f"the state does not name a position in {self.path}, but {mark!r:.80}")
        position, *start = numbers
        self._check(self._size is None or (start or numbers)[0] <= self._size, position)
        if not start:
            try:
                self._file.seek(position)
            except (OSError, MemoryError, OverflowError, ValueError):  # to a position that it has not told
                self._check(False, position)
            return position - self._first
        self._check(start[1] <= position, position)
        self._begin_at((start[0], start[1]))
        try:
            found = self.pass_over(position - start[1])
        except (EOFError, ValueError) as error:
            raise StateError(
                f"position {position} of {self.path}, which the state names, cannot be read: has the file changed?"
            ) from error
        self._check(found, position)
        return position

    def go_back(self, position: int) -> None:
        """Let ``stream`` stand at an earlier position; compressed data are decompressed anew. Raises: ValueError."""
        if not self.can_seek:
            raise ValueError(
                f"{self.path} is read as a stream that cannot seek: there is no way back to byte {position}"
            )
        raw = getattr(self._file, "raw", None)
        if isinstance(raw, _UpTo):
            raw.begin_small()
        self.go_to([self._first + position] if self._members is None else [position, self._first, 0])

    def read(self, count: int) -> Any:
        """``count`` bytes, fewer at the end alone, though a read of an open stream may give less."""
        data = self.stream.read(count)
        while len(data) < count and (more := self.stream.read(count - len(data))):
            data += more
        return data

    def pass_over(self, count: int) -> bool:
        """Let ``stream`` stand ``count`` bytes further on, unread if that can be; False if the content ends before."""
        if count and self._members is None and self.can_seek:
            if self._size is not None:
                return bool(self.stream.seek(count, os.SEEK_CUR) <= self._size)
            self.stream.seek(count - 1, os.SEEK_CUR)
            return len(self.stream.read(1)) == 1
        while count and (passed := len(self.stream.read(min(count, BUFFER_BYTES)))):
            count -= passed
        return not count

    def _check(self, holds: bool, position: int) -> None:
        if not holds:
            raise StateError(f"{self.path} has no position {position}, at which the state stands: is it the same file?")

    def close(self) -> None:
        """Idempotent."""
        if self._opened is not None:
            close_stream(self._opened)
            return
        self.stream.close()
        self._file.close()


class _Ahead:
    """A stream whose first bytes were read already."""

    def __init__(self, head: bytes, file: Any) -> None:
        self._head = head
        self._file = file

    def read(self, size: int) -> bytes:
        head, self._head = self._head[:size], self._head[size:]
        return head or self._file.read(size)


def recompress(source: str, target: str, member_bytes: int = 1 << 22) -> None:
    """Write the content of ``source`` to ``target``, in members of ``member_bytes`` each, to be read from any of them.

    ``target`` ends in ``.gz`` or ``.zst``, and is an ordinary file of that kind. Resuming within them then decompresses
    ``member_bytes`` at most. Raises: ValueError for another ending.
    """
    import gzip

    kind = _ENDINGS.get(os.path.splitext(target)[1].lower())
    if kind not in ("gzip", "zstd"):
        raise ValueError(f"recompress writes .gz and .zst files, got {target!r}")
    compress = gzip.compress if kind == "gzip" else _zstandard().ZstdCompressor(write_checksum=True).compress
    content = Content(source)

    def members() -> Iterator[bytes]:
        yield compress(content.read(member_bytes))
        while part := content.read(member_bytes):
            yield compress(part)

    try:
        write_whole(target, "wb", members())
    finally:
        content.close()
