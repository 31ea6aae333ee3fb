"""``list_files_by_fsspec``: what is in folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.formats.storage.remote import entries_of
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES
from torchpipe.iter._shared.listing import Lister
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["FSSpecFileLister"]


@functional_datapipe("list_files_by_fsspec")
class FSSpecFileLister(Lister):
    """Yields the URLs of what is in ``root``: a folder's URL or path, a list of them, or a node that yields them.

    As ``ls`` has it: files and folders, sorted, one level. A root that is a file gives itself. ``masks`` is a shell
    pattern, or a list of them, for the last part of a name. ``kwargs`` are options of the file system (fsspec's
    ``storage_options``). Listing is tried again up to ``retries`` times after errors that pass.

    State: the root being listed, the position in its list, and which names there are.

    Raises: TypeError for roots that are no text; while iterating, FileNotFoundError for a folder that is missing, and
    StateMismatchError if other names are there than when the state was saved.
    """

    fingerprint_ignores = ("roots", "retries", "kwargs_for_connection")  # how it is reached

    def __init__(
        self,
        root: str | Sequence[str] | IterDataPipe[Any],
        masks: str | Sequence[str] = "",
        *,
        retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        roots: Any = root
        if not isinstance(root, TorchIterDataPipe):
            several = isinstance(root, Iterable) and not isinstance(root, str | os.PathLike)
            roots = tuple(map(self.root_of, root if several else (root,)))
        super().__init__(roots, masks, -1)
        self.retries = check_count("retries", retries, at_least=0)
        self.kwargs_for_connection = kwargs

    def root_of(self, item: Any) -> str:
        if not isinstance(item, str | os.PathLike):
            raise TypeError(f"{self.form} needs folders as URLs or paths, got {item!r} of type {type(item).__name__}")
        return os.fspath(item)

    def relative(self, path: str, root: str) -> str:
        return path.rstrip("/").rpartition("/")[2]

    def paths_in(self, root: str) -> Sequence[str]:
        found = entries_of(root, self.kwargs_for_connection, self.retries)
        return [root] if found is None else [path for path in found if self.matches(self.relative(path, root))]
