"""Files, wherever they are: list, open and write them.

- ``open_files``: open the files whose paths the input gives.
- ``list_files_by_fsspec``: what is in folders.
- ``open_files_by_fsspec``: open files anywhere.
- ``save_by_fsspec``: write files anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.formats.storage.block_cache import check_storage_options
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.remote import entries_of, open_url, write_url
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES
from torchpipe.formats.storage.writing import write_whole
from torchpipe.iter._shared.files import FileSaver, Opener
from torchpipe.iter._shared.paths import Lister, made_of_files, named_files
from torchpipe.node.content_digest import Unseen
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_length

__all__ = ["FSSpecFileLister", "FSSpecFileOpener", "FSSpecSaver", "FileOpener"]

_MODES = {"r": "r", "t": "rt", "rt": "rt", "b": "rb", "rb": "rb"}


@functional_datapipe("open_files")
class FileOpener(Opener):
    """Yields pairs (path, open stream) for the paths of the input.

    ``mode`` is ``"r"``, ``"t"`` or ``"rt"`` for text and ``"b"`` or ``"rb"`` for bytes. Paths with a scheme
    (``s3://...``) are opened by fsspec, as ``open_files_by_fsspec`` does. A stream is closed when the last reference to
    it goes, and at the latest by ``close()``, at the end of the pass. ``length`` is what ``len()`` says, -1 if unknown.

    State: none of its own. An open stream cannot be saved: put ``shuffle`` and ``batch`` before this node, or after
    one that reads.

    Raises: ValueError for other modes, or ``encoding`` with a binary one; while iterating, TypeError for
    other items and the OSError of a file that cannot be opened.
    """

    def __init__(
        self, datapipe: IterDataPipe[Any], mode: str = "r", encoding: str | None = None, length: int = -1
    ) -> None:
        super().__init__(datapipe)
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        if "b" in mode and encoding is not None:
            raise ValueError(f"encoding={encoding!r} needs a text mode, got mode={mode!r}")
        self.mode = mode
        self.encoding = encoding
        self.length = check_length(length)

    def made_of(self) -> Mapping[str, Any]:
        return made_of_files(self, named_files(self.source))

    def __len__(self) -> int:
        return len(self.source) if self.length < 0 else self.length

    def opened(self, path: str) -> tuple[str, Any]:
        mode = _MODES[self.mode]
        if is_remote(path):
            options = {} if self.encoding is None else {"encoding": self.encoding}
            return path, open_url(path, mode, open_options=options)
        return path, open(path, mode, encoding=self.encoding)


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


@functional_datapipe("open_files_by_fsspec")
class FSSpecFileOpener(Opener):
    """Takes URLs or paths, and yields pairs (URL, open stream).

    ``mode`` as for :func:`open`. ``kwargs_for_open`` are options of the file system's ``open`` (``encoding``,
    ``compression``, ``block_size`` ...), ``kwargs`` of the file system itself (fsspec's ``storage_options``). Opening
    and reading are tried again up to ``retries`` times after errors that pass; a stream goes on where it stood. It can
    seek, and is closed when the last reference to it goes, at the latest by ``close()``.

    State: none of its own. An open stream cannot be saved: put ``shuffle`` and ``batch`` before this node, or after one
    that reads.

    Raises: while iterating, TypeError for items that are no text, and what the file system raises.
    """

    fingerprint_ignores = ("retries", "kwargs_for_connection")  # how the files are reached

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        mode: str = "r",
        *,
        kwargs_for_open: Mapping[str, Any] | None = None,
        retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe)
        self.mode = mode
        self.kwargs_for_open = dict(kwargs_for_open or {})
        self.retries = check_count("retries", retries, at_least=0)
        self.kwargs_for_connection = check_storage_options(kwargs)

    def made_of(self) -> Mapping[str, Any]:
        return made_of_files(self, Unseen("what it opens may change unseen"))

    def opened(self, path: str) -> tuple[str, Any]:
        return path, open_url(
            path,
            self.mode,
            options=self.kwargs_for_connection,
            open_options=self.kwargs_for_open,
            retries=self.retries,
        )


@functional_datapipe("save_by_fsspec")
class FSSpecSaver(FileSaver):
    """Takes pairs (name, data), writes each to a file, and yields the URLs or paths of these.

    ``filepath_fn`` makes the URL of the name; without it they are the same. With ``root`` names are within it, and one
    that leads out of it is an error. ``mode`` as for :func:`open`, ``kwargs_for_open`` are options of the file system's
    ``open``, ``kwargs`` of the file system itself (fsspec's ``storage_options``). Writing is tried again up to
    ``retries`` times after errors that pass, where it begins a file anew. Local files are there whole or not at all,
    their folders are made.

    State: none of its own. After a restore, the file of the item that is made again is written again.

    Raises: while iterating, TypeError for other items and for data that do not fit the mode, ValueError for
    a name that leads out of ``root``, and what the file system raises.
    """

    fingerprint_ignores = ("retries", "kwargs_for_connection")  # how the files are reached

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        kwargs_for_open: Mapping[str, Any] | None = None,
        root: str | None = None,
        retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe, filepath_fn, root)
        self.mode = mode
        self.kwargs_for_open = dict(kwargs_for_open or {})
        self.retries = check_count("retries", retries, at_least=0)
        self.kwargs_for_connection = kwargs

    def write(self, path: str, data: Any) -> None:
        options, open_options = self.kwargs_for_connection, self.kwargs_for_open
        if not (is_remote(path) or options or open_options):
            write_whole(path, self.mode, [data])
        else:
            write_url(path, self.mode, data, options=options, open_options=open_options, retries=self.retries)
