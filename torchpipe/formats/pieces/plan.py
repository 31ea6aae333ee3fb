"""Pieces: the parts of files that readers can read by themselves, so that nobody reads what others read.

Runs in the process that builds a graph, where files are planned, and in those that read. A plan is made once, of what
the files are then: their sizes, and of tables the table at their ends.

A plan may be kept in a file: whoever comes first makes it, and ranks and runs that come later have the same. The file
is data in the form of states; nothing in it is run.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from torchpipe.errors import StateError
from torchpipe.formats.indexes import find_index, folders_with_indexes, misfit
from torchpipe.formats.pieces.starts import RECORDS, SAMPLES, Format
from torchpipe.formats.pieces.undivided import ARROW_STREAM, COMPRESSED, STREAM, UNINDEXED, UNSCANNED
from torchpipe.formats.storage.content import is_compressed, open_stored
from torchpipe.formats.storage.paths import is_remote, listed, size_of
from torchpipe.formats.storage.streams import Stamp, change_of, stamp_of
from torchpipe.formats.storage.writing import Lease, write_first
from torchpipe.formats.tables.blocks import arrow_batches
from torchpipe.formats.tables.parquet import groups_in
from torchpipe.node.describe import names_below
from torchpipe.state import decode, encode

__all__ = [
    "PIECE_BYTES",
    "UNITS",
    "Piece",
    "PiecePlan",
    "check_plan_file",
    "check_unchanged",
    "make_piece",
    "plan_in_file",
    "plan_pieces",
]

PIECE_BYTES = 32 << 20

_THREADS = 16
_SLOW_S = 1.0
_TELL_S = 5.0
_BUFFER_BYTES = 512  # of files that are opened to be looked at
_MOST = 1 << 24  # pieces of one file: more are a slip of the pen
_WHOLE = -1

_log = logging.getLogger("torchpipe")


class Piece(NamedTuple):
    """The part of the file at ``path`` from ``start`` to ``stop``, in bytes, row groups or record batches.

    ``unit`` is one of ``UNITS``. A line, a sample or a record belongs to the piece that it starts in. The unit of a
    whole file is ``"files"``, and both numbers are 0. ``stamp`` tells another file from the one that was planned.
    """

    path: str
    unit: str
    start: int
    stop: int
    stamp: Stamp | None


def make_piece(path: str, unit: str, start: int, stop: int, stamp: Stamp | None) -> Piece:
    """A piece whose stamp is its own: whoever gets it as an item may change it in place."""
    return Piece(path, unit, start, stop, None if stamp is None else list(stamp))


class PiecePlan(Sequence[Piece]):
    """The pieces of files, one after the other. ``sizes`` are those of the files, in bytes, None where nobody knows.

    It has one identity, :meth:`digest`: states, ranks and plan files compare that.

    ``rows`` is known of parquet files: of each row group of all files. ``whole``: how many files are one piece each,
    though they are larger, by why that is; ``uncut``: the same of files of any size.
    """

    holds_only_data = True

    def __init__(self, paths: Sequence[str], unit: str, cuts: Sequence[_Cut]) -> None:
        self.paths = tuple(paths)
        self.unit = unit
        self.sizes = tuple(cut.size for cut in cuts)
        self.whole = dict(Counter(cut.whole for cut in cuts if cut.whole))
        self.uncut = dict(Counter(cut.uncut for cut in cuts if cut.uncut))
        self._stamps = [cut.stamp for cut in cuts]
        spans = [cut.spans() for cut in cuts]
        self._files = np.repeat(np.arange(len(cuts)), [len(part) for part in spans])
        self._spans = np.concatenate(spans)  # of int64: start and stop, _WHOLE of whole files
        rows_of_files = [cut.rows for cut in cuts if cut.rows is not None]
        self.rows: np.ndarray[Any, Any] | None = (
            np.concatenate(rows_of_files) if len(rows_of_files) == len(cuts) else None
        )
        self.group_counts = np.array([len(part) for part in rows_of_files], np.int64)  # of each file
        self._first_rows = np.cumsum([0, *self.group_counts])

    def digest(self) -> str:
        """A digest of the files, by their names below the folder that all have in common and their sizes, in order and
        with repetitions, and of the cuts of each.
        """
        return str(self.listed()[-1])

    def listed(self) -> list[Any]:
        """Plain data, as :func:`~torchpipe.formats.storage.paths.listed` gives it, how many pieces there are, and the
        digest.
        """
        files = listed(names_below(self.paths), self.sizes)
        made = hashlib.sha256(f"{files[-1]}\0{self.unit}\0".encode())
        made.update(np.ascontiguousarray(self._files, "<i8").tobytes())
        made.update(np.ascontiguousarray(self._spans, "<i8").tobytes())
        return [*files, len(self), made.hexdigest()[:16]]

    def at(self, paths: Sequence[str]) -> PiecePlan:
        """The same plan of the same files at other places."""
        moved = copy.copy(self)
        moved.paths = tuple(paths)
        return moved

    def to_data(self) -> dict[str, Any]:
        """Plain data and arrays, from which :meth:`from_data` makes the plan again."""
        return {
            "unit": self.unit,
            "paths": list(self.paths),
            "sizes": list(self.sizes),
            "stamps": self._stamps,
            "counts": np.bincount(self._files, minlength=len(self.paths)).astype(np.int64),
            "spans": self._spans,
            "whole": self.whole,
            "uncut": self.uncut,
            "rows": self.rows,
            "group_counts": self.group_counts,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> PiecePlan:
        """Raises: ValueError, TypeError, LookupError for what is no plan."""
        paths, sizes, stamps = data["paths"], data["sizes"], data["stamps"]
        counts, spans, rows, group_counts = (data[name] for name in ("counts", "spans", "rows", "group_counts"))
        if not (len(paths) == len(sizes) == len(stamps) == len(counts) and spans.shape == (sum(counts), 2)):
            raise ValueError("its parts do not fit each other")
        pieces = np.split(spans, np.cumsum(counts)[:-1])
        groups = [None] * len(paths) if rows is None else np.split(rows, np.cumsum(group_counts)[:-1])
        cuts = [
            _Cut(stamp, size, np.append(part[:, 0], part[-1, 1]) if len(part) > 1 else None, known)
            for stamp, size, part, known in zip(stamps, sizes, pieces, groups, strict=True)
        ]
        plan = cls(paths, data["unit"], cuts)
        plan.whole, plan.uncut = dict(data["whole"]), dict(data["uncut"])
        return plan

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: Any) -> Any:
        file = int(self._files[number])
        start, stop = map(int, self._spans[number])
        if stop == _WHOLE:
            return make_piece(self.paths[file], "files", 0, 0, self._stamps[file])
        return make_piece(self.paths[file], self.unit, start, stop, self._stamps[file])

    def rows_of(self, number: int) -> np.ndarray[Any, Any] | None:
        """The number of rows of each row group of a piece; None where it is not known."""
        if self.rows is None:
            return None
        file = int(self._files[number])
        start, stop = map(int, self._spans[number])
        first = int(self._first_rows[file])
        if stop == _WHOLE:
            return self.rows[first : int(self._first_rows[file + 1])]
        return self.rows[first + start : first + stop]


def check_unchanged(piece: Piece, stamp: Stamp | None, plan_file: str | None = None) -> None:
    """Raises: ValueError if ``stamp`` is that of another file than the one that was planned; ``plan_file`` is where
    the plan is kept.
    """
    change = change_of(piece.path, piece.stamp, stamp)
    if change is not None:
        when, anew = ", when the graph was built", "build the graph anew"
        if plan_file is not None:
            when, anew = f", which {plan_file} keeps", f"remove the plan_file {plan_file}, build the graph anew"
        raise ValueError(
            f"{piece.path} has changed since its pieces were planned{when}: {change}. Restore it, or {anew} and begin "
            "the epoch anew"
        )


@dataclass(frozen=True)
class _Cut:
    """The cuts of a file: at ``ends``, of which there are at least two, or nowhere."""

    stamp: Stamp | None
    size: int | None
    ends: np.ndarray[Any, Any] | None = None
    rows: np.ndarray[Any, Any] | None = None  # of its row groups
    whole: str = ""  # why it is not cut, though it is large
    uncut: str = ""  # why it would not be, however large

    def spans(self) -> np.ndarray[Any, Any]:
        ends = self.ends if self.ends is not None and len(self.ends) > 2 else np.array([0, _WHOLE])
        return np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)


@dataclass(frozen=True)
class _Wanted:
    piece_bytes: int
    scans: bool  # files whose records are found by reading from the start alone
    compression: str | None
    storage_options: Mapping[str, Any] | None
    indexed: Mapping[str, int]  # folders of URLs

    def why_whole(self, path: str, size: int | None, seeks: bool) -> str:
        """Why a file cannot be read from any byte on; empty if it can."""
        if is_compressed(path, self.compression):
            return COMPRESSED
        return "" if seeks and size is not None else STREAM


def _whole(path: str, wanted: _Wanted) -> _Cut:
    if not is_remote(path) and size_of(path) is None:  # a pipe, say, which is opened once
        return _Cut(None, None, whole=STREAM, uncut=STREAM)
    with open_stored(path, wanted.storage_options, _BUFFER_BYTES) as file:
        stamp = stamp_of(file)
        size = None if stamp is None else stamp[0]
        size = size if isinstance(size, int) else None
        seeks = getattr(getattr(file, "raw", None), "seeks", True)  # a server may give whole files alone
        is_large = size is None or size > wanted.piece_bytes
        why = wanted.why_whole(path, size, seeks)
        return _Cut(stamp, size, whole=why if is_large else "", uncut=why)


def _at_lines(path: str, wanted: _Wanted) -> _Cut:
    cut = _whole(path, wanted)
    return cut if cut.uncut or not cut.size else replace(cut, ends=_even(path, cut.size, wanted))


def _even(path: str, size: int, wanted: _Wanted) -> np.ndarray[Any, Any]:
    """The ends of pieces of a file, of equal size."""
    count = max(1, -(-size // wanted.piece_bytes))
    if count > _MOST:
        raise ValueError(
            f"{path} of {size} bytes would have {count} pieces of piece_bytes={wanted.piece_bytes}: take more bytes"
        )
    return np.array([number * size // count for number in range(count + 1)], np.int64)


def _at_starts(form: Format, path: str, wanted: _Wanted) -> _Cut:
    """Cut where a sample or a record begins, at the first one behind each end of pieces of equal size."""
    cut = _whole(path, wanted)
    if cut.uncut or not cut.size or cut.size <= wanted.piece_bytes:
        return cut
    index = find_index(path, wanted.indexed, wanted.storage_options)
    if index is not None:
        starts = form.indexed(path, index, cut.size)
    elif is_remote(path) or not wanted.scans:
        why = UNINDEXED if is_remote(path) else UNSCANNED
        return replace(cut, whole=why, uncut=why)
    else:
        starts = form.scan(path)
    first, *inner, size = _even(path, cut.size, wanted)
    found = np.unique(np.searchsorted(starts, inner))
    cuts = starts[found[found < len(starts)]]
    if index is not None and not is_remote(path):
        try:
            form.check(path, cuts)
        except (EOFError, ValueError) as error:
            raise misfit(index, path, cut.size) from error
    return replace(cut, ends=np.array([first, *cuts, size], np.int64))


def _joined(sizes: Sequence[float], most: float) -> np.ndarray[Any, Any]:
    """The borders that part neighbours of these sizes, so that together they have at most ``most``, or are alone."""
    ends, held = [0], 0.0
    for number, size in enumerate(sizes):
        if held and held + size > most:
            ends.append(number)
            held = 0.0
        held += size
    return np.array([*ends, len(sizes)], np.int64)


def _at_row_groups(path: str, wanted: _Wanted) -> _Cut:
    stamp, groups = groups_in(path, wanted.storage_options)
    rows = np.array([group.num_rows for group in groups], np.int64)
    made = [group.total_byte_size for group in groups]  # decompressed
    size = stamp[0] if stamp is not None and isinstance(stamp[0], int) else None
    scale = 1.0 if size is None else size / max(1, sum(made))
    return _Cut(stamp, size, _joined([scale * each for each in made], wanted.piece_bytes), rows)


def _at_record_batches(path: str, wanted: _Wanted) -> _Cut:
    cut = _whole(path, wanted)
    count = arrow_batches(path, wanted.storage_options) if cut.size else None
    if not count or cut.size is None:
        stream = ARROW_STREAM if cut.size is not None and cut.size > wanted.piece_bytes else ""
        return replace(cut, whole=cut.whole or stream, uncut=cut.uncut or (ARROW_STREAM if cut.size else ""))
    return replace(cut, ends=_joined([cut.size / count] * count, wanted.piece_bytes), whole="", uncut="")


_Cutter: TypeAlias = Callable[[str, _Wanted], _Cut]
UNITS: Mapping[str, _Cutter] = {
    "lines": _at_lines,
    "row groups": _at_row_groups,
    "record batches": _at_record_batches,
    "samples": partial(_at_starts, SAMPLES),
    "records": partial(_at_starts, RECORDS),
    "files": _whole,
}
_INDEXED = ("samples", "records")


def plan_pieces(
    paths: Sequence[str],
    unit: str,
    piece_bytes: int | None,
    compression: str | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> PiecePlan:
    """The pieces of ``paths``, of about ``piece_bytes`` bytes of the stored files each (None: 32 MiB); looked up in 16
    threads.

    A file that is smaller is one piece, and so are a compressed one and a remote Arrow stream. A row group, or a record
    batch, that is larger is one piece as well. Tar archives and TFRecord files are cut where an index beside them says
    that samples and records begin; without one, local ones are scanned if ``piece_bytes`` is given. Raises: what
    opening the files raises, of the first that raises in their order; ValueError for more than 16 million pieces in one
    file.
    """
    began = time.monotonic()
    cutter, distinct = UNITS[unit], list(dict.fromkeys(paths))
    indexed = folders_with_indexes(distinct, storage_options) if unit in _INDEXED else {}
    wanted = _Wanted(piece_bytes or PIECE_BYTES, piece_bytes is not None, compression, storage_options, indexed)
    if len(distinct) == 1:
        cuts = [cutter(distinct[0], wanted)]
    else:
        threads = ThreadPoolExecutor(min(_THREADS, len(distinct)), "torchpipe-pieces")
        try:
            cuts = list(_warned(threads.map(lambda path: cutter(path, wanted), distinct), len(distinct), began))
        finally:
            threads.shutdown(cancel_futures=True)
    rows_of_files = dict(zip(distinct, cuts))
    plan = PiecePlan(paths, unit, [rows_of_files[path] for path in paths])
    took_s = time.monotonic() - began
    if took_s > _SLOW_S:
        _log.info("%d files were looked up and planned as %d pieces in %.1f s", len(paths), len(plan), took_s)
    return plan


def _warned(cuts: Iterable[_Cut], count: int, began: float) -> Iterator[_Cut]:
    """``cuts``, with a line every few seconds that says how many of ``count`` there are."""
    warned_s = began
    for done, cut in enumerate(cuts, 1):
        yield cut
        now_s = time.monotonic()
        if now_s - warned_s > _TELL_S and done < count:
            _log.warning("pieces are being planned: %d of %d files in %.0f s", done, count, now_s - began)
            warned_s = now_s


_VERSION = 3
_WAIT_S = 600.0  # for somebody else who is making it; then it is made here as well


def check_plan_file(value: object) -> str | None:
    """``value`` as text. Raises: TypeError for what is no path; ValueError for a URL."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise TypeError(f"plan_file must be the path of a file, got {value!r:.80} of type {type(value).__name__}")
    if is_remote(path):
        raise ValueError(f"plan_file must be a local path that all ranks share, got {path!r:.200}")
    return path


def plan_in_file(
    file: str, paths: Sequence[str], asked: Mapping[str, Any], make: Callable[[Sequence[str]], PiecePlan]
) -> PiecePlan:
    """The plan that ``file`` holds, or else the one that ``make(paths)`` makes, which it holds from then on.

    ``asked``: how the files are cut. The files may have moved: their names below the folder that all have in common,
    and their sizes, are to be the same. ``paths`` may have others besides, and the plan file itself. Raises: ValueError
    for a plan of other pieces or files, or of these in another order, and for what is no plan.
    """
    paths = [path for path in paths if not _is_own(file, path)]
    if not os.path.exists(file):
        lease = Lease(f"{file}.lock")
        taken = lease.take(_WAIT_S)
        try:
            if not os.path.exists(file):
                plan = make(paths)
                data = {"plan of pieces": _VERSION, "asked": dict(asked), "digest": plan.digest()}
                write_first(file, encode({**data, **plan.to_data()}))
        finally:
            if taken:
                lease.give_back(remove=True)
    return _found_again(file, _read(file, asked), paths)


def _is_own(file: str, path: str) -> bool:
    """True if ``path`` is the plan file, or one of those that exist while it is made."""
    if is_remote(path) or not os.path.basename(path).startswith(os.path.basename(file)):
        return False
    rest = os.path.abspath(path).removeprefix(os.path.abspath(file))
    return rest in ("", ".lock") or re.fullmatch(r"\.[0-9a-f]{32}", rest) is not None


def _found_again(file: str, plan: PiecePlan, paths: Sequence[str]) -> PiecePlan:
    """``plan``, of those of ``paths`` that are in it."""
    planned, given = list(plan.paths), list(paths)
    if has_moved := not set(planned) <= set(given):
        planned, given = names_below(planned), names_below(given)
    wanted = set(planned)
    kept = [number for number, name in enumerate(given) if name in wanted]
    missing = sorted(wanted - {given[number] for number in kept})
    if missing:
        raise ValueError(
            f"{file} is the plan of {len(plan.paths)} files, of which {len(missing)} are not among those that are "
            f"given now, such as {missing[0]!r:.200}. Restore them; or remove the plan, and begin the epoch anew"
        )
    if [given[number] for number in kept] != planned:
        raise ValueError(
            f"{file} is the plan of the same files in another order, or each another number of times: of "
            f"{len(planned)}, and {len(kept)} are given now. Give them as they were given then (a glob sorts them); or "
            "remove the plan, and begin the epoch anew"
        )
    here = [paths[number] for number in kept]
    if has_moved:
        _check_sizes(file, plan, here)
    if left_out := len(paths) - len(here):
        _log.warning(
            "%d files that are not in the plan %s are not read: remove it, to have them planned", left_out, file
        )
    return plan.at(here)


def _check_sizes(file: str, plan: PiecePlan, paths: Sequence[str]) -> None:
    """Raises: ValueError unless the local files that have moved have the sizes that were planned."""
    for path, planned in zip(paths, plan.sizes):
        now = None if is_remote(path) else size_of(path)
        if None not in (planned, now) and planned != now:
            raise ValueError(
                f"{file} is the plan of other files of these names: {path} has {now} bytes, and had {planned}. Restore "
                "it; or remove the plan, and begin the epoch anew"
            )


def _read(file: str, asked: Mapping[str, Any]) -> PiecePlan:
    with open(file, "rb") as opened:
        content = opened.read()
    try:
        data = decode(content)
        if data["plan of pieces"] != _VERSION:
            raise ValueError(f"it has version {data['plan of pieces']!r:.20}, and this torchpipe reads {_VERSION}")
        theirs, plan = data["asked"], PiecePlan.from_data(data)
        if plan.digest() != data["digest"]:
            raise ValueError("its digest is that of another plan")
    except (StateError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{file} is no plan of pieces, or a damaged one: {error}. Remove it") from error
    for name, value in asked.items():
        if theirs.get(name) != value:
            raise ValueError(
                f"{file} is the plan of other pieces: of {name}={theirs.get(name)!r:.80}, here it is {value!r:.80}. "
                "Remove it, and begin the epoch anew, or name another file"
            )
    return plan
