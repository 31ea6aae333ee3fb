"""``FilePieces``: the parts of files that readers can read by themselves, to be shuffled and divided."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.errors import GraphError
from torchpipe.formats.pieces.plan import (
    PIECE_BYTES,
    UNITS,
    Piece,
    PiecePlan,
    check_plan_file,
    plan_in_file,
    plan_pieces,
)
from torchpipe.formats.pieces.undivided import how_to_divide
from torchpipe.formats.storage.block_cache import check_storage_options
from torchpipe.formats.storage.content import check_compression
from torchpipe.formats.storage.paths import expand_paths, is_remote, listed, size_of
from torchpipe.indexed.shuffled import ShuffledKeys, Switched
from torchpipe.iter._shared.paths import ListedKeys, PathList, local_files
from torchpipe.node.context import Context
from torchpipe.node.describe import names_below
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, divides, stream_arguments, walk
from torchpipe.node.validate import check_count

__all__ = ["FilePieces", "StreamPieces", "rows_kept"]


class FilePieces(Switched[Piece]):
    """Yields pieces of files, which readers take in the place of paths: each reads what stands in it, and no more.

    ``paths`` are those of :class:`~torchpipe.iter.PathList`. ``unit`` says where they may be cut: ``"lines"`` (for
    ``read_lines`` and ``read_jsonl``), ``"row groups"`` (``read_parquet``), ``"record batches"`` (``read_arrow``),
    ``"samples"`` (``read_webdataset``), ``"records"`` (``read_tfrecord``) or ``"files"``, not at all. Pieces have about
    ``piece_bytes`` bytes of the stored file (32 MiB, if it is left out), a row group, record batch, sample or record at
    least, a file at most. Compressed files, and Arrow streams at a URL, are one piece each. With ``shuffle`` they come
    in random order, another one in each epoch, every order having the same chance.

    Tar archives and TFRecord files are cut by an index beside them, if they have one: ``a.tar.idx``, ``a.idx`` or the
    same with ``.index``, as DALI's ``wds2idx`` and ``tfrecord2idx``, Megatron-Energon and the package ``tfrecord``
    write them. Local ones without an index are scanned if ``piece_bytes`` is given, which reads the header of each file
    or record in them; else, and at URLs, they are one piece each.

    The plan is made with the node, from the sizes of the files and the tables at the ends of parquet files, those of
    several files at once: all shards have the same, and files that come later are in none. ``shard_pieces`` of a reader
    makes this node and divides it. With ``plan_file``, a local path, it is made once for all ranks, and for runs that
    resume: whoever comes first writes it there, and all others read it, open no file, and leave out what has come
    since.

    State: one integer, a key, and which files there were, as of :class:`~torchpipe.iter.PathList`, with the number of
    pieces and a digest of where they are cut: a state loads over the same plan only. Raises: as there,
    and ValueError for what is no such file; GraphError if there are more shards than pieces: when the loader is built,
    if their number is fixed, else when a pass begins.
    """

    by_index = True
    names_files = True
    # A run may move to where the data lie
    fingerprint_ignores = ("paths", "listed", "plan", "plan_file", "storage_options")

    def __init__(
        self,
        paths: PathList | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        unit: str,
        *,
        shuffle: bool = False,
        piece_bytes: int | None = None,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
        plan_file: str | os.PathLike[str] | None = None,
    ) -> None:
        if unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(map(repr, UNITS))}, got {unit!r}")
        self.piece_bytes = None if piece_bytes is None else check_count("piece_bytes", piece_bytes, at_least=1)
        self.unit = unit
        self.compression = check_compression(compression)
        self.storage_options = check_storage_options(storage_options)
        self.own_seed: int | None = None
        self.enabled = _checked_switch(shuffle)
        expanded = paths.paths if isinstance(paths, PathList) else None
        found = expand_paths("FilePieces", paths, storage_options) if expanded is None else expanded

        def make(files: Sequence[str]) -> PiecePlan:
            return plan_pieces(files, unit, self.piece_bytes, self.compression, self.storage_options)

        self.plan_file = check_plan_file(plan_file)
        asked = {"unit": unit, "piece_bytes": self.piece_bytes, "compression": self.compression}
        self.plan = make(found) if self.plan_file is None else plan_in_file(self.plan_file, found, asked, make)
        self.paths = self.plan.paths
        self.listed = self.plan.listed()

    @property
    def seeded(self) -> bool:  # type: ignore[override]
        return self.enabled

    def __len__(self) -> int:
        return len(self.plan)

    def explained(self) -> str:
        """The numbers of pieces and files, and the reasons why some files are not divided, as text."""
        whole = ", ".join(f"{count} {why}" for why, count in self.plan.whole.items())
        pieces, files = _several(len(self.plan), "piece"), _several(len(self.paths), "file")
        return f"{pieces} of {files}" + (f" (undivided: {whole})" if whole else "")

    def check_shards(self, num_shards: int = 1) -> None:
        size = self.piece_bytes or PIECE_BYTES
        whole = ["files"] if self.unit == "files" else list(self.plan.uncut)
        may_be_cut = self.unit != "files" and sum(self.plan.uncut.values()) < len(self.paths)
        smaller = f", make them smaller (than piece_bytes={size})" if may_be_cut else ""
        if smaller and self.unit in ("samples", "records") and any(map(is_remote, self.paths)):
            smaller += " with an index beside each file"
        least = {"row groups": ", or write the files with smaller row groups"}.get(self.unit, "")
        way_out = f"{smaller}{least}" or f", {how_to_divide(whole)}"
        _check_enough(len(self.plan), num_shards, f"{self.explained()} cannot", way_out)

    def made_of(self) -> Mapping[str, Any]:
        return {**stream_arguments(self), "paths": self.paths, "files": local_files(self.paths)}

    def iterate(self, context: Context) -> NodeIterator[Piece]:
        return _PiecesIterator(self, context, self.plan, range(len(self.plan)))


class _PiecesIterator(ListedKeys[Any], ShuffledKeys[Any]):
    node: FilePieces | StreamPieces

    def stride(self, parts: int, part: int) -> None:
        self.node.check_shards(parts)
        super().stride(parts, part)


def _check_enough(count: int, parts: int, what: str, way_out: str) -> None:
    """Raises: GraphError for fewer pieces than shards."""
    if count < parts:
        raise GraphError(
            f"{what} be divided among {parts} shards, of which {parts - count} would read nothing: use fewer shards"
            f"{way_out}"
        )


class StreamPieces(Switched[int]):
    """Yields the numbers of the ``count`` shards that a stream of Hugging Face has, in random order with ``shuffle``.
    ``files``: the names of what is in them, in order.

    State: one integer, a key, and which files there were, as of :class:`FilePieces`. Raises: GraphError, when a pass
    begins, if there are more shards than these; StateMismatchError.
    """

    by_index = True
    names_files = True
    fingerprint_ignores = ("paths", "listed")  # a run may move to where the data lie

    def __init__(self, count: int, files: Sequence[str], shuffle: bool) -> None:
        self.count = count
        self.paths = tuple(files)
        self.listed = listed(
            names_below(self.paths), [size_of(path) if os.path.isabs(path) else None for path in files]
        )
        self.own_seed: int | None = None
        self.enabled = _checked_switch(shuffle)

    @property
    def seeded(self) -> bool:  # type: ignore[override]
        return self.enabled

    def __len__(self) -> int:
        return self.count

    def check_shards(self, num_shards: int = 1) -> None:
        way_out = ", write the data in more files, or divide rows (sharding_filter(), with which each reads all)"
        _check_enough(
            self.count, num_shards, f"a stream of {_several(self.count, 'shard')} (its files) cannot", way_out
        )

    def explained(self) -> str:
        return f"{_several(self.count, 'shard')} of the stream"

    def iterate(self, context: Context) -> NodeIterator[int]:
        return _PiecesIterator(self, context, range(self.count), range(self.count))


def _checked_switch(shuffle: bool) -> bool:
    if not isinstance(shuffle, bool):
        raise TypeError(f"shuffle must be True or False, got {shuffle!r} of type {type(shuffle).__name__}")
    return shuffle


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def rows_kept(source: DataPipe) -> Sequence[Sequence[int]] | None:
    """The rows of each row group, piece by piece, that ``source`` hands on; None unless it is ``FilePieces`` of these.

    Raises: TypeError where a shard has other pieces in each epoch.
    """
    nodes = walk(source)
    pieces: Any = nodes[0]
    if not isinstance(pieces, FilePieces) or pieces.plan.rows is None or len(nodes) > 2:
        return None
    plan: PiecePlan = pieces.plan
    parts, part = 1, 0
    if len(nodes) == 2:
        point: Any = nodes[1]
        if not divides(point):
            return None
        parts, part = point.applied() or (1, 0)
    if parts > 1 and pieces.enabled:
        raise TypeError("which pieces a shard has, and how many rows, changes with each epoch: shuffle=True")
    return [plan.rows_of(number) for number in range(part, len(plan), parts)]  # type: ignore[misc]
