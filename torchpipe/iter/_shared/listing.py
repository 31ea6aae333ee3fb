"""What nodes share that list files: masks, and a place in lists that may change. Runs wherever its nodes run."""

from __future__ import annotations

import fnmatch
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.paths import made_of_files
from torchpipe.node.content_digest import Files, Unseen
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.traits import node_name
from torchpipe.node.validate import check_length

__all__ = ["Lister"]


class Lister(IterDataPipe[str]):
    """Base of such nodes. ``roots`` is a node that yields roots, or a tuple of them."""

    thins = True
    fingerprint_ignores: ClassVar[tuple[str, ...]] = ("roots",)  # a run may move to where the data lies elsewhere

    form = ""
    names_files = True
    local = False  # do its files lie on a disk, so that a change of one is seen?

    def __init__(self, roots: Any, masks: str | Sequence[str], length: int) -> None:
        self.roots: Any = roots
        self.masks = masks if isinstance(masks, str) else tuple(masks)
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
        self.root: int | str | None = None  # what is being listed: its place among the given roots, or a path
        self.paths: Sequence[str] | None = None  # in it; None if not listed yet
        self.position = 0
        self.expected: list[Any] = [0, ""]  # number of paths and the last one handed out, relative to the root

    def get_state(self) -> dict[str, Any]:
        if self.paths is not None:
            self.expected = [len(self.paths), self._relative(self.paths, self.position)]
        return {"root": self.root, "position": self.position, "expected": list(self.expected)}

    def set_state(self, state: dict[str, Any]) -> None:
        root, (count, last) = state["root"], state["expected"]
        known = range(len(self.given)) if self.given is not None else None
        if root is not None and (root not in known if known is not None else type(root) is not str):
            raise ValueError(f"no folder {root!r:.60}")
        if type(count) is not int or type(last) is not str:
            raise TypeError("no number of files and path")
        self.root, self.position, self.expected = root, stored_count(state, "position"), [count, last]

    def run(self) -> Iterator[str]:
        if self.root is not None:
            yield from self._list()
        first = self.root + 1 if isinstance(self.root, int) else 0
        for root in self.source.items() if self.given is None else range(first, len(self.given)):
            self.root = root if self.given is not None else self.node.root_of(root)
            self.paths, self.position = None, 0
            yield from self._list()

    def _list(self) -> Iterator[str]:
        self.paths = self.node.paths_in(self._root())
        self._check_unchanged(self.paths)
        while self.position < len(self.paths):
            self.position += 1
            yield self.paths[self.position - 1]

    def _root(self) -> str:
        return str(self.given[self.root] if self.given is not None else self.root)  # type: ignore[index]

    def _relative(self, paths: Sequence[str], position: int) -> str:
        return self.node.relative(paths[position - 1], self._root()) if position else ""

    def _check_unchanged(self, paths: Sequence[str]) -> None:
        if not self.position:
            return
        count, last = self.expected
        found = self._relative(paths, self.position) if self.position <= len(paths) else "nothing"
        if (len(paths), found) != (count, last):
            raise StateError(
                f"{self._root()!r} has changed since the state was saved: it had {count} files with {last!r} at "
                f"position {self.position}, now it has {len(paths)} with {found!r} there. Restore the folder, or "
                "begin the epoch anew"
            )
