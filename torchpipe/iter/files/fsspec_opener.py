"""``open_files_by_fsspec``: open files anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.options import check_storage_options
from torchpipe.formats.storage.remote import open_url
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES
from torchpipe.iter._shared.opening import Opener
from torchpipe.iter._shared.paths import made_of_files
from torchpipe.node.content_digest import Unseen
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["FSSpecFileOpener"]


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
