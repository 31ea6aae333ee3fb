"""``list_files``: the paths of files in folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.iter._shared.paths import LIST_ENDING, Lister
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["FileLister"]


@functional_datapipe("list_files")
class FileLister(Lister):
    """Yields the paths of the files in ``root``: a folder, a list of folders, or a node that yields folders.

    ``masks`` is a shell pattern, or a list of them, for file names; with ``recursive`` the folders inside follow, each
    after the files of the one around it. Paths begin with ``root`` as given, or are absolute with ``abspath``. They are
    sorted within each folder; with ``non_deterministic`` they come as the file system has them, which may differ
    between machines. ``length`` is what ``len()`` says, -1 if unknown. A root may also be a file.

    Each shard lists for itself, in each epoch. Where files come while shards begin, their lists differ, and a sharding
    point behind it loses some files and doubles others: for a folder that grows use ``PathList``, which looks once, in
    the process that makes the pipeline. What ``on_disk_cache`` keeps beside its files is not listed.

    State: the root being listed, the position in its list, and which files there are: their number, names below the
    root, and sizes.

    Raises: FileNotFoundError for a folder that is missing when the node is made or when it is listed;
    StateMismatchError if other files are there than when the state was saved.
    """

    local = True

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
        roots: Any = root
        if not isinstance(root, TorchIterDataPipe):
            given: Any = root
            if isinstance(root, str | os.PathLike) or not isinstance(root, Iterable):
                given = (root,)
            roots = tuple(map(_path, given))
            for path in roots:
                if not os.path.exists(path):
                    _missing(path)
        super().__init__(roots, masks, length)
        self.recursive = recursive
        self.abspath = abspath
        self.non_deterministic = non_deterministic

    def root_of(self, item: Any) -> str:
        return _path(item)

    def relative(self, path: str, root: str) -> str:
        return os.path.relpath(path, root)

    def paths_in(self, root: str) -> Sequence[str]:
        """All paths of one root, in order."""
        if not os.path.exists(root):
            _missing(root)
        start = os.path.abspath(root) if self.abspath else root
        if not os.path.isdir(root):
            return [start] if self.matches(os.path.basename(root)) else []
        paths = []
        for folder, folders, files in os.walk(start, onerror=_raise):
            if not self.non_deterministic:
                files.sort()
                folders.sort()  # os.walk goes down in this order
            paths += [
                os.path.join(folder, name) for name in files if self.matches(name) and not name.endswith(LIST_ENDING)
            ]
            if not self.recursive:
                break
        return paths


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
