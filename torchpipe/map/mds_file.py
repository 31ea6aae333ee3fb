"""``MDSFile``: the samples of MosaicML Streaming's MDS shards by number."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from torchpipe.formats.decoding import check_images
from torchpipe.formats.mds import Shards, mds_index
from torchpipe.formats.storage.listed import listed
from torchpipe.formats.storage.options import check_storage_options
from torchpipe.formats.storage.paths import expand_paths
from torchpipe.formats.storage.streams import Stamps
from torchpipe.formats.tables.columns import check_columns
from torchpipe.map._indices import checked_index
from torchpipe.node.datapipe import MapDataPipe
from torchpipe.node.validate import check_count

__all__ = ["MDSFile"]


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
        self.columns = check_columns(columns)
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
