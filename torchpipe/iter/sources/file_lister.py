"""``list_files``: the paths of files in folders. Runs wherever its shard runs."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from torch.utils.data import IterDataPipe as TorchIterDataPipe

from torchpipe.errors import StateError
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import check_length

__all__ = ["FileLister"]


@functional_datapipe("list_files")
class FileLister(IterDataPipe[str]):
    """Yields the paths of the files in ``root``: a folder, a list of folders, or a node that yields folders.

    ``masks`` is a shell pattern, or a list of them, for file names; with ``recursive`` the folders inside follow, each
    after the files of the one around it. Paths begin with ``root`` as given, or are absolute with ``abspath``. They are
    sorted within each folder; with ``non_deterministic`` they come as the file system has them, which may differ
    between machines. ``length`` is what ``len()`` says, -1 if unknown. A root may also be a file.

    State: the root being listed, the position in its list, the list's length and the last path.

    Raises: FileNotFoundError for a folder that is missing when the node is made or when it is listed; StateError if
    the folder has changed since a state was saved.
    """

    thins = True

    fingerprint_ignores = ("roots",)  # a run may move to where the data lies elsewhere

    def __init__(
        self,
        root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | IterDataPipe[Any] = ".",
        masks: str | Sequence[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> None:
        self.roots: Any  # a node, or a tuple of paths
        if isinstance(root, TorchIterDataPipe):
            self.roots = root
        else:
            self.roots = (_path(root),) if isinstance(root, str | os.PathLike) else tuple(map(_path, root))
            for path in self.roots:
                if not os.path.exists(path):
                    _missing(path)
        self.masks = masks if isinstance(masks, str) else tuple(masks)
        self.recursive = recursive
        self.abspath = abspath
        self.non_deterministic = non_deterministic
        self.length = check_length(length)

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError("list_files does not know how many files there are: pass length= if you do")
        return self.length

    def iterate(self, context: Context) -> NodeIterator[str]:
        return _ListIterator(self, context)

    def paths_in(self, root: str) -> Sequence[str]:
        """All paths of one root, in order."""
        if not os.path.exists(root):
            _missing(root)
        start = os.path.abspath(root) if self.abspath else root
        if not os.path.isdir(root):
            return [start] if self._matches(os.path.basename(root)) else []
        paths = []
        for folder, folders, files in os.walk(start, onerror=_raise):
            if not self.non_deterministic:
                files.sort()
                folders.sort()  # os.walk goes down in this order
            paths += [os.path.join(folder, name) for name in files if self._matches(name)]
            if not self.recursive:
                break
        return paths

    def _matches(self, name: str) -> bool:
        masks = (self.masks,) if isinstance(self.masks, str) else self.masks
        return not any(masks) or any(fnmatch.fnmatch(name, mask) for mask in masks)


def _path(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"list_files needs folders as paths, got {value!r} of type {type(value).__name__}")
    path = os.fspath(value)
    if "://" in path:
        raise ValueError(f"list_files reads local folders, got {path!r}: use list_files_by_fsspec")
    return path


def _missing(path: str) -> NoReturn:
    raise FileNotFoundError(f"list_files found no folder {path!r} (working directory {os.getcwd()!r})")


def _raise(error: OSError) -> NoReturn:
    raise error


class _ListIterator(NodeIterator[str]):
    node: FileLister

    def __init__(self, node: FileLister, context: Context) -> None:
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
            self.root, self.paths, self.position = root, None, 0
            yield from self._list()

    def _list(self) -> Iterator[str]:
        self.paths = self.node.paths_in(self._root_path())
        self._check_unchanged(self.paths)
        while self.position < len(self.paths):
            self.position += 1
            yield self.paths[self.position - 1]

    def _root_path(self) -> str:
        return self.given[self.root] if self.given is not None else _path(self.root)  # type: ignore[index]

    def _relative(self, paths: Sequence[str], position: int) -> str:
        """The path handed out at ``position``, from the root on: the data may lie elsewhere when a state is loaded."""
        return os.path.relpath(paths[position - 1], self._root_path()) if position else ""

    def _check_unchanged(self, paths: Sequence[str]) -> None:
        if not self.position:
            return
        count, last = self.expected
        found = self._relative(paths, self.position) if self.position <= len(paths) else "nothing"
        if (len(paths), found) != (count, last):
            raise StateError(
                f"{self._root_path()!r} has changed since the state was saved: it had {count} files with {last!r} at "
                f"position {self.position}, now it has {len(paths)} with {found!r} there. Restore the folder, or "
                "begin the epoch anew"
            )
