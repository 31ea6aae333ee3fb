"""The kind of a shard: encodes samples, and puts them into files.

A file that has its name once it is whole, on disk. Runs in the process that writes shards.

JSON Lines, compressed or not: a value on each line.

Tar shards of WebDataset's samples: the files of one stand side by side, named by its key and their endings.

Megatron's token files: a ``.bin`` of numbers, and the ``.idx`` that says where each document begins.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from torchpipe.compat.packages import needs
from torchpipe.formats.encoding import encode_file, json_text
from torchpipe.formats.tar import BLOCK_BYTES, MOST_ENDINGS, many_endings, split_name
from torchpipe.formats.tokens import token_index, token_type

__all__ = ["Kind", "Lines", "PartFile", "Samples", "Tokens", "Writing", "part_of", "sync_folder", "telling"]


@contextmanager
def telling(path: str) -> Iterator[None]:
    """OSErrors within say what has become of the shards, and what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise OSError(
            error.errno,
            f"{error.strerror or error}. Nothing of this file is left, and the shards that the manifest lists are "
            f"whole: {'make room' if full else 'see to it that the folder can be written to'}, and call write_shards "
            "again, which goes on behind them",
            path,
        ) from error


class PartFile(io.RawIOBase):
    """Written from its start on under a name that no pattern for shards finds, then renamed. One writer at a time.

    ``sha256`` is the digest of what has been written, ``size`` are its bytes.

    Raises: OSError, which says how to go on.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._part = part_of(path)
        self._digest = hashlib.sha256()
        with telling(path):
            self._file: Any = open(self._part, "wb", buffering=1 << 20)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with telling(self.path):
            self._file.write(view)
        self._digest.update(view)
        self.size += len(view)
        return len(view)

    def finish(self) -> None:
        """All is written, and on disk."""
        with telling(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def rename(self) -> None:
        """From now on the file has its name."""
        with telling(self.path):
            os.replace(self._part, self.path)

    def discard(self) -> None:
        """Remove it, unless it has its name. Idempotent."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            os.unlink(self._part)


def part_of(path: str) -> str:
    """The path that a file has until it is whole."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.part")


def sync_folder(folder: str) -> None:
    """The names in ``folder`` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Writing(ABC):
    """A shard that is being written, in the process that iterates."""

    @abstractmethod
    def add(self, encoded: Any) -> int:
        """Take what ``encode`` has made of a sample. Returns the bytes that it counts for, before compression.

        Raises: ValueError for one that cannot stand in this shard; OSError.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is left. Raises: as :meth:`add`."""


class Kind(ABC):
    """``encode`` runs where samples are made, and is part of the graph's identity; it does not change its argument.

    ``arguments``: what else the bytes depend on, by name, as plain values. ``learned``: what the first samples have
    said of all that follow, as text; a run that goes on is given it.
    """

    encode: Callable[[Any], Any]
    arguments: dict[str, Any]
    learned: str = ""

    def files(self, name: str) -> list[str]:
        """The files of the shard ``name``, in the order in which they get their names; readers are given the last."""
        return [name]

    @abstractmethod
    def open(self, files: list[PartFile]) -> Writing:
        """Begin a shard. Raises: OSError."""


_FRAME_BYTES = 1 << 22  # of text in a frame, from any of which a reader goes on


class Lines(Kind):
    """``compressed``: zstandard frames of 4 MiB of text each. Raises: ImportError where zstandard is missing."""

    def __init__(self, *, compressed: bool) -> None:
        self.encode = json_text
        self.arguments = {}
        self._compress: Any = None
        if compressed:
            zstandard = needs("zstandard", "writing .jsonl.zst (.jsonl needs nothing)")
            self._compress = zstandard.ZstdCompressor(write_checksum=True).compress

    def open(self, files: list[PartFile]) -> Writing:
        return _LinesWriting(files[0], self._compress)


class _LinesWriting(Writing):
    def __init__(self, file: PartFile, compress: Any) -> None:
        self._file = file
        self._compress = compress
        self._held: list[bytes] = []
        self._held_bytes = 0

    def add(self, encoded: Any) -> int:
        self._held += (encoded, b"\n")
        self._held_bytes += len(encoded) + 1
        if self._held_bytes >= _FRAME_BYTES:
            self._write()
        return len(encoded) + 1

    def _write(self) -> None:
        data = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        self._file.write(data if self._compress is None else self._compress(data))

    def close(self) -> None:
        if self._held:
            self._write()


_LEFT_OUT = ("__key__", "__url__")  # the second is the shard that a sample was read from
_RECORD_BYTES = 20 * BLOCK_BYTES  # what the end of an archive is filled up to


def _encode_sample(sample: Any) -> tuple[str, bytes]:
    """(key, the entries of an archive) of a sample. Raises: TypeError, ValueError, with the key."""
    if not isinstance(sample, Mapping):
        raise TypeError(
            f"a sample for a tar shard must be a dict with '__key__' and its files by their endings, such as "
            f"{{'__key__': '0001', 'jpg': ..., 'cls': 3}}, got {sample!r:.80} of type {type(sample).__name__}"
        )
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise ValueError(
            f"a sample must have a text as '__key__', got {key!r:.80}: number them in the graph (enumerate()), as "
            "f'{number:09d}'"
        )
    endings = [ending for ending in sample if ending not in _LEFT_OUT]
    if not endings:
        raise ValueError(f"sample {key!r:.200} has no files beside its '__key__': no reader would find it")
    if len(endings) > MOST_ENDINGS:
        raise many_endings(key, endings)
    entries: list[Any] = []
    for ending in endings:
        _check_name(key, ending)
        try:
            content = encode_file(ending, sample[ending])
        except Exception as error:
            error.add_note(f"while encoding {key}.{ending}")
            raise
        header = tarfile.TarInfo(f"{key}.{ending}")
        header.size = memoryview(content).nbytes
        entries += (header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"), content, bytes(-header.size % BLOCK_BYTES))
    return key, b"".join(entries)


def _check_name(key: str, ending: object) -> None:
    """Raises: ValueError for a file that a reader would not find under this key and ending."""
    name = f"{key}.{ending}"
    readable = name.isprintable() and not name.startswith("/")
    if not isinstance(ending, str) or split_name(name) != (key, ending) or not readable:
        raise ValueError(
            f"no reader finds the file {name!r:.200} under the key {key!r:.200} and the ending {ending!r:.80}: a key "
            "is what stands before the first dot of the last part, so it has no dots there, and an ending is in lower "
            "case. Rename them in the graph, as by key.replace('.', '_')"
        )


class Samples(Kind):
    """Samples are dicts with ``__key__``; no two of a shard have the same."""

    def __init__(self) -> None:
        self.encode = _encode_sample
        self.arguments = {}

    def open(self, files: list[PartFile]) -> Writing:
        return _SamplesWriting(files[0])


class _SamplesWriting(Writing):
    def __init__(self, file: PartFile) -> None:
        self._file = file
        self._keys: set[str] = set()

    def add(self, encoded: Any) -> int:
        key, entries = encoded
        if key in self._keys:
            raise ValueError(
                f"two samples of {self._file.path} have the key {key!r:.200}: a reader takes their files for one "
                "sample. Give each a key of its own"
            )
        self._keys.add(key)
        return self._file.write(entries)

    def close(self) -> None:
        end = 2 * BLOCK_BYTES
        self._file.write(bytes(end + -(self._file.size + end) % _RECORD_BYTES))


_MOST_TOKENS = (1 << 31) - 1  # of a document, whose length is 4 bytes


class _TokenEncoder:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __call__(self, sample: Any) -> Any:
        """The tokens of a document as an array of ``dtype``, a copy. Raises: TypeError, ValueError."""
        try:
            tokens = np.asarray(sample)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"a document must be a sequence of tokens, got {sample!r:.80}: {error}") from error
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and len(tokens)):
            raise TypeError(
                f"a document must be one row of integers, got {sample!r:.80} of type {type(sample).__name__}: choose "
                "them in the graph, as by .map(lambda row: row['tokens'])"
            )
        bounds = np.iinfo(self.dtype)
        if len(tokens) and not bounds.min <= int(tokens.min()) <= int(tokens.max()) <= bounds.max:
            raise ValueError(
                f"a document has tokens from {tokens.min()} to {tokens.max()}, which {self.dtype} cannot hold: give "
                "another dtype"
            )
        if len(tokens) > _MOST_TOKENS:
            raise ValueError(f"a document of {len(tokens):,} tokens: an .idx has room for {_MOST_TOKENS:,}")
        return tokens.astype(self.dtype)


class Tokens(Kind):
    """Each sample is a document, one sequence of the index. ``dtype``: one that Megatron's index has a code for."""

    def __init__(self, dtype: Any) -> None:
        kind = token_type(dtype)
        self.encode = _TokenEncoder(kind.str)
        self.arguments = {"dtype": kind.str}
        self._dtype = kind

    def files(self, name: str) -> list[str]:
        return [os.path.splitext(name)[0] + ".idx", name]  # a .bin is there with its index, or not at all

    def open(self, files: list[PartFile]) -> Writing:
        return _TokensWriting(files[0], files[1], self._dtype)


class _TokensWriting(Writing):
    def __init__(self, index: PartFile, data: PartFile, dtype: Any) -> None:
        self._index, self._data, self._dtype = index, data, dtype
        self._lengths = array("i")

    def add(self, encoded: Any) -> int:
        self._lengths.append(len(encoded))
        return self._data.write(encoded) if len(encoded) else 0

    def close(self) -> None:
        self._index.write(token_index(np.frombuffer(self._lengths, np.int32), self._dtype))
