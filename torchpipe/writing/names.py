"""The names of a run's shards: made of one pattern, and recognised in a folder."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from torchpipe.formats.storage.paths import is_remote

__all__ = ["ShardNames"]


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
