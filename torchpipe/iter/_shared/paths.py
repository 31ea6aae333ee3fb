"""Paths, and open files with theirs.

- ``PathList``: the paths that a reader is given without a node before it.

Pairs (path, open stream), as ``open_files`` yields them: checking what a node gets.

The base of nodes that list files: masks, and a position in lists that may change.
"""

from __future__ import annotations

import fnmatch
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import IOBase
from typing import Any, ClassVar, TypeAlias, TypeVar

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import StateError
from torchpipe.formats.storage.paths import check_listed, expand_paths, is_remote, listed, listed_files, size_of
from torchpipe.formats.storage.streams import StreamWrapper, wrap_stream
from torchpipe.indexed.keys import KeysIterator
from torchpipe.indexed.selecting import SelectingIterator
from torchpipe.node.content_digest import Files, Unseen
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.traits import node_name, stream_arguments, traits_of, walk
from torchpipe.node.validate import check_length
from torchpipe.state.shared_list import SharedList

__all__ = [
    "LIST_ENDING",
    "ListedKeys",
    "Lister",
    "PathList",
    "Paths",
    "as_paths",
    "coming",
    "local_files",
    "made_of_files",
    "named_files",
    "naming_path",
    "pair_of",
    "path_and_stream",
]

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
        first = self.first_from(self.position)
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
    if isinstance(source, SelectingIterator) and source.strider is not None:
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


def pair_of(form: str, item: Any, parts: str) -> tuple[Any, Any]:
    """``item`` as a pair. Raises: TypeError, with the functional form that got it and the ``parts`` that it needs."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise TypeError(f"{form} needs pairs {parts}, got {item!r:.200}")


def path_and_stream(form: str, item: Any, *, binary: bool = True) -> tuple[str, StreamWrapper]:
    """The path and the stream of a pair; other open files than StreamWrappers are wrapped in one.

    Raises: TypeError, with the functional form that got it, for another item.
    """
    kind, mode = ("binary stream", "mode='b'") if binary else ("stream", "")
    parts = f"(path, {kind}), as from open_files({mode})"
    name, stream = pair_of(form, item, parts)
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"{form} needs pairs {parts}, got {item!r:.200}")
    path = os.fspath(name)
    if not isinstance(stream, IOBase | StreamWrapper) and not hasattr(stream, "read"):
        raise TypeError(f"{form} needs a {kind} for {path!r}, got {stream!r:.200}")
    return path, stream if isinstance(stream, StreamWrapper) else wrap_stream(stream, name=path)


@contextmanager
def naming_path(path: str, doing: str = "reading") -> Iterator[None]:
    """Add to an exception which file it came from."""
    try:
        yield
    except Exception as error:
        note = f"while {doing} {path}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


LIST_ENDING = ".torchpipe-list"
"""The ending of files that say what a cache has made: no data."""


class Lister(IterDataPipe[str]):
    """Base of the nodes that list files. ``roots`` is a node that yields roots, or a tuple of them."""

    fingerprint_ignores: ClassVar[tuple[str, ...]] = ("roots",)  # a run may move to where the data lies elsewhere

    form: ClassVar[str]
    names_files = True
    local = False  # True if its files lie on a disk, so that a change of one is seen

    def __init__(self, roots: Any, masks: str | Sequence[str], length: int) -> None:
        self.roots: Any = roots
        given = tuple(masks) if isinstance(masks, Iterable) and not isinstance(masks, str) else (masks,)
        if not all(isinstance(mask, str) for mask in given):
            raise TypeError(f"masks must be a shell pattern such as '*.txt', or a list of them, got {masks!r}")
        self.masks = masks if isinstance(masks, str) else given
        self.length = check_length(length)

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError(f"{self.form} does not know how many files there are: pass length= if you do")
        return self.length

    def made_of(self) -> Mapping[str, Any]:
        if not isinstance(self.roots, tuple):
            files: Files | Unseen = Unseen(f"in folders that {node_name(self.roots)} names")
        elif not self.local:
            files = Unseen(f"{', '.join(self.roots)!r:.100} may change unseen")
        else:
            files = Files(tuple(path for root in self.roots for path in self.paths_in(root)))
        return {**made_of_files(self, files), "roots": self.roots}

    @abstractmethod
    def root_of(self, item: Any) -> str:
        """An item of the input as a root. Raises: TypeError, ValueError."""

    @abstractmethod
    def paths_in(self, root: str) -> Sequence[str]:
        """All paths of one root, in order."""

    @abstractmethod
    def relative(self, path: str, root: str) -> str:
        """The path from the root on: the data may lie elsewhere when a state is loaded."""

    def matches(self, name: str) -> bool:
        masks = (self.masks,) if isinstance(self.masks, str) else self.masks
        return not any(masks) or any(fnmatch.fnmatch(name, mask) for mask in masks)

    def iterate(self, context: Context) -> NodeIterator[str]:
        return _ListIterator(self, context)


class _ListIterator(NodeIterator[str]):
    node: Lister

    def __init__(self, node: Lister, context: Context) -> None:
        self.given = node.roots if isinstance(node.roots, tuple) else None
        super().__init__(node, context, *(() if self.given is not None else (node.roots,)))
        self.root: int | str | None = None  # what is being listed: its position among the given roots, or a path
        self.paths: Sequence[str] | None = None  # in it; None if not listed yet
        self.position = 0
        self.files: Any = None  # which they are

    def get_state(self) -> dict[str, Any]:
        return {"root": self.root, "position": self.position, "files": self.files}

    def set_state(self, state: dict[str, Any]) -> None:
        root = state["root"]
        numbers = range(len(self.given)) if self.given is not None else None
        if root is not None and (root not in numbers if numbers is not None else type(root) is not str):
            raise ValueError(f"no folder {root!r:.60}")
        self.root, self.position, self.files = root, stored_count(state, "position"), state["files"]

    def run(self) -> Iterator[str]:
        if self.root is not None:
            yield from self._list()
        first = self.root + 1 if isinstance(self.root, int) else 0
        for root in self.source.items() if self.given is None else range(first, len(self.given)):
            self.root = root if self.given is not None else self.node.root_of(root)
            self.paths, self.files, self.position = None, None, 0
            yield from self._list()

    def _list(self) -> Iterator[str]:
        self.paths = self.node.paths_in(self._root())
        found = self._listed(self.paths)
        if self.files is not None:
            check_listed(repr(self._root()), self.files, found, self.paths if self.node.local else ())
        self.files = found
        if self.position > len(self.paths):
            raise StateError(f"the state stands behind file {self.position} of {len(self.paths)}")
        while self.position < len(self.paths):
            self.position += 1
            yield self.paths[self.position - 1]

    def _root(self) -> str:
        return str(self.given[self.root] if self.given is not None else self.root)  # type: ignore[index]

    def _listed(self, paths: Sequence[str]) -> list[Any]:
        names = [self.node.relative(path, self._root()) for path in paths]
        return listed(names, [size_of(path) if self.node.local else None for path in paths])
