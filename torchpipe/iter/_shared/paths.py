"""``PathList``: the paths that a reader is given without a node before it. Runs wherever its shard runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch.utils.data import IterDataPipe as TorchIterDataPipe

from torchpipe.formats.places.paths import expand_paths
from torchpipe.indexed.keys import KeysIterator
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["PathList", "Paths", "as_paths"]

Paths: TypeAlias = "IterDataPipe[Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


class PathList(IterDataPipe[str]):
    """Yields paths: one or several, in which braces (``{000..099}``, ``{a,b}``) and globs may stand, also in URLs.

    They are looked up when the node is made; globs give sorted names. What exists under the very name is that file.

    State: one integer. Raises: FileNotFoundError for a local file that is missing and a glob that finds nothing;
    TypeError for what is no path; ValueError without any.
    """

    at_hand = True
    by_index = True
    fingerprint_ignores = ("paths",)  # a run may move to where the data lies elsewhere

    def __init__(self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        self.paths = expand_paths("PathList", paths)

    def __len__(self) -> int:
        return len(self.paths)

    def iterate(self, context: Context) -> NodeIterator[str]:
        return KeysIterator(self, context, self.paths, len(self.paths), lambda: range(len(self.paths)))


def as_paths(name: str, paths: Any, storage_options: Mapping[str, Any] | None = None) -> IterDataPipe[Any]:
    """``paths`` if it is a node, else a node of these paths; globs are looked up with ``storage_options``.

    Raises: as :class:`PathList`, for ``name``.
    """
    if isinstance(paths, TorchIterDataPipe):
        return paths  # type: ignore[return-value]
    return PathList(expand_paths(name, paths, storage_options))
