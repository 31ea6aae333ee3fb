"""The borders at which a tar archive's samples and a TFRecord file's records may be parted: by an index, or by a scan.

Runs in the process that plans pieces. A scan reads the headers and passes over the content between them. A damaged
part, or one that is cut off, is in the last piece: its reader is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchpipe.formats.indexes import Index, misfit
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.tar import BLOCK_BYTES, TarFiles, split_name
from torchpipe.formats.tfrecord import hop_records, indexed_records, record_length

__all__ = ["RECORDS", "SAMPLES", "Format"]

_HEADER_BYTES = 1 << 12  # read at a time


@dataclass(frozen=True)
class Format:
    """``scan(path)``: the positions, in ascending order, of a local file; ``indexed(path, index, size)``: those that an
    index has, ValueError if it does not fit; ``check(path, positions)``: ValueError unless something begins at each of
    these positions of a local file.
    """

    scan: Callable[[str], Any]
    indexed: Callable[[str, Index, int], Any]
    check: Callable[[str, Any], None]


def _scan_samples(path: str) -> Any:
    """The beginnings of samples. One in two places has no border between these: its reader is to see both."""
    starts, keys = [0], list[str]()
    content = Content(path, None, buffer_bytes=_HEADER_BYTES)
    try:
        files = TarFiles(content, follows_links=False)
        with suppress(EOFError, ValueError):
            while (member := files.next()) is not None:
                parts = split_name(member.name)
                if parts is None or (keys and parts[0] == keys[-1]):
                    continue
                if keys:
                    starts.append(member.header)
                keys.append(parts[0])
    finally:
        content.close()
    return _joined(np.array(starts, np.int64), keys)


def _joined(starts: Any, keys: Iterable[str | None]) -> Any:
    """``starts`` without those between two places of one key, which is None where it is not known."""
    numbers: dict[int, int] = {}  # of samples, by their keys
    undivided = []
    for number, key in enumerate(keys):
        if key is not None and (first := numbers.setdefault(hash(key), number)) != number:
            undivided.append((first, number))
    if not undivided:
        return starts
    depth = np.zeros(len(starts) + 1, np.int64)
    first, last = np.array(undivided).T
    np.add.at(depth, first + 1, 1)
    np.add.at(depth, last + 1, -1)
    return starts[np.cumsum(depth)[:-1] == 0]


def _indexed_samples(path: str, index: Index, size: int) -> Any:
    """The samples' beginnings. DALI's ``wds2idx``: "v1.2 COUNT", and in a line for each sample ending, position, size
    and name of each file (no name in v1.1). Megatron-Energon's: the place of each sample, and the end, as uint64.
    """
    keys: Iterable[str | None] | None = None
    if index.content.startswith(b"v1."):
        starts, keys = _of_wds2idx(index)
    elif not index.content:
        raise misfit(index, path, size)
    elif len(index.content) % 8:
        raise ValueError(f"{index.name} is no index of a tar archive, as DALI or Megatron-Energon write it")
    else:
        starts = np.frombuffer(index.content, "<u8").astype(np.int64)
    ascending = np.all(np.diff(starts) > 0) and not np.any(starts % BLOCK_BYTES)
    if not ascending or (len(starts) and not 0 <= starts[0] <= starts[-1] <= size):
        raise misfit(index, path, size)
    starts = starts[:-1]  # where the archive ends
    if keys is None and not is_remote(path):
        keys = _keys_at(path, starts)
    return starts if keys is None else _joined(starts, keys)


def _keys_at(path: str, positions: Any) -> Iterator[str | None]:
    """The keys of the samples that begin at ``positions``; None where none begins, which :func:`_check_samples` tells
    of those that matter.
    """
    content = Content(path, None, buffer_bytes=BLOCK_BYTES)
    try:
        for position in map(int, positions):
            files = TarFiles(content, follows_links=False)
            content.go_back(position)
            files.begin_at(position)
            try:
                member = files.next()
            except (EOFError, ValueError):
                member = None
            parts = None if member is None else split_name(member.name)
            yield None if parts is None else parts[0]
    finally:
        content.close()


def _of_wds2idx(index: Index) -> tuple[Any, list[str | None] | None]:
    """The borders of samples, 0 and the end included, and their keys if the index has names. Behind the last file of a
    sample the next one begins, with all headers that it has.
    """
    head, *lines = index.content.splitlines()
    width = 3 if head.startswith(b"v1.1") else 4
    ends = [0]
    keys: list[str | None] = []
    try:
        if int(head.split()[1]) != len(lines):
            raise ValueError(f"it has {len(lines)} samples, and says {head.decode('utf-8', 'replace')!r:.40}")
        for line in lines:
            fields = line.split()
            if not fields or len(fields) % width:
                raise ValueError(f"the line {line.decode('utf-8', 'replace')!r:.80}")
            last = int(fields[1 - width]) + int(fields[2 - width])
            ends.append(-(-last // BLOCK_BYTES) * BLOCK_BYTES)
            if width == 4:
                parts = split_name(fields[3].decode("utf-8", "surrogateescape"))
                keys.append(None if parts is None else parts[0])
    except (ValueError, IndexError) as error:
        blanks = " (names with blanks in them cannot be told from one another there)" if b" " in index.content else ""
        raise ValueError(
            f"{index.name} is no index of a tar archive as DALI's wds2idx writes it: {error}{blanks}. Make it anew, or "
            "remove it and give piece_bytes=, with which local archives are scanned"
        ) from error
    return np.array(ends, np.int64), keys if width == 4 else None


def _check_samples(path: str, positions: Any) -> None:
    content = Content(path, None, buffer_bytes=_HEADER_BYTES)
    try:
        for position in map(int, positions):
            files = TarFiles(content, follows_links=False)
            content.go_back(position)
            files.begin_at(position)
            with suppress(EOFError):  # it is cut off behind this position
                files.next()
    finally:
        content.close()


def _scan_records(path: str) -> Any:
    starts = []
    with suppress(EOFError, ValueError):
        for start in hop_records(path):
            starts.append(start)
    return np.array(starts, np.int64)


def _check_records(path: str, positions: Any) -> None:
    with open(path, "rb", buffering=_HEADER_BYTES) as file:
        for position in map(int, positions):
            file.seek(position)
            record_length(path, file.read, position)


SAMPLES = Format(_scan_samples, _indexed_samples, _check_samples)
RECORDS = Format(_scan_records, indexed_records, _check_records)
