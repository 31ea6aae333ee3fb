"""TFRecord files, record by record, in order or by number.

A record is its length (uint64), the masked CRC-32C of that, the data, and their masked CRC-32C, all little endian
(TensorFlow's ``core/lib/io/record_writer.h``; "TFRecord format details" of its guide).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from torchpipe.compat.packages import needs
from torchpipe.formats.records import ContentRecords
from torchpipe.formats.storage.content import Content

__all__ = ["TFRecords", "check_crc32c", "masked_crc32c", "read_record", "record_offsets", "write_record"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _FOOTER.size


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
    if length is None:
        return None
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
    """Where the records of a local file begin: from the index beside it, ``PATH.idx`` or the same with that ending, as
    DALI's ``tfrecord2idx`` writes it (offset and size in a line), else by hopping from length to length.

    Raises: ValueError for an index that does not fit the file, else as :func:`read_record`.
    """
    size = os.path.getsize(path)
    for index in (f"{path}.idx", os.path.splitext(path)[0] + ".idx"):
        if os.path.exists(index):
            return _from_index(path, index, size)
    offsets = []
    with open(path, "rb", buffering=1 << 12) as file:
        offset = 0
        while (length := _length(path, file.read, offset)) is not None:
            offsets.append(offset)
            offset = file.seek(length + _FOOTER.size, os.SEEK_CUR)
            if offset > size:
                raise EOFError(f"{path} is cut off within the record at byte {offsets[-1]}, which has {length} bytes")
    return np.array(offsets, np.int64)


def _from_index(path: str, index: str, size: int) -> Any:
    try:
        table = np.loadtxt(index, dtype=np.int64, ndmin=2) if os.path.getsize(index) else np.empty((0, 2), np.int64)
    except ValueError as error:
        raise ValueError(f"{index} is no index of a TFRecord file, lines of offset and size: {error}") from error
    ends = table.sum(axis=1) if table.shape[1] == 2 else None
    if ends is None or not np.array_equal(np.append(0, ends), np.append(table[:, 0], size)):
        raise ValueError(f"{index} does not fit {path} of {size} bytes: make it anew, or remove it")
    return table[:, 0].copy()


class TFRecords(ContentRecords[Any]):
    """The records of a file, as ``make`` makes them of their bytes."""

    def __init__(self, content: Content, make: Callable[[bytes], Any], verify: bool = True) -> None:
        super().__init__(content)
        self._make = make
        self._verify = verify

    def __next__(self) -> Any:
        data = read_record(self.path, self._content.read, self._offset, self._verify)
        if data is None:
            raise StopIteration
        item = self._make(data)
        self._advance(len(data) + _FRAME_BYTES)
        return item

    def skip(self, count: int) -> int:
        for done in range(count):
            length = _length(self.path, self._content.read, self._offset)
            if length is None:
                return done
            if not self._content.pass_over(length + _FOOTER.size):
                raise EOFError(
                    f"{self.path} is cut off within the record at byte {self._offset}: it has {length} bytes"
                )
            self._advance(length + _FRAME_BYTES)
        return count
