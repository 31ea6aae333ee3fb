"""The manifest of a run: what each shard holds, and where the run goes on behind it.

A line of JSON for the run, one for each shard that is whole, one for the end. Lines are only ever added, each once what
it tells of is on disk; a last line without its end was cut off by a crash, and counts as none. States are base64 of
their bytes.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torchpipe.errors import StateError
from torchpipe.writing.files import sync_folder, telling

__all__ = ["Manifest", "Shard", "ShardFile", "WrittenShards"]

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """A file of a shard: its ``name`` in the folder, its size in ``bytes``, and the ``sha256`` of its content."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard that is whole: how many ``samples`` it holds, and its ``files``, of which token files have two."""

    samples: int
    files: tuple[ShardFile, ...]

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class WrittenShards:
    """What :func:`write_shards` has done: ``shards`` are all that are whole now, of which ``new`` were written by this
    call. ``print`` shows it in a sentence."""

    path: str
    folder: str
    shards: tuple[Shard, ...]
    new: int

    @property
    def samples(self) -> int:
        """Of all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Of all shards' files."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def paths(self) -> list[str]:
        """The file of each shard that readers are given, in order."""
        return [os.path.join(self.folder, shard.files[-1].name) for shard in self.shards]

    def __str__(self) -> str:
        text = f"{self.path}: {len(self.shards)} shards of {self.samples:,} samples, {self.bytes / 1e6:,.1f} MB"
        there = len(self.shards) - self.new
        if not self.new:
            return f"{text}, were all there: nothing was done"
        return f"{text}, written" + (f", {there} of them by runs before" if there else "")


class Manifest:
    """The manifest at ``path``, read; ``run`` is None where none has been begun. Raises: StateError if it is damaged.

    ``state``: the loader's behind the last shard; ``learned``: what the shards' kind had learned there.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.run: dict[str, Any] | None = None
        self.shards: list[Shard] = []
        self.state: dict[str, Any] = {}
        self.learned = ""
        self.finished = False
        self._end = 0  # in bytes, of the last whole line
        try:
            with open(path, "rb") as file:
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            lines = []
        for number, line in enumerate(lines):
            try:
                self._take(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise StateError(
                    f"{path} is damaged in line {number + 1} ({error}). The shards of the lines before it are whole: "
                    "cut it off there, and call write_shards again, which goes on behind them"
                ) from error
            self._end += len(line) + 1

    def _take(self, line: dict[str, Any]) -> None:
        if "torchpipe_shards" in line:
            if line["torchpipe_shards"] != _VERSION:
                raise ValueError(f"version {line['torchpipe_shards']!r:.20}, where {_VERSION} is known")
            self.run = dict(line["run"])
            self.state = _state(line["state"])
        elif "finished" in line:
            self.finished = True
        else:
            files = tuple(ShardFile(**file) for file in line["files"])
            self.shards.append(Shard(samples=line["samples"], files=files))
            self.state, self.learned = _state(line["state"]), line["learned"]

    def begin(self, run: dict[str, Any], state: Mapping[str, Any]) -> None:
        """The first line: what the run is, and its state before the first sample."""
        self._add({"torchpipe_shards": _VERSION, "run": run, "state": _text(state)})
        sync_folder(os.path.dirname(self.path))
        self.run, self.state = run, dict(state)

    def add(self, shard: Shard, state: Mapping[str, Any], learned: str) -> None:
        """A shard is whole, and on disk under its name."""
        files = [vars(file) for file in shard.files]
        self._add({"samples": shard.samples, "files": files, "learned": learned, "state": _text(state)})
        self.shards.append(shard)

    def finish(self) -> None:
        """The last shard is written."""
        self._add({"finished": True, "shards": len(self.shards), "samples": sum(each.samples for each in self.shards)})
        self.finished = True

    def _add(self, line: dict[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        with telling(self.path), open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
            file.truncate(self._end)
            file.seek(self._end)
            try:
                if file.write(data) < len(data):
                    file.write(data[file.tell() - self._end :])  # says why
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(self._end)
                raise
        self._end += len(data)


def _text(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "payload": base64.b64encode(state["payload"]).decode("ascii")}


def _state(text: Mapping[str, Any]) -> dict[str, Any]:
    return {**text, "payload": base64.b64decode(text["payload"], validate=True)}
