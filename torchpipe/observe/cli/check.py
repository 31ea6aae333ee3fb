"""``torchpipe check``: reads every record of files before a run does, and says which are bad, twice there, or unlike.

Each file is read by one process, from its start to its end. What is kept of a record is a hash of its key, of 64 bits.
Shards that a manifest beside them lists are also compared with what it says of them.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from glob import escape, glob
from hashlib import blake2b, file_digest
from typing import Any

import numpy as np

from reading_services import MultiProcessingReadingService
from torchpipe.errors import StateError
from torchpipe.formats.storage.paths import expand_paths
from torchpipe.formats.tables.parquet import groups_in
from torchpipe.formats.tokens import MappedTokens
from torchpipe.iter import (
    ArrowReader,
    CsvReader,
    IterableWrapper,
    JsonlReader,
    ParquetReader,
    TextLineReader,
    TFRecordReader,
    WebDatasetReader,
)
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.machine import format_bytes
from torchpipe.map import TokenFile
from torchpipe.writing.manifest import Manifest, ShardNames, WrittenShard

__all__ = ["Checked", "check_files"]

_SHOWN = 20  # bad records of a file, and pairs of equal keys, by their places
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_READERS: dict[str, Callable[[Any], Any]] = {
    ".tar": WebDatasetReader,
    ".parquet": ParquetReader,
    ".arrow": ArrowReader,
    ".feather": ArrowReader,
    ".jsonl": JsonlReader,
    ".ndjson": JsonlReader,
    ".txt": TextLineReader,
    ".csv": CsvReader,
    ".tsv": partial(CsvReader, delimiter="\t"),
    ".tfrecord": TFRecordReader,
}
_TOKENS = (".bin", ".npy")


@dataclass
class _Range:
    """Least, sum and most of ``count`` numbers."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, other: _Range) -> None:
        if other.count:
            self.least = min(self.least, other.least) if self.count else other.least
            self.most = max(self.most, other.most)
            self.count += other.count
            self.total += other.total

    def add_one(self, number: int) -> None:
        self.add(_Range(1, number, number, number))

    def to_dict(self) -> dict[str, float]:
        return {"least": self.least, "mean": self.total / max(1, self.count), "most": self.most}


@dataclass
class _File:
    """The content of a file. ``bad``: (place, error) of the first bad records; ``rest_lost``: reading ended there."""

    path: str
    size: int = 0
    records: int = 0
    bad_records: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)
    rest_lost: bool = False
    lengths: dict[str, _Range] = field(default_factory=dict)
    groups: _Range = field(default_factory=_Range)
    keys: array[int] = field(default_factory=partial(array, "Q"))

    def note_bad(self, place: str, error: Exception) -> None:
        self.bad_records += 1
        if len(self.bad) < _SHOWN:
            self.bad.append((place, f"{type(error).__name__}: {error}"))

    def note(self, record: Any, key: str | None) -> None:
        """Raises: KeyError for a record without the key."""
        fields = record if isinstance(record, dict) else {"record": record}
        if key is not None:
            if key not in fields:
                raise KeyError(f"it has no field {key!r}, only {', '.join(map(str, fields))}")
            self.keys.append(int.from_bytes(blake2b(repr(fields[key]).encode(), digest_size=8).digest(), "big"))
        for name, value in fields.items():
            if isinstance(value, Sized) and not str(name).startswith("__"):
                with suppress(TypeError):  # an array of no dimension
                    self.lengths.setdefault(str(name), _Range()).add_one(len(value))
        self.records += 1


@dataclass(frozen=True)
class Checked:
    """The content of all files. ``problems`` are sentences; with none of them the data can be read."""

    files: int
    size: int
    records: int
    sizes: _Range
    groups: _Range
    lengths: dict[str, _Range]
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "bytes": self.size,
            "records": self.records,
            "bytes of a file": self.sizes.to_dict(),
            "bytes of a row group": self.groups.to_dict() if self.groups.count else None,
            "lengths": {name: each.to_dict() for name, each in self.lengths.items()},
            "problems": self.problems,
        }

    def __str__(self) -> str:
        lines = [f"{self.files} files of {format_bytes(self.size)}, {self.records:,} records"]
        for what, sizes in (("a file", self.sizes), ("a row group", self.groups)):
            if sizes.count:
                mean = sizes.total // sizes.count
                least, middle, most = map(format_bytes, (sizes.least, mean, sizes.most))
                lines.append(f"bytes of {what}: least {least}, mean {middle}, most {most}")
        for name, each in self.lengths.items():
            lines.append(
                f"length of {name}: least {each.least:,}, mean {each.total / each.count:,.1f}, most {each.most:,}"
            )
        return "\n".join([*lines, *(f"problem  {each}" for each in self.problems), *([] if self.problems else ["ok"])])


def check_files(
    patterns: Sequence[str],
    key: str | None,
    workers: int | None,
    on_file: Callable[[int, int, int, int], None] = lambda *_: None,
) -> Checked:
    """Read the files that ``patterns`` name, in ``workers`` processes (by default one for each core; 0: in this one).

    ``key``: the field that no two records have alike; by default ``__key__`` where there are tar shards. ``on_file`` is
    called behind each file: with how many have been read of how many, and the bytes of these.

    Raises: FileNotFoundError, ValueError for patterns without files, and files of no kind that is known.
    """
    paths = expand_paths("check", list(patterns))
    for path in paths:
        _kind(path)
    count = min(len(paths), (os.cpu_count() or 1) if workers is None else workers)
    service = MultiProcessingReadingService(count) if count else None
    listed, problems = _listed(paths)
    given = [(path, listed.get(os.path.abspath(path))) for path in paths]
    whole = sum(map(_size, paths))
    graph = IterableWrapper(given).sharding_filter().map(partial(_examined, key=key))
    files: list[_File] = []
    with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(0)
        for file in loader:
            files.append(file)
            on_file(len(files), len(paths), sum(each.size for each in files), whole)
    return _joined(files, problems)


def _listed(paths: Sequence[str]) -> tuple[dict[str, WrittenShard], list[str]]:
    """(the shards that manifests beside ``paths`` list, by the absolute path that readers are given; problems)."""
    listed: dict[str, WrittenShard] = {}
    problems = []
    given = set(map(os.path.abspath, paths))
    for folder in sorted({os.path.dirname(path) for path in given}):
        for name in sorted(glob(os.path.join(escape(folder), "*manifest*.ndjson"))):
            try:
                manifest = Manifest(name, ())
            except StateError as error:
                if _is_manifest(name):
                    problems.append(str(error))
                continue
            shards = {os.path.join(folder, shard.files[-1].name): shard for shard in manifest.shards}
            if given.isdisjoint(shards):
                continue
            listed |= shards
            problems += [
                f"{path} is missing: {name} lists it" for path in shards.keys() - given if not os.path.exists(path)
            ]
            names = ShardNames.of(os.path.join(folder, str(manifest.run and manifest.run["path"])))
            named = {os.path.join(folder, each) for each in names.numbers_there([names.tail]).values()}
            problems += [
                f"{path} is named as the shards of {name} are, which does not list it"
                for path in sorted(given & named - shards.keys())
            ]
            if not manifest.finished:
                problems.append(f"{name}: the run that writes these shards has not finished: call write_shards again")
    return listed, problems


def _is_manifest(path: str) -> bool:
    with open(path, "rb") as file:
        return b'"torchpipe_shards"' in file.read(100)


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _kind(path: str) -> str:
    stem, ending = os.path.splitext(path)
    if ending in _COMPRESSED:
        ending = os.path.splitext(stem)[1]
    if ending not in _READERS and ending not in _TOKENS:
        raise ValueError(f"{path} ends in none of {', '.join([*_READERS, *_TOKENS])}, nor one of these, compressed")
    return ending


def _examined(given: tuple[str, WrittenShard | None], key: str | None) -> _File:
    path, shard = given
    kind = _kind(path)
    made = _File(path)
    try:
        made.size = _size(path)
        if shard is not None:
            _compare(made, shard)
        if kind in _TOKENS:
            _read_tokens(made)
        else:
            if kind == ".parquet":
                _read_groups(made)
            _read(made, _READERS[kind](path), "__key__" if key is None and kind == ".tar" else key)
    except Exception as error:
        made.note_bad("the file", error)
        made.rest_lost = True
    if not made.records and not made.bad_records:
        made.note_bad("the file", ValueError("it has no records"))
    return made


def _compare(made: _File, shard: WrittenShard) -> None:
    """With what its manifest says of its files."""
    for each in shard.files:
        path = os.path.join(os.path.dirname(made.path), each.name)
        place = "the file" if each.name == os.path.basename(made.path) else each.name
        if not os.path.exists(path):
            made.note_bad(place, ValueError("it is missing, and its manifest lists it"))
        elif (size := _size(path)) != each.bytes:
            made.note_bad(place, ValueError(f"it has {size} bytes, and had {each.bytes} when it was written"))
        else:
            with open(path, "rb") as file:
                if file_digest(file, "sha256").hexdigest() != each.sha256:
                    made.note_bad(place, ValueError("it has changed since it was written: another SHA-256"))


def _read_tokens(made: _File) -> None:
    says_type = made.path.endswith(".npy") or os.path.exists(f"{os.path.splitext(made.path)[0]}.idx")
    file = MappedTokens(made.path, None if says_type else "u1")
    if len(file.paths) == len(file.shape) == 1:  # one run, which readers cut: of a bare .bin nothing else can be wrong
        if file.tokens:
            made.note({"tokens": range(file.tokens)} if says_type else {}, None)
        return
    sequences = TokenFile(made.path, tensor_dtype=None)
    for number in range(len(sequences)):
        made.note({"tokens": sequences[number]}, None)


def _read_groups(made: _File) -> None:
    for group in groups_in(made.path, None)[1]:
        made.groups.add_one(group.total_byte_size)


def _read(made: _File, reader: Any, key: str | None) -> None:
    records = reader.records(made.path)
    try:
        while True:
            place = records.where()
            try:
                record = next(records)
            except StopIteration:
                return
            except Exception as error:
                made.note_bad(records.where(), error)
                behind = _behind_bad(records, reader, made.path)
                if behind is None:
                    made.rest_lost = True
                    return
                records.close()
                records = behind
                continue
            try:
                made.note(record, key)
            except KeyError as error:
                made.note_bad(place, ValueError(error.args[0]))
    finally:
        records.close()


def _behind_bad(failed: Any, reader: Any, path: str) -> Any:
    """The records behind one that is wrong; None where there is no telling where it ends."""
    if failed.failed:
        return None
    records = reader.records(path)
    try:
        records.go_to(failed.position())
        records.follow(failed)
        if records.leave_out():
            return records
    except Exception:  # it is wrong in such a way that it cannot be passed over: told already
        pass
    records.close()
    return None


def _joined(files: list[_File], of_manifests: list[str]) -> Checked:
    sizes, groups, lengths = _Range(), _Range(), dict[str, _Range]()
    for file in files:
        sizes.add_one(file.size)
        groups.add(file.groups)
        for name, each in file.lengths.items():
            lengths.setdefault(name, _Range()).add(each)
    problems = of_manifests + [sentence for file in files for sentence in _problems(file)]
    return Checked(
        files=len(files),
        size=sizes.total,
        records=sum(file.records for file in files),
        sizes=sizes,
        groups=groups,
        lengths=lengths,
        problems=problems + list(_equal_keys(files)),
    )


def _problems(file: _File) -> Iterator[str]:
    for place, error in file.bad:
        yield f"{file.path}, {place}: {' '.join(error.split())}"
    if file.bad_records > len(file.bad):
        yield f"{file.path}: {file.bad_records - len(file.bad)} more bad records"
    if file.rest_lost:
        yield f"{file.path}: what is behind that could not be read"


def _equal_keys(files: list[_File]) -> Iterator[str]:
    keys = np.concatenate([np.array(file.keys, np.uint64) for file in files])
    owners = np.repeat(np.arange(len(files)), [len(file.keys) for file in files])
    begins = np.cumsum([0, *(len(file.keys) for file in files)])
    order = np.argsort(keys, kind="stable")
    twice = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    for place in twice[np.argsort(order[twice + 1])][:_SHOWN]:
        first, second = (
            f"record {index - begins[owners[index]]} of {files[owners[index]].path}"
            for index in (order[place], order[place + 1])
        )
        yield f"{second} has the key of {first}"
    if len(twice) > _SHOWN:
        yield f"{len(twice) - _SHOWN} more records have the key of another one"
