"""``save_by_fsspec``: write files anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.remote import write_url
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES
from torchpipe.formats.storage.writing import write_whole
from torchpipe.iter._shared.saving import FileSaver
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["FSSpecSaver"]


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
