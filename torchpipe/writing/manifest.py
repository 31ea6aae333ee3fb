"""The manifest of a run: what each shard holds, and where the run goes on behind it.

A line of JSON for the run, one for each shard that is whole, one for the end. Lines are only ever added, each once what
it tells of is on disk; a last line without its end was cut off by a crash, and counts as none.

The first line has the loader's state before the first sample, which says what graph it is, with its bytes in base64.
The state behind a shard, which may be large, is in one of two files beside the manifest, in turn: the line of the shard
has its digest, and while the next one is written the last one stays as it is. They go when the run has finished.

The names of a run's shards: made of one pattern, and recognised in a folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from torchpipe.errors import StateError
from torchpipe.formats.storage.paths import is_remote
from torchpipe.writing.kinds import PartFile, sync_folder, telling

__all__ = ["Manifest", "ShardFile", "ShardNames", "WrittenShard", "WrittenShards"]

_VERSION = 2
_ANEW = "remove it and its shards, and call write_shards again, which begins anew"


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """A file of a shard: its ``name`` in the folder, its size in ``bytes``, and the ``sha256`` of its content."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """A shard that is whole: how many ``samples`` it holds, and its ``files``, of which token files have two."""

    samples: int
    files: tuple[ShardFile, ...]

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class WrittenShards:
    """The result of :func:`write_shards`: ``shards`` are all that are whole now, of which this call wrote ``new``.
    ``print`` shows it in a sentence.
    """

    path: str
    folder: str
    shards: tuple[WrittenShard, ...]
    new: int

    @property
    def samples(self) -> int:
        """The number of samples of all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """The bytes of all shards' files."""
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

    ``states``: the files of the states behind shards, in turn. ``first_state``: the loader's before the first sample;
    ``learned``: what the shards' kind had learned behind the last one.
    """

    def __init__(self, path: str, states: Sequence[str]) -> None:
        self.path = path
        self.run: dict[str, Any] | None = None
        self.shards: list[WrittenShard] = []
        self.first_state: dict[str, Any] = {}
        self.learned = ""
        self._states = states
        self._digest = ""  # of the last shard's state
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
            except StateError:
                raise
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise StateError(
                    f"{path} is damaged in line {number + 1} ({error}). The shards of the lines before it are whole. "
                    f"Put a copy of it in its place, or {_ANEW}"
                ) from error
            self._end += len(line) + 1

    def _take(self, line: dict[str, Any]) -> None:
        """The run is in the first line, each shard in one of its own, and the last line has their sums."""
        if self.run is None:
            if (version := line["torchpipe_shards"]) != _VERSION:
                raise StateError(
                    f"{self.path} is of version {version!r:.20}, and {_VERSION} is known here. The shards that it "
                    f"lists are whole: go on with the torchpipe that has written it, or {_ANEW}"
                )
            run = dict(line["run"])
            self.first_state = {**line["state"], "payload": base64.b64decode(line["state"]["payload"], validate=True)}
            self.run = run
        elif self.finished:
            raise ValueError("the run has finished in the line before")
        elif "finished" in line:
            if line != (end := self._sums()):
                raise ValueError(f"it says {line}, and the lines before it {end}")
            self.finished = True
        else:
            files = tuple(ShardFile(**file) for file in line["files"])
            if not files:
                raise ValueError("a shard has files")
            shard = WrittenShard(samples=int(line["samples"]), files=files)
            self._digest, self.learned = str(line["state"]), line["learned"]
            self.shards.append(shard)

    def _sums(self) -> dict[str, Any]:
        return {"finished": True, "shards": len(self.shards), "samples": sum(each.samples for each in self.shards)}

    def state(self) -> dict[str, Any]:
        """The loader's behind the last shard. Raises: StateError if it is missing, or another one; OSError."""
        if not self.shards or self.finished:
            return self.first_state
        path = self._state_of(len(self.shards))
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        if hashlib.sha256(data).hexdigest() != self._digest:
            raise StateError(
                f"{path} is not the state behind the {len(self.shards)} shards that {self.path} lists, which the run "
                f"would go on from. Put it back, or let go of the manifest: {_ANEW}"
            )
        head, payload = data.split(b"\n", 1)
        return {**json.loads(head), "payload": payload}

    def _state_of(self, shards: int) -> str:
        return self._states[shards % len(self._states)]

    def begin(self, run: dict[str, Any], state: Mapping[str, Any]) -> None:
        """The first line: what the run is, and its state before the first sample. Of a run before it, which has no
        shard, nothing is left.
        """
        self._end = 0
        text = base64.b64encode(state["payload"]).decode("ascii")
        self._add({"torchpipe_shards": _VERSION, "run": run, "state": {**state, "payload": text}})
        sync_folder(os.path.dirname(self.path))
        self.run, self.first_state = run, dict(state)

    def add(self, shard: WrittenShard, state: Mapping[str, Any], learned: str) -> None:
        """A shard is whole, and on disk under its name."""
        head = {name: value for name, value in state.items() if name != "payload"}
        file = PartFile(self._state_of(len(self.shards) + 1))
        try:
            file.write(json.dumps(head).encode() + b"\n")
            file.write(state["payload"])
            file.finish()
            file.rename()
        except BaseException:
            file.discard()
            raise
        with telling(self.path):
            sync_folder(os.path.dirname(self.path))
        files = [vars(each) for each in shard.files]
        self._add({"samples": shard.samples, "files": files, "learned": learned, "state": file.sha256})
        self.shards.append(shard)

    def finish(self) -> None:
        """The last shard is written."""
        self._add(self._sums())
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


@dataclass(frozen=True, kw_only=True)
class ShardNames:
    """``folder``, and ``pattern``, a file's name in which ``{:05d}`` stands for the number, between ``head`` and
    ``tail``."""

    folder: str
    pattern: str
    head: str
    tail: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Raises: TypeError for what is no path; ValueError for a URL, and for a name without one field of a number."""
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(text, str):
            raise TypeError(f"path must be a path such as 'out-{{:05d}}.tar', got {path!r:.80}")
        if is_remote(text):
            raise ValueError(
                f"shards are written to a local folder, got {text!r:.200}: write them there, and copy each shard that "
                "the manifest lists"
            )
        folder, pattern = os.path.split(os.path.abspath(text))
        try:
            parts = list(string.Formatter().parse(pattern))
            fields = [(name, spec, how) for _, name, spec, how in parts if name is not None]
            right = len(fields) == 1 and fields[0][::2] == ("", None)
            right = right and re.fullmatch(r"|(0[1-9][0-9]*)?d", fields[0][1] or "") is not None
        except (ValueError, LookupError) as error:
            raise ValueError(
                f"path must have one field for the shard's number, such as '{{:05d}}', got {text!r}: {error}"
            ) from error
        if not right:
            raise ValueError(
                f"path must have one field for the shard's number, {{}}, {{:d}} or one as {{:05d}}, got {text!r:.200}"
            )
        field = next(index for index, (_, name, _, _) in enumerate(parts) if name is not None)
        head = "".join(literal for literal, *_ in parts[: field + 1])
        tail = "".join(literal for literal, *_ in parts[field + 1 :])
        return cls(folder=folder, pattern=pattern, head=head, tail=tail)

    @property
    def manifest(self) -> str:
        """The path of the manifest. No pattern for shards finds it."""
        return os.path.join(self.folder, f"{self.head}manifest{self.tail}.ndjson")

    @property
    def states(self) -> list[str]:
        """The paths of the two files in which the loader's states are kept while a run goes on."""
        return [os.path.join(self.folder, f".{self.head}manifest{self.tail}.state{number}") for number in range(2)]

    @property
    def lock(self) -> str:
        """The path of the file that a run locks while it writes."""
        return os.path.join(self.folder, f".{self.head}manifest{self.tail}.lock")

    def shard(self, number: int) -> str:
        """The name of shard ``number``, which begin at 0."""
        return self.pattern.format(number)

    def numbers_there(self, tails: Iterable[str]) -> dict[int, str]:
        """The numbers of the files in the folder that are named as a shard is, with one of ``tails``; and a name."""
        name = re.compile(re.escape(self.head) + rf"\s*(\d+)(?:{'|'.join(map(re.escape, tails))})")
        found = (name.fullmatch(entry) for entry in os.listdir(self.folder))
        return {int(match[1]): match[0] for match in found if match is not None}
