"""``write_shards``: runs in the process that iterates the loader, which writes the shards one after the other."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.execution.reading_service import ReadingServiceInterface
from torchpipe.formats.storage.writing import Lease
from torchpipe.iter.items import Mapper
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.node.validate import check_count
from torchpipe.writing.kinds import Kind, Lines, PartFile, Samples, Tokens, Writing, part_of, sync_folder, telling
from torchpipe.writing.manifest import Manifest, ShardFile, ShardNames, WrittenShard, WrittenShards
from torchpipe.writing.tables import Tables

__all__ = ["write_shards"]

_WAIT_S = 5.0  # for the workers of a run that was killed, which hold its lock until they have noticed

_log = logging.getLogger("torchpipe")


def write_shards(
    graph: Any,
    path: str | os.PathLike[str],
    *,
    max_bytes: int = 1 << 30,
    max_samples: int | None = None,
    reading_service: ReadingServiceInterface | None = None,
    seed: int = 0,
    dtype: Any = None,
    schema: Any = None,
    allow_pickle: bool = False,
) -> WrittenShards:
    """Write one epoch of ``graph`` as shards; called again after a crash, go on behind the last whole one.

    ``path`` has a field for the shard's number, and its ending says what is written: ``"out-{:05d}.tar"`` (samples of
    WebDataset: dicts with ``__key__``), ``.parquet`` (dicts of values by column), ``.jsonl`` and ``.jsonl.zst`` (any
    JSON value), ``.bin`` (token files with an ``.idx``: one sequence of integers for each document). A shard ends
    with the sample by which it has ``max_bytes``, before compression, or ``max_samples``. ``reading_service`` makes and
    encodes the samples, as it does for :class:`DataLoader2`; this process writes. ``dtype``: of the tokens in ``.bin``
    files, such as ``"uint16"``. ``schema``: pyarrow's, for parquet; by default as the first 16 MiB of rows are.

    A shard appears whole, on disk, or not at all. The manifest beside them (``out-manifest.tar.ndjson``) has
    the samples, bytes and SHA-256 of each; the loader's state behind the last one is beside it until the run has
    finished. The bytes of all shards are those of a run without interruption, under any number of workers. A run that
    is finished does nothing, in a folder that is read-only too.

    Raises: ValueError, TypeError for wrong arguments, samples that cannot be encoded, and shards in the folder that no
    manifest tells of; StateMismatchError for a folder that holds the shards of another run (graph, seed, arguments);
    StateError for a damaged manifest, a shard that has changed, and a state that needs ``allow_pickle``; RuntimeError
    while another process writes them; OSError for a folder that is full or cannot be written to; ImportError.
    """
    names = ShardNames.of(path)
    kind = _kind(names, dtype, schema)
    run = {
        "path": names.pattern,
        "max_bytes": check_count("max_bytes", max_bytes, at_least=1),
        "max_samples": None if max_samples is None else check_count("max_samples", max_samples, at_least=1),
        "seed": check_count("seed", seed, at_least=0),
        **kind.arguments,
    }
    with DataLoader2(graph, lambda node: Mapper(node, kind.encode), reading_service) as loader:
        if loader.reading_service.world_size > 1:
            raise ValueError(
                f"write_shards is for one process, and this is one of {loader.reading_service.world_size} ranks: give "
                "each a part of the input and a folder of its own, with a reading service without ranks"
            )
        loader.seed(run["seed"])
        with telling(names.folder):
            manifest = Manifest(names.manifest, names.states)
        if manifest.finished:  # for good: nothing is written, so the folder may be read-only
            _take_up(names, kind, manifest, loader, run, allow_pickle)
            before = len(manifest.shards)
        else:
            with _exclusive(names):
                manifest = Manifest(names.manifest, names.states)
                _take_up(names, kind, manifest, loader, run, allow_pickle)
                before = len(manifest.shards)
                if not manifest.finished:
                    _write(names, kind, manifest, loader, run)
    for left in (names.lock, *names.states, *map(part_of, names.states)):  # by a run that was killed, perhaps
        with suppress(OSError):
            os.unlink(left)
    shards = tuple(manifest.shards)
    done = WrittenShards(path=os.fspath(path), folder=names.folder, shards=shards, new=len(shards) - before)
    _log.info("%s", done)
    return done


def _kind(names: ShardNames, dtype: Any, schema: Any) -> Kind:
    ending = names.tail
    if dtype is not None and not ending.endswith(".bin"):
        raise ValueError(f"dtype={dtype!r} is of tokens in .bin files, got the path {names.pattern!r}")
    if schema is not None and not ending.endswith(".parquet"):
        raise ValueError(f"schema is of .parquet files, got the path {names.pattern!r}")
    if ending.endswith(".tar"):
        return Samples()
    if ending.endswith(".parquet"):
        return Tables(schema)
    if ending.endswith((".jsonl", ".jsonl.zst")):
        return Lines(compressed=ending.endswith(".zst"))
    if ending.endswith(".bin"):
        return Tokens(dtype)
    raise ValueError(
        f"path must end in .tar, .parquet, .jsonl, .jsonl.zst or .bin, by what is to be written, got {names.pattern!r}"
    )


@contextmanager
def _exclusive(names: ShardNames) -> Iterator[None]:
    """Nobody else writes these shards meanwhile. Raises: RuntimeError, OSError."""
    lease = Lease(names.lock)
    with telling(names.folder):
        os.makedirs(names.folder, exist_ok=True)
        taken = lease.take(_WAIT_S)
    if not taken:
        raise RuntimeError(f"{lease.owner()} writes {names.pattern} in {names.folder} at this moment: wait for it")
    try:
        yield
    finally:
        lease.give_back(remove=True)


def _check_folder(names: ShardNames, kind: Kind, manifest: Manifest) -> None:
    """Raises: ValueError for shards of somebody else's; StateError for one that has changed since it was written."""
    count = len(manifest.shards)
    there = names.numbers_there(each.removeprefix("x") for each in kind.files(f"x{names.tail}"))
    foreign = there.keys() - set(range(count if manifest.run is None or manifest.finished else count + 1))
    if foreign:
        what = "which it does not list" if manifest.run else "and no manifest that lists it"
        raise ValueError(f"{names.folder} has {there[min(foreign)]}, {what}: write into a new folder, or move it away")
    for shard in manifest.shards:
        for file in shard.files:
            path = os.path.join(names.folder, file.name)
            size = os.path.getsize(path) if os.path.exists(path) else None
            if size != file.bytes:
                raise StateError(
                    f"{path} is {'missing' if size is None else f'of {size} bytes'}, and had {file.bytes} bytes when "
                    "it was written: put it back (a run into another folder writes the same bytes again), or remove "
                    f"{manifest.path} and its shards, and call write_shards again, which begins anew"
                )


def _take_up(
    names: ShardNames, kind: Kind, manifest: Manifest, loader: DataLoader2[Any], run: dict[str, Any], allow_pickle: bool
) -> None:
    """The loader stands behind the last shard. Raises: ValueError, StateError, StateMismatchError for another run."""
    _check_folder(names, kind, manifest)
    kind.learned = manifest.learned
    other = (
        f"{names.folder} holds the shards of another run: write into a new folder, or remove them and {manifest.path}"
    )
    if manifest.run is None or not (manifest.shards or manifest.finished):  # nothing was written: anybody may begin
        manifest.begin(run, loader.state_dict())
        return
    differs = [name for name in {**manifest.run, **run} if manifest.run.get(name) != run.get(name)]
    if differs:
        theirs, ours = manifest.run.get(differs[0]), run.get(differs[0])
        raise StateMismatchError(f"{other}. {differs[0]} was {theirs!r:.80} there, and is {ours!r:.80} here")
    try:
        loader.load_state_dict(manifest.state(), allow_pickle=allow_pickle)
    except StateMismatchError as error:
        raise StateMismatchError(f"{other}. {error}") from error


class _Open:
    """The shard that is being written."""

    def __init__(self, names: ShardNames, kind: Kind, manifest: Manifest) -> None:
        name = names.shard(len(manifest.shards))
        self.samples = self.bytes = 0
        self._folder = names.folder
        self._files: list[PartFile] = []
        try:
            for each in kind.files(name):
                self._files.append(PartFile(os.path.join(names.folder, each)))
            self._writing: Writing = kind.open(self._files)
        except BaseException:
            self.discard()
            raise

    def add(self, encoded: Any) -> None:
        self.bytes += self._writing.add(encoded)
        self.samples += 1

    def finish(self) -> WrittenShard:
        """It is whole, and on disk under its name."""
        self._writing.close()
        for file in self._files:
            file.finish()
        for file in self._files:
            file.rename()
        with telling(self._folder):
            sync_folder(self._folder)
        made = [
            ShardFile(name=os.path.basename(file.path), bytes=file.size, sha256=file.sha256) for file in self._files
        ]
        return WrittenShard(samples=self.samples, files=tuple(made))

    def discard(self) -> None:
        for file in self._files:
            file.discard()


def _write(names: ShardNames, kind: Kind, manifest: Manifest, loader: DataLoader2[Any], run: dict[str, Any]) -> None:
    max_bytes, max_samples = run["max_bytes"], run["max_samples"]
    shard: _Open | None = None
    try:
        for encoded in loader if loader.epoch == 0 else ():  # behind its last item stands the next epoch
            if shard is None:
                shard = _Open(names, kind, manifest)
            shard.add(encoded)
            if shard.bytes >= max_bytes or shard.samples == max_samples:
                manifest.add(shard.finish(), loader.state_dict(), kind.learned)
                shard = None
        if shard is not None:
            manifest.add(shard.finish(), loader.state_dict(), kind.learned)
        manifest.finish()
    finally:
        if shard is not None:
            shard.discard()
