"""``TFRecordFile``: the records of TFRecord files by number."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from torchpipe.formats.example import example_parser
from torchpipe.formats.storage.listed import listed_files
from torchpipe.formats.storage.paths import expand_paths, is_remote
from torchpipe.formats.storage.streams import Stamps
from torchpipe.formats.tfrecord import check_crc32c, read_record, record_offsets
from torchpipe.map._indices import checked_index
from torchpipe.node.datapipe import MapDataPipe

__all__ = ["TFRecordFile"]


class TFRecordFile(MapDataPipe[Any]):
    """Reads the records of TFRecord files by number: examples as dicts of tensors, or with ``parse=False`` bytes.

    ``paths``, local ones, may hold braces and globs; ``spec``, ``parse`` and ``verify`` are those of
    :class:`~torchpipe.iter.TFRecordReader`. Where records begin is read when the node is made: from an index beside the
    file (``.idx`` or ``.index``, as DALI's ``tfrecord2idx`` writes it), else by hopping from length to length. It takes
    8 bytes a record.

    ``to_iter_datapipe`` and ``shuffle`` make a pipeline of it that goes to any position at once and whose shards read
    their own records alone. A file is opened for each record; one that was replaced since the node was made is an
    error.

    Raises: ImportError without ``crc32c`` (``pip install crc32c``); ValueError, EOFError for damaged and cut off files
    and an index that does not fit, when the node is made or the record is read.
    """

    fingerprint_ignores = ("paths", "offsets", "stamps", "verify")  # known by ``files`` and ``ends``

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        spec: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        *,
        parse: bool = True,
        verify: bool = True,
    ) -> None:
        check_crc32c()
        self.paths = expand_paths("TFRecordFile", paths)
        remote = next(filter(is_remote, self.paths), None)
        if remote is not None:
            raise ValueError(f"TFRecordFile reads local files by number, got {remote!r}: use read_tfrecord")
        self.files = listed_files(self.paths)
        self.parse = example_parser(spec) if parse else bytes
        self.verify = verify
        self.stamps = Stamps()
        for path in self.paths:
            with open(path, "rb", buffering=0) as stream:
                self.stamps.check(path, stream)
        self.offsets = [record_offsets(path) for path in self.paths]
        self.ends = list(accumulate(map(len, self.offsets)))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: Any) -> Any:
        index = checked_index("TFRecordFile", index, len(self))
        file = bisect_right(self.ends, index)
        offset = int(self.offsets[file][index - (self.ends[file - 1] if file else 0)])
        path = self.paths[file]
        with open(path, "rb") as stream:
            self.stamps.check(path, stream)
            stream.seek(offset)
            data = read_record(path, stream.read, offset, self.verify)
        if data is None:
            raise EOFError(f"{path} has become shorter: there is no record at byte {offset} any more")
        try:
            return self.parse(data)
        except Exception as error:
            error.add_note(f"TFRecordFile: while reading {path}, record {index} (byte {offset})")
            raise
