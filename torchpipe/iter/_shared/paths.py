"""``PathList``: the paths that a reader is given without a node before it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.formats.storage.listed import check_listed, listed_files
from torchpipe.formats.storage.paths import expand_paths, is_remote
from torchpipe.indexed.keys import KeysIterator
from torchpipe.indexed.selecting import SelectingIterator
from torchpipe.node.content_digest import Files, Unseen
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name, stream_arguments, traits_of, walk
from torchpipe.state.shared_list import SharedList

__all__ = ["ListedKeys", "PathList", "Paths", "as_paths", "coming", "local_files", "made_of_files", "named_files"]

T = TypeVar("T")

Paths: TypeAlias = "IterDataPipe[Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


class PathList(IterDataPipe[str]):
    """Yields paths: one or several, in which braces (``{000..099}``, ``{a,b}``) and globs may stand, also in URLs.

    They are looked up when the node is made; globs give sorted names. What exists under the very name is that file.

    State: one integer, and which files there were: their number, names below the folder that they have in common, and
    sizes of local ones. A resume with any other is refused. Raises: FileNotFoundError for a local file that is missing
    and a glob that finds nothing; TypeError for other paths; ValueError without any; StateMismatchError.
    """

    by_index = True
    names_files = True
    fingerprint_ignores = ("paths", "listed")  # a run may move to where the data lies elsewhere

    def __init__(self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        self.paths = expand_paths("PathList", paths)
        self.listed = listed_files(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def made_of(self) -> Mapping[str, Any]:
        return {"paths": self.paths, "files": local_files(self.paths)}

    def iterate(self, context: Context) -> NodeIterator[str]:
        return ListedKeys(self, context, self.paths, len(self.paths), lambda: range(len(self.paths)))


class ListedKeys(KeysIterator[T]):
    """A pass over what a node has found in files, which it has in ``paths`` and, as ``listed`` tells them, ``listed``.

    State: with these. A resume with any other is refused.
    """

    def coming(self, count: int) -> list[T]:
        """The next items, up to ``count`` of them: they are known, and nothing is pulled."""
        first = self.position + (self._part - self.position) % self._parts
        places = range(first, self._length, self._parts)[:count]
        return [] if self._held is None else [self._data[self._held[place]] for place in places]

    def get_state(self) -> dict[str, Any]:
        node: Any = self.node
        return {**super().get_state(), "files": list(node.listed)}

    def set_state(self, state: dict[str, Any]) -> None:
        node: Any = self.node
        check_listed(f"what {type(node).__name__} found", state["files"], node.listed, node.paths)
        super().set_state(state)


def coming(source: NodeIterator[Any], count: int) -> list[Any]:
    """The next items of ``source``, up to ``count`` of them, if they are known without pulling anything; else none."""
    if isinstance(source, SelectingIterator) and source.strides:
        source = source.source
    return source.coming(count) if isinstance(source, ListedKeys) else []


def as_paths(name: str, paths: Any, storage_options: Mapping[str, Any] | None = None) -> IterDataPipe[Any]:
    """``paths`` if it is a node, else a node of these paths; globs are looked up with ``storage_options``.

    Raises: as :class:`PathList`, for ``name``.
    """
    if isinstance(paths, TorchIterDataPipe):
        return paths  # type: ignore[return-value]
    return PathList(expand_paths(name, paths, storage_options))


def made_of_files(node: Any, files: Files | Unseen) -> Mapping[str, Any]:
    """The things that decide the items of ``node``: ``files``, and its arguments but for how these are reached."""
    return {**stream_arguments(node), "files": files}


def named_files(datapipe: Any) -> Files | Unseen:
    """The files that ``datapipe`` names, but for those that ``made_of()`` of the nodes before has already.

    Known before it is iterated are those in lists, and of nodes whose class has ``names_files``, where all others only
    hand on what they read.
    """
    named: list[str] = []
    for node in walk(datapipe):
        data: Any = vars(node).get("iterable")
        if type(data) in (list, tuple, SharedList):
            named += [os.fsdecode(item) for item in data if isinstance(item, str | os.PathLike)]
        elif not (traits_of(node).selects or getattr(node, "names_files", False)):
            return Unseen(f"named by {node_name(node)}, and known only once that has named them")
    return local_files(named)


def local_files(paths: Sequence[str]) -> Files | Unseen:
    """``paths``, if all are local, for a node's ``made_of()``."""
    remote = next(filter(is_remote, paths), None)
    return Files(tuple(paths)) if remote is None else Unseen(f"{remote!r:.100} may change unseen")
