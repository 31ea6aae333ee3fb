"""MosaicML Streaming's MDS shards, sample by sample, by number; read only.

A folder has an ``index.json`` (version 2) that lists its shards. A shard is the number of its samples n and where they
begin and end (n + 2 numbers of 32 bits), its columns as JSON, and the samples: the sizes of the columns that have no
fixed one (32 bits each), then the values; all little endian. It may be compressed as a whole. After streaming's
``base/format/mds/{writer,reader,encodings}.py``. Runs in every process that reads them.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from torchpipe.compat.packages import needs
from torchpipe.formats.decoding import as_images, picture
from torchpipe.formats.storage.content import Content, open_stored
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.streams import Stamp, Stamps

__all__ = ["MDSShard", "Shards", "mds_index"]

_COMPRESSIONS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2"}
_WORD = struct.Struct("<I")
_PAIR = struct.Struct("<II")
_OPEN = 4  # files at URLs that each process keeps open, with what was asked for ahead
_SHAPE_TYPES = ("<u1", "<u2", "<u4", "<u8")
_ARRAY_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SCALARS = frozenset(_ARRAY_TYPES.values())


def _integer(data: bytes) -> int:
    return int.from_bytes(_sized(data, 8), "little", signed=True)


def _decimal(data: bytes) -> Decimal:
    return Decimal(data.decode())


def _sized(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"the value has {len(data)} bytes, not {size}")
    return data


def _scalar(dtype: str, data: bytes) -> Any:
    kind = np.dtype(dtype).newbyteorder("<")
    return np.dtype(dtype).type(np.frombuffer(_sized(data, kind.itemsize), kind)[0])


def _array(dtype: str | None, shape: tuple[int, ...] | None, data: bytes) -> Any:
    """Streaming's four layouts: type and shape stand in the column's encoding or before the values."""
    at = 0
    if dtype is None:
        dtype, at = _ARRAY_TYPES[data[0]], 1
    if shape is None:
        axes, width = divmod(data[at], 4)
        sizes = np.frombuffer(data, _SHAPE_TYPES[width], axes, at + 1)
        shape, at = tuple(sizes.tolist()), at + 1 + sizes.nbytes
    stored = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=at)
    return stored.reshape(shape).astype(dtype)  # a copy, which may be written to


def _raw_picture(data: bytes) -> Any:
    """An image as it is in memory: width, height, how long the mode's name is, that, the pixels."""
    Image = needs("PIL.Image", "decoding images (images=None leaves them as bytes)", "pillow")
    width, height, length = struct.unpack_from("<III", data)
    return Image.frombytes(data[12 : 12 + length].decode(), (width, height), data[12 + length :])


def _several(before: int, decode: Callable[[bytes], Any], data: bytes) -> list[Any]:
    """``before`` bytes, how many there are, their sizes, and they."""
    (count,) = _WORD.unpack_from(data, before)
    sizes = np.frombuffer(data, "<u4", count, before + 4)
    return [decode(value) for value in _cut(data, before + 4 + sizes.nbytes, sizes.tolist())]


def _cut(data: bytes, at: int, sizes: Sequence[int]) -> list[bytes]:
    """The values of so many bytes each, of which ``data`` from ``at`` on are made. Raises: ValueError."""
    if at + sum(sizes) != len(data):
        raise ValueError(f"it has {len(data)} bytes, and its parts have {at + sum(sizes)}")
    values = []
    for size in sizes:
        values.append(data[at : at + size])
        at += size
    return values


def _image(decode: Callable[[bytes], Any], images: str, data: bytes) -> Any:
    return as_images(images)(decode(data))


_PLAIN: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes, "str": bytes.decode, "int": _integer, "json": json.loads,
    "str_int": int, "str_float": float, "str_decimal": _decimal,
}  # fmt: skip
_LISTS = {  # bytes before the number of images, and their encoding
    "list[pil]": (4, "pil"), "list[jpeg]": (4, "jpeg"), "list[png]": (4, "png"), "jpeg_array": (0, "jpeg"),
    "jpegarray": (0, "jpeg"),
}  # fmt: skip
_PICTURES = {"pil": _raw_picture, "jpeg": picture, "png": picture}


def _decoder(encoding: str, images: str | None) -> Callable[[bytes], Any]:
    """Raises: ValueError for an encoding that is not known."""
    name, _, rest = encoding.partition(":")
    if name in _PLAIN and not rest:
        return _PLAIN[name]
    if name in _SCALARS and not rest:
        return partial(_scalar, name)
    if name == "ndarray":
        dtype, _, sizes = rest.partition(":")
        if not dtype or dtype in _SCALARS:
            return partial(_array, dtype or None, tuple(map(int, sizes.split(","))) if sizes else None)
    before, one = _LISTS.get(name, (None, name))
    if one in _PICTURES:
        made = bytes if images is None else partial(_image, _PICTURES[one], images)
        return made if before is None else partial(_several, before, made)
    raise ValueError(f"the encoding {encoding!r} is not known")


class _Columns:
    """The columns of a shard's samples: a function of their bytes. ``wanted`` names the columns to decode."""

    def __init__(
        self, shard: str, columns: Mapping[str, Any], wanted: Sequence[str] | None, images: str | None
    ) -> None:
        names, encodings = columns["column_names"], columns["column_encodings"]
        self._sizes = [size or None for size in columns["column_sizes"]]
        missing = [name for name in wanted or () if name not in names]
        if missing:
            raise ValueError(f"{shard} has no column {missing[0]!r}, but {', '.join(names)}")
        self._decode: list[tuple[str, Callable[[bytes], Any] | None]] = []
        for name, encoding, _ in zip(names, encodings, self._sizes, strict=True):
            if wanted is not None and name not in wanted:
                self._decode.append((name, None))
                continue
            if encoding == "pkl":
                others = [other for other, kind in zip(names, encodings) if kind != "pkl"]
                raise ValueError(
                    f"column {name!r} of {shard} has the encoding 'pkl', and reading a pickle runs whatever it says: "
                    f"leave it out (columns={others!r}), or write it anew as json, ndarray or bytes"
                )
            try:
                self._decode.append((name, _decoder(encoding, images)))
            except ValueError as error:
                raise ValueError(f"column {name!r} of {shard}: {error}") from error
        self._head = f"<{self._sizes.count(None)}I"

    def __call__(self, data: bytes) -> dict[str, Any]:
        start = struct.calcsize(self._head)
        if len(data) < start:
            raise ValueError(f"it has {len(data)} bytes, too few for the sizes of its columns")
        given = iter(struct.unpack_from(self._head, data))
        sizes = [next(given) if size is None else size for size in self._sizes]
        sample = {}
        for (name, decode), value in zip(self._decode, _cut(data, start, sizes)):
            if decode is not None:
                try:
                    sample[name] = decode(value)
                except Exception as error:
                    error.add_note(f"column {name!r}")
                    raise
        return sample


@dataclass(frozen=True)
class MDSShard:
    """One shard, as the index has it: ``stored_bytes`` lie at ``path``, and are ``raw_bytes`` decompressed."""

    path: str
    samples: int
    raw_bytes: int
    stored_bytes: int
    compression: str | None
    columns: _Columns


def mds_index(
    folder: str,
    wanted: Sequence[str] | None,
    images: str | None,
    options: Mapping[str, Any] | None,
    stamps: Stamps,
) -> tuple[list[MDSShard], bytes]:
    """The shards of the data set in ``folder``, and its index. The uncompressed file is read where a local folder has
    it beside the compressed one, or instead. ``stamps`` has those of local shards then.

    Raises: FileNotFoundError without an index or a shard, ValueError for an index that cannot be read so and for a
    shard of another size; both name it.
    """
    path = _below(folder, "index.json")
    with open_stored(path, options) as file:
        content = file.read()
    kept: dict[str, _Columns] = {}
    try:
        index = json.loads(content)
        if index["version"] != 2:
            raise ValueError(f"it has version {index['version']!r}, and 2 is known")
        entries = [_entry(folder, entry) for entry in index["shards"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no index of MDS shards: {type(error).__name__}: {error}") from error
    shards = []
    for (name, stored, compression), entry in zip(entries, index["shards"]):
        described = json.dumps([entry[f"column_{what}"] for what in ("names", "encodings", "sizes")])
        if described not in kept:
            kept[described] = _Columns(name, entry, wanted, images)
        raw = entry["raw_data"]["bytes"]
        shards.append(MDSShard(name, entry["samples"], raw, stored, compression, kept[described]))
        if not is_remote(name):
            with open(name, "rb", buffering=0) as file:
                _check_size(shards[-1], stamps.check(name, file))
    return shards, content


def _entry(folder: str, entry: Mapping[str, Any]) -> tuple[str, int, str | None]:
    """The path of a shard, its number of bytes, and its compression. Raises: ValueError, KeyError, TypeError."""
    if entry["format"] != "mds" or entry["version"] != 2:
        raise ValueError(
            f"a shard has the format {entry['format']!r}, version {entry['version']!r}; mds and 2 are known"
        )
    raw, zipped = entry["raw_data"], entry["zip_data"]
    counts = [entry["samples"], raw["bytes"], *([zipped["bytes"]] if zipped else [])]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"a shard has {counts!r:.80} samples and bytes")
    columns = [entry[f"column_{what}"] for what in ("names", "encodings", "sizes")]
    if not all(type(part) is list and len(part) == len(columns[0]) for part in columns):
        raise ValueError(f"a shard has the columns {columns!r:.200}, of which there are not as many of each")
    path = _below(folder, raw["basename"])
    if zipped is None or (not is_remote(path) and os.path.exists(path)):
        return path, raw["bytes"], None
    name = str(entry["compression"]).partition(":")[0]
    if name not in _COMPRESSIONS:
        raise ValueError(
            f"{zipped['basename']} is compressed with {name!r}, and {', '.join(_COMPRESSIONS)} are known: decompress "
            "the shards beside the index"
        )
    return _below(folder, zipped["basename"]), zipped["bytes"], _COMPRESSIONS[name]


def _below(folder: str, name: str) -> str:
    if os.path.isabs(name) or ".." in name.split("/"):
        raise ValueError(f"it names {name!r}, which does not lie in its folder")
    if not is_remote(folder):
        return os.path.join(folder, name)
    first, chain, rest = folder.partition("::")
    if chain and "://" not in first:  # a cache of what follows, such as simplecache
        return f"{first}::{_below(rest, name)}"
    return f"{first}{'' if first.endswith('/') else '/'}{name}{chain}{rest}"


def _check_size(shard: MDSShard, stamp: Stamp | None) -> None:
    """Raises: ValueError, naming it, unless the file has as many bytes as the index says."""
    size = None if stamp is None else stamp[0]
    if isinstance(size, int) and size != shard.stored_bytes:
        what = "cut off" if size < shard.stored_bytes else "another one than the index means"
        raise ValueError(f"{shard.path} is {what}: it has {size} bytes, and should have {shard.stored_bytes}")


class Shards:
    """The bytes of samples. Compressed shards are decompressed to memory, of which the last used ones are kept, up to
    ``max_bytes`` and one at least; others are read where the sample stands. Pickles without what it keeps; several
    threads may read."""

    def __init__(self, options: Mapping[str, Any] | None, max_bytes: int, stamps: Stamps) -> None:
        self._stamps = stamps
        self._options = options
        self._max_bytes = max_bytes
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._idle: list[tuple[str, Any, bytes]] = []  # files at URLs that no thread reads, with their places

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_max_bytes": self._max_bytes, "_stamps": self._stamps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def sample(self, shard: MDSShard, number: int) -> bytes:
        """Raises: ValueError for a shard that is damaged, cut off or another one than the index means."""
        if self._process != os.getpid():  # forked: the lock may be held by a thread that is not here
            self._begin()
        if shard.compression is not None:
            content = self._decompressed(shard)
            return _sample(shard, number, lambda begin, count: content[begin : begin + count])
        if not is_remote(shard.path):
            with open(shard.path, "rb", buffering=0) as file:
                _check_size(shard, self._stamps.check(shard.path, file))
                return _sample(shard, number, partial(_read, file))
        file, head = self._opened(shard)
        try:
            data = _sample(shard, number, partial(_read, file, head=head))
        except BaseException:
            file.close()
            raise
        with self._lock:
            self._idle.append((shard.path, file, head))
            left = self._idle[:-_OPEN]
            del self._idle[:-_OPEN]
        for _, file, _ in left:
            file.close()
        return data

    def _decompressed(self, shard: MDSShard) -> bytes:
        with self._lock:  # held while one is made: threads that want the same one wait for it
            content = self._contents.pop(shard.path, None)
            if content is None:
                content = self._read_whole(shard)
                held = sum(map(len, self._contents.values())) + len(content)
                while self._contents and held > self._max_bytes:
                    held -= len(self._contents.popitem(last=False)[1])
            self._contents[shard.path] = content
            return content

    def _read_whole(self, shard: MDSShard) -> bytes:
        stored = Content(shard.path, shard.compression, self._options)
        try:
            _check_size(shard, self._stamps.compare(shard.path, stored.stamp))
            content: bytes = stored.read(shard.raw_bytes + 1)
        finally:
            stored.close()
        if len(content) != shard.raw_bytes:
            raise ValueError(
                f"{shard.path} is another shard than the index means: decompressed it should have {shard.raw_bytes} "
                f"bytes, and has {'more' if len(content) > shard.raw_bytes else len(content)}"
            )
        return content

    def _opened(self, shard: MDSShard) -> tuple[Any, bytes]:
        """It, for this thread alone, and where its samples stand: samples in order are read without a step back."""
        with self._lock:
            number = next((at for at, idle in enumerate(self._idle) if idle[0] == shard.path), None)
            if number is not None:
                return self._idle.pop(number)[1:]
        file = open_stored(shard.path, self._options)
        try:
            _check_size(shard, self._stamps.check(shard.path, file))
            return file, file.read(4 * (shard.samples + 2))
        except BaseException:
            file.close()
            raise


def _read(file: Any, begin: int, count: int, head: bytes = b"") -> bytes:
    if begin < len(head):
        return head[begin : begin + count]
    file.seek(begin)
    return file.read(count)  # type: ignore[no-any-return]


def _sample(shard: MDSShard, number: int, read: Callable[[int, int], bytes]) -> bytes:
    place = read(4 * (1 + number), _PAIR.size)
    first, count = 4 * (shard.samples + 2), _WORD.unpack(read(0, _WORD.size))[0]
    begin, end = _PAIR.unpack(place) if len(place) == _PAIR.size else (0, 0)
    if count != shard.samples or not first <= begin <= end <= shard.raw_bytes:
        raise ValueError(
            f"{shard.path} is damaged, or another shard than the index means: it has {count} samples, and should have "
            f"{shard.samples}; sample {number} stands from byte {begin} to {end} of {shard.raw_bytes}"
        )
    data = read(begin, end - begin)
    if len(data) < end - begin:
        raise ValueError(f"{shard.path} is cut off within sample {number}, at byte {begin + len(data)}")
    return data
