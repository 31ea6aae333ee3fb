"""``open_files_by_fsspec``, and its form for IoPath's users: open files anywhere. Runs wherever its shard runs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from torchpipe.formats.places.remote import open_url
from torchpipe.formats.places.retrying import DEFAULT_RETRIES
from torchpipe.formats.places.streams import StreamWrapper, close_stream, wrap_stream
from torchpipe.iter._shared.iopath import check_no_manager
from torchpipe.iter._shared.paths import made_of_files
from torchpipe.node.content_digest import Unseen
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count, check_input

__all__ = ["FSSpecFileOpener", "IoPathFileOpener"]


@functional_datapipe("open_files_by_fsspec")
class FSSpecFileOpener(IterDataPipe[tuple[str, StreamWrapper]]):
    """Takes URLs or paths, and yields pairs (URL, open stream).

    ``mode`` as for :func:`open`. ``kwargs_for_open`` are options of the file system's ``open`` (``encoding``,
    ``compression``, ``block_size`` ...), ``kwargs`` of the file system itself (fsspec's ``storage_options``). Opening
    and reading are tried again up to ``retries`` times after errors that pass; a stream goes on where it stood. It can
    seek, and is closed when the last reference to it goes, at the latest by ``close()``.

    State: none of its own. An open stream cannot be saved: put ``shuffle`` and ``batch`` before this node, or after one
    that reads.

    Raises: while iterating, TypeError for items that are no text, and what the file system raises.
    """

    form = "open_files_by_fsspec"
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
        check_input(self.form, source_datapipe)
        self.source_datapipe = source_datapipe
        self.mode = mode
        self.kwargs_for_open = dict(kwargs_for_open or {})
        self.retries = check_count("retries", retries, at_least=0)
        self.kwargs_for_connection = kwargs

    def made_of(self) -> Mapping[str, Any]:
        return made_of_files(self, Unseen("what it opens may change unseen"))

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[tuple[str, StreamWrapper]]:
        return _OpenIterator(self, context, self.source_datapipe)


@functional_datapipe("open_files_by_iopath")
class IoPathFileOpener(FSSpecFileOpener):
    """``open_files_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    form = "open_files_by_iopath"

    def __init__(
        self, source_datapipe: IterDataPipe[Any], mode: str = "r", pathmgr: None = None, handler: None = None
    ) -> None:
        check_no_manager(pathmgr, handler)
        super().__init__(source_datapipe, mode)


class _OpenIterator(NodeIterator[tuple[str, StreamWrapper]]):
    node: FSSpecFileOpener

    def __init__(self, node: FSSpecFileOpener, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.opened: weakref.WeakSet[StreamWrapper] = weakref.WeakSet()

    def leave_out(self) -> bool:
        return True

    def run(self) -> Iterator[tuple[str, StreamWrapper]]:
        for url in self.source.items():
            if not isinstance(url, str | os.PathLike):
                raise TypeError(f"{self.node.form} needs URLs or paths, got {url!r} of type {type(url).__name__}")
            yield self._open(os.fspath(url))

    def _open(self, url: str) -> tuple[str, StreamWrapper]:  # no local of run() may keep the stream alive
        node = self.node
        file = open_url(
            url,
            node.mode,
            options=node.kwargs_for_connection,
            open_options=node.kwargs_for_open,
            retries=node.retries,
        )
        stream = wrap_stream(file, name=url)
        self.opened.add(stream)
        return url, stream

    def close(self) -> None:
        try:
            super().close()
        finally:
            for stream in list(self.opened):
                close_stream(stream)
