"""Files that are read by number.

- ``MDSFile``: the samples of MosaicML Streaming's MDS shards by number.
- ``TFRecordFile``: the records of TFRecord files by number.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from torchpipe.formats.decoding import check_images
from torchpipe.formats.mds import Shards, mds_index
from torchpipe.formats.storage.block_cache import check_storage_options
from torchpipe.formats.storage.paths import expand_paths, is_remote, listed, listed_files
from torchpipe.formats.storage.streams import Stamps
from torchpipe.formats.tables.columns import checked_columns
from torchpipe.formats.tfrecord import check_crc32c, example_parser, read_record, record_offsets
from torchpipe.map._indices import checked_index
from torchpipe.node.datapipe import MapDataPipe
from torchpipe.node.validate import check_count

__all__ = ["MDSFile", "TFRecordFile"]


class MDSFile(MapDataPipe[dict[str, Any]]):
    """Reads the samples of MDS data sets, as MosaicML Streaming's ``MDSWriter`` makes them, by number: dicts of the
    columns.

    ``paths`` are folders with an ``index.json``, or these files: local ones or URLs (fsspec's, with its
    ``storage_options``), with braces and globs, read one behind the other. ``columns`` names those that are decoded, by
    default all. Numbers have their NumPy type (``int`` is Python's), ``ndarray`` is an array of its shape and type, and
    images are what ``images`` says: ``"pil"``, ``"rgb8"`` (uint8 arrays of (height, width, 3)), ``"torchrgb8"`` (uint8
    tensors of (3, height, width)) or None, bytes as they are stored. Pickles (``pkl``) are refused.

    Of an uncompressed shard the bytes of the sample alone are read; the file is opened for it, at URLs 4 are kept
    open. A compressed one (zstd, gz, bz2) is decompressed to memory when a sample of it is read: each process keeps
    the last used ones, ``max_bytes`` of them and one at least, so read these in order, not shuffled as a whole.

    ``to_iter_datapipe`` and ``shuffle`` make a pipeline of it that goes to any position at once and whose shards read
    their own samples alone. What identifies the data is the index, not where it lies or whether it is compressed there.

    Raises: FileNotFoundError, ValueError, naming the file, for an index or a shard that is missing, cut off, damaged or
    of another size than the index says: of local files when the node is made, at URLs when they are read.
    """

    fingerprint_ignores = ("paths", "storage_options", "max_bytes", "shards", "reader", "ends")  # known by ``files``

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        images: str | None = "pil",
        max_bytes: int = 1 << 28,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.paths = expand_paths("MDSFile", paths, storage_options)
        self.columns = checked_columns(columns)
        self.images = check_images(images)
        self.max_bytes = check_count("max_bytes", max_bytes, at_least=0)
        self.storage_options = check_storage_options(storage_options)
        folders = [path.removesuffix("index.json") or "." for path in self.paths]
        stamps = Stamps()
        found = [mds_index(folder, self.columns, images, storage_options, stamps) for folder in folders]
        self.files = [
            listed([hashlib.sha256(index).hexdigest()[:16]], [sum(shard.raw_bytes for shard in shards)])
            for shards, index in found
        ]
        self.shards = [shard for shards, _ in found for shard in shards]
        self.ends = list(accumulate(shard.samples for shard in self.shards))
        self.reader = Shards(storage_options, self.max_bytes, stamps)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, index: Any) -> dict[str, Any]:
        index = checked_index("MDSFile", index, len(self))
        number = bisect_right(self.ends, index)
        shard, inner = self.shards[number], index - (self.ends[number - 1] if number else 0)
        data = self.reader.sample(shard, inner)
        try:
            return shard.columns(data)
        except Exception as error:
            error.add_note(f"MDSFile: while reading {shard.path}, sample {inner}")
            raise


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
