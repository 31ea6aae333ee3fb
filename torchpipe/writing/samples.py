"""Tar shards of WebDataset's samples: the files of one stand side by side, named by its key and their endings."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from typing import Any

from torchpipe.formats.encoding import encode_file
from torchpipe.formats.tar import BLOCK_BYTES, MOST_ENDINGS, many_endings, split_name
from torchpipe.writing.files import PartFile
from torchpipe.writing.kinds import Kind, Writing

__all__ = ["Samples"]

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
