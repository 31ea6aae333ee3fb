"""The base of nodes that list files: masks, and a position in lists that may change."""

from __future__ import annotations

import fnmatch
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torchpipe.errors import StateError
from torchpipe.formats.storage.listed import check_listed, listed, size_of
from torchpipe.iter._shared.paths import made_of_files
from torchpipe.node.content_digest import Files, Unseen
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.traits import node_name
from torchpipe.node.validate import check_length

__all__ = ["LIST_ENDING", "Lister"]

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
