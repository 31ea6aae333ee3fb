"""TFRecord files, record by record, in order or by number.

A record is its length (uint64), the masked CRC-32C of that, the data, and their masked CRC-32C, all little endian
(TensorFlow's ``core/lib/io/record_writer.h``; "TFRecord format details" of its guide).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from torchpipe.compat.packages import needs
from torchpipe.formats.indexes import Index, find_index, misfit
from torchpipe.formats.records import ContentRecords, wrong_piece
from torchpipe.formats.storage.content import Content

__all__ = [
    "TFRecords", "check_crc32c", "check_record", "hop_records", "indexed_records", "masked_crc32c", "read_record",
    "record_offsets", "write_record",
]  # fmt: skip

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _FOOTER.size
_HOP_BYTES = 1 << 12  # read at a time, of a file whose lengths alone are wanted


def check_crc32c() -> None:
    """Raises: ImportError without the package that computes checksums."""
    needs("crc32c", "reading and writing TFRecord files")


def masked_crc32c(data: bytes) -> int:
    """The checksum as the files hold it: rotated right by 15 bits, and a constant added (core/lib/hash/crc32c.h)."""
    from crc32c import crc32c

    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_record(file: BinaryIO, data: bytes) -> None:
    """Append a record to an open file."""
    length = struct.pack("<Q", len(data))
    file.write(length + _FOOTER.pack(masked_crc32c(length)) + data + _FOOTER.pack(masked_crc32c(data)))


def read_record(path: str, read: Callable[[int], bytes], offset: int, verify: bool = True) -> bytes | None:
    """The next record that ``read`` gives, at ``offset`` of the content; None at its end.

    Raises: EOFError where it is cut off, ValueError where a checksum is wrong, naming ``path``.
    """
    length = _length(path, read, offset)
    return None if length is None else _data(path, read, offset, length, verify)


def _data(path: str, read: Callable[[int], bytes], offset: int, length: int, verify: bool) -> bytes:
    data = read(length)
    footer = read(_FOOTER.size)
    if len(footer) < _FOOTER.size:
        raise EOFError(f"{path} is cut off within the record at byte {offset}, which has {length} bytes")
    if verify and _FOOTER.unpack(footer)[0] != masked_crc32c(data):
        raise ValueError(f"{path} is damaged: the data of the record at byte {offset} do not have their checksum")
    return data


def _length(path: str, read: Callable[[int], bytes], offset: int) -> int | None:
    header = read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise EOFError(f"{path} is cut off within the record at byte {offset}")
    length, checksum = _HEADER.unpack(header)
    if checksum != masked_crc32c(header[:8]):
        raise ValueError(
            f"{path} is damaged, or no TFRecord file: the length of the record at byte {offset} does not have its "
            "checksum (a compressed file needs compression='gzip')"
        )
    return int(length)


def record_offsets(path: str) -> Any:
    """The beginnings of a local file's records: from the index beside it, else by hopping from length to length.

    Raises: ValueError for an index that does not fit the file, else as :func:`read_record`.
    """
    index = find_index(path)
    if index is not None:
        return indexed_records(path, index, os.path.getsize(path))
    return np.fromiter(hop_records(path), np.int64)


def hop_records(path: str) -> Iterator[int]:
    """The beginnings of a local file's records. Raises: as :func:`read_record`."""
    size, offset = os.path.getsize(path), 0
    with open(path, "rb", buffering=_HOP_BYTES) as file:
        while (length := _length(path, file.read, offset)) is not None:
            yield offset
            begun, offset = offset, file.seek(length + _FOOTER.size, os.SEEK_CUR)
            if offset > size:
                raise EOFError(f"{path} is cut off within the record at byte {begun}, which has {length} bytes")


def indexed_records(path: str, index: Index, size: int) -> Any:
    """The beginnings of the records of a file of ``size`` bytes, as ``index`` has them: the lines "offset size" that
    DALI's ``tfrecord2idx`` writes, and that of the package ``tfrecord``. Raises: ValueError if it does not fit.
    """
    try:
        table = np.array(index.content.split(), np.int64).reshape(-1, 2)
    except ValueError as error:
        raise ValueError(f"{index.name} is no index of a TFRecord file, lines of offset and size: {error}") from error
    if not np.array_equal(np.append(0, table.sum(axis=1)), np.append(table[:, 0], size)):
        raise misfit(index, path, size)
    return table[:, 0].copy()


def check_record(path: str, read: Callable[[int], bytes], offset: int) -> None:
    """Raises: ValueError, EOFError unless what ``read`` gives begins as a record does."""
    _length(path, read, offset)


class TFRecords(ContentRecords[Any]):
    """The records of a file, as ``make`` makes them of their bytes."""

    def __init__(
        self,
        content: Content,
        make: Callable[[bytes], Any],
        verify: bool = True,
        span: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(content, span)
        self._make = make
        self._verify = verify

    def _length(self) -> int | None:
        """The length of the next record; None at the end of the file, or of the piece."""
        if self._border is not None and self._offset >= self._border:
            return None
        try:
            return _length(self.path, self._content.read, self._offset)
        except ValueError as error:
            if self._start and self._offset == self._start:
                raise wrong_piece(self.path, f"no record begins at byte {self._start}") from error
            raise

    def _check_inside(self, length: int) -> None:
        """Raises: ValueError for a record that goes over the end of its piece."""
        if self._border is not None and self._offset + length + _FRAME_BYTES > self._border:
            raise wrong_piece(
                self.path, f"the record at byte {self._offset} goes over byte {self._border}, where a piece ends"
            )

    def __next__(self) -> Any:
        length = self._length()
        if length is None:
            raise StopIteration
        data = _data(self.path, self._content.read, self._offset, length, self._verify)
        self._check_inside(length)
        item = self._make(data)
        self._advance(len(data) + _FRAME_BYTES)
        return item

    def skip(self, count: int) -> int:
        for done in range(count):
            length = self._length()
            if length is None:
                return done
            if not self._content.pass_over(length + _FOOTER.size):
                raise EOFError(
                    f"{self.path} is cut off within the record at byte {self._offset}: it has {length} bytes"
                )
            self._check_inside(length)
            self._advance(length + _FRAME_BYTES)
        return count
