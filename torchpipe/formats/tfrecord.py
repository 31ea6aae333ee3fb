"""TFRecord files, record by record, in order or by number.

A record is its length (uint64), the masked CRC-32C of that, the data, and their masked CRC-32C, all little endian
(TensorFlow's ``core/lib/io/record_writer.h``; "TFRecord format details" of its guide).

``tf.train.Example`` and ``SequenceExample`` out of their bytes, without TensorFlow.

The messages are those of TensorFlow's ``core/example/example.proto`` and ``feature.proto``, the encoding is that of
protocol buffers ("Encoding", protobuf.dev). The features of an Example and the context of a SequenceExample have one
field number, so that one function reads both. Lists of numbers may be packed or not.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch

from torchpipe.compat.packages import needs
from torchpipe.formats.indexes import Index, find_index, misfit
from torchpipe.formats.records import ContentRecords, wrong_piece
from torchpipe.formats.storage.content import Content
from torchpipe.node.function_results import plain

__all__ = [
    "TFRecords", "check_crc32c", "example_parser", "hop_records", "indexed_records", "masked_crc32c",
    "parse_example", "read_record", "record_length", "record_offsets", "write_record",
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
    length = record_length(path, read, offset)
    return None if length is None else _data(path, read, offset, length, verify)


def _data(path: str, read: Callable[[int], bytes], offset: int, length: int, verify: bool) -> bytes:
    data = read(length)
    footer = read(_FOOTER.size)
    if len(footer) < _FOOTER.size:
        raise EOFError(f"{path} is cut off within the record at byte {offset}, which has {length} bytes")
    if verify and _FOOTER.unpack(footer)[0] != masked_crc32c(data):
        raise ValueError(f"{path} is damaged: the data of the record at byte {offset} do not have their checksum")
    return data


def record_length(path: str, read: Callable[[int], bytes], offset: int) -> int | None:
    """The length of the next record that ``read`` gives; None at the end. Raises: as :func:`read_record`."""
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
        while (length := record_length(path, file.read, offset)) is not None:
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
        if self._border is not None and self.offset >= self._border:
            return None
        try:
            return record_length(self.path, self.content.read, self.offset)
        except ValueError as error:
            if self._start and self.offset == self._start:
                raise wrong_piece(self.path, f"no record begins at byte {self._start}") from error
            raise

    def _check_inside(self, length: int) -> None:
        """Raises: ValueError for a record that goes over the end of its piece."""
        if self._border is not None and self.offset + length + _FRAME_BYTES > self._border:
            raise wrong_piece(
                self.path, f"the record at byte {self.offset} goes over byte {self._border}, where a piece ends"
            )

    def __next__(self) -> Any:
        length = self._length()
        if length is None:
            raise StopIteration
        data = _data(self.path, self.content.read, self.offset, length, self._verify)
        self._check_inside(length)
        item = self._make(data)
        self.advance(len(data) + _FRAME_BYTES)
        return item

    def skip(self, count: int) -> int:
        for done in range(count):
            length = self._length()
            if length is None:
                return done
            if not self.content.pass_over(length + _FOOTER.size):
                raise EOFError(f"{self.path} is cut off within the record at byte {self.offset}: it has {length} bytes")
            self._check_inside(length)
            self.advance(length + _FRAME_BYTES)
        return count


_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


def parse_example(data: bytes, spec: Mapping[str, tuple[Sequence[int], Any]] | None = None) -> dict[str, Any]:
    """The features by name: tensors of float32 or int64, lists of bytes; of feature lists, lists of these.

    ``spec`` names those to give, each as (shape, dtype): a tensor of that shape and type, for bytes nested lists of
    that shape, ``()`` being one value, -1 in it what is left; a dtype of None leaves the type. The shape of a feature
    list is that of all its values. Raises: ValueError for another
    message, a feature of ``spec`` that is missing and one of another size.
    """
    found: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            for name, feature in _entries(value):
                found[name] = _feature(feature)
        elif number == 2:
            for name, features in _entries(value):
                found[name] = [_feature(feature) for inner, feature in _fields(features) if inner == 1]
    if spec is None:
        return {name: _as_tensors(value) for name, value in found.items()}
    missing = [name for name in spec if name not in found]
    if missing:
        raise ValueError(f"the example has no feature {missing[0]!r}: it has {', '.join(sorted(found)) or 'none'}")
    return {name: _shaped(name, found[name], *rule) for name, rule in spec.items()}


def example_parser(spec: Mapping[str, tuple[Sequence[int], Any]] | None) -> Callable[[bytes], Any]:
    """:func:`parse_example` with ``spec``. Raises: TypeError, ValueError unless it is a dict of pairs (shape,
    dtype)."""
    if spec is None:
        return parse_example
    if not isinstance(spec, Mapping):
        raise TypeError(f"spec must be a dict of pairs (shape, dtype), got {spec!r:.80} of type {type(spec).__name__}")
    for name, rule in spec.items():
        if not (isinstance(rule, tuple | list) and len(rule) == 2 and isinstance(rule[0], tuple | list)):
            raise ValueError(
                f"spec of {name!r} must be a pair (shape, dtype) such as ((3,), torch.float32), got {rule!r}"
            )
        if not all(type(size) is int and size >= -1 for size in map(plain, rule[0])) or list(rule[0]).count(-1) > 1:
            raise ValueError(
                f"spec: the shape of {name!r} must be of whole numbers, one of them -1 at most, got {rule[0]!r}"
            )
        if not (rule[1] is None or isinstance(rule[1], torch.dtype)):
            raise TypeError(f"spec: the dtype of {name!r} must be one of torch's, or None, got {rule[1]!r}")
    return functools.partial(parse_example, spec=dict(spec))


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a message."""
    offset, end = 0, len(_bytes(data))
    while offset < end:
        key, offset = _varint(data, offset)
        kind = key & 7
        if kind == _VARINT:
            value, offset = _varint(data, offset)
        else:
            if kind == _BYTES:
                length, offset = _varint(data, offset)
            elif kind in (_EIGHT, _FOUR):
                length = 8 if kind == _EIGHT else 4
            else:
                raise ValueError(f"no tf.train.Example: a field of type {kind}")
            if length > end - offset:
                raise ValueError(f"no tf.train.Example: a field of {length} bytes where {end - offset} are left")
            value = data[offset : offset + length]
            offset += length
        yield key >> 3, value


def _varint(data: Any, offset: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[offset : offset + _MOST_VARINT_BYTES]:
        value |= (byte & 127) << shift
        offset += 1
        if byte < 128:
            return value, offset
        shift += 7
    raise ValueError("no tf.train.Example: a number that does not end")


def _entries(data: Any) -> Iterator[tuple[str, Any]]:
    """(key, value) of the entries of a map, which is field 1 of a message."""
    for number, entry in _fields(data):
        if number == 1:
            parts = dict(_fields(entry))
            yield _bytes(parts.get(1, b"")).decode(), parts.get(2, b"")


def _feature(data: Any) -> Any:
    """A list of bytes, or an array of float32 or int64."""
    for number, message in _fields(data):
        values = [value for inner, value in _fields(message) if inner == 1]
        if number == 1:
            return [_bytes(value) for value in values]
        if number in (2, 3):
            read = _floats if number == 2 else _integers
            return np.concatenate([read(value) for value in values or [b""]])
    return []  # a feature of no kind


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"no tf.train.Example: the number {value} where bytes should be")
    return value


def _floats(value: Any) -> Any:
    if len(_bytes(value)) % 4:
        raise ValueError(f"no tf.train.Example: {len(value)} bytes of float32")
    return np.frombuffer(value, "<f4")


def _integers(value: Any) -> Any:
    """The integers of one varint that is read already, or of packed ones."""
    if isinstance(value, int):
        return np.array([value & (1 << 64) - 1], np.uint64).view(np.int64)
    data = np.frombuffer(value, np.uint8)
    ends = np.flatnonzero(data < 128) + 1
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        raise ValueError("no tf.train.Example: a number that does not end")
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    lengths = ends - starts
    if len(lengths) and lengths.max() > _MOST_VARINT_BYTES:
        raise ValueError("no tf.train.Example: a number of more than 64 bits")
    numbers = np.zeros(len(ends), np.uint64)
    for offset in range(int(lengths.max()) if len(lengths) else 0):
        has = lengths > offset
        numbers[has] |= (data[starts[has] + offset] & 127).astype(np.uint64) << np.uint64(7 * offset)
    return numbers.view(np.int64)


def _as_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
    return [_as_tensors(part) for part in value] if value and not isinstance(value[0], bytes) else value


def _shaped(name: str, value: Any, shape: Sequence[int], dtype: Any) -> Any:
    if isinstance(value, list) and value and not isinstance(value[0], bytes):  # a feature list: all its values together
        value = np.concatenate(value) if isinstance(value[0], np.ndarray) else [part for row in value for part in row]
    size = int(np.prod([part for part in shape if part >= 0], dtype=np.int64))
    if len(value) % max(size, 1) if -1 in shape else len(value) != size:
        raise ValueError(f"feature {name!r} has {len(value)} values, where the shape {tuple(shape)} has {size}")
    shape = tuple(len(value) // max(size, 1) if part < 0 else part for part in shape)
    if not isinstance(value, np.ndarray):
        return _nested(value, shape)
    tensor: torch.Tensor = _as_tensors(value).reshape(shape)
    return tensor if dtype is None else tensor.to(dtype)


def _nested(values: Sequence[bytes], shape: Sequence[int]) -> Any:
    if not shape:
        return values[0]
    step = len(values) // shape[0] if shape[0] else 0
    return [_nested(values[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]
