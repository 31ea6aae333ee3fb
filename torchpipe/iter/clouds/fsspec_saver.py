"""``save_by_fsspec``, and its form for IoPath's users: write files anywhere. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchpipe.formats.places.paths import is_remote
from torchpipe.formats.places.remote import write_url
from torchpipe.formats.places.retrying import DEFAULT_RETRIES
from torchpipe.iter._shared.iopath import check_no_manager
from torchpipe.iter._shared.pairs import naming_path
from torchpipe.iter._shared.saving import place_in, write_local
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_columns, check_count, check_input

__all__ = ["FSSpecSaver", "IoPathSaver"]


@functional_datapipe("save_by_fsspec")
class FSSpecSaver(IterDataPipe[str]):
    """Takes pairs (name, data), writes each to a file, and yields the URLs or paths of these.

    ``filepath_fn`` makes the URL of the name; without it they are the same. With ``root`` names are within it, and one
    that leads out of it is an error. ``mode`` as for :func:`open`, ``kwargs_for_open`` are options of the file system's
    ``open``, ``kwargs`` of the file system itself (fsspec's ``storage_options``). Writing is tried again up to
    ``retries`` times after errors that pass, where it begins a file anew. Local files are there whole or not at all,
    their folders are made.

    State: none of its own. After a restore, the file of the item that is made again is written again.

    Raises: while iterating, TypeError for items that are no pairs and for data that do not fit the mode, ValueError for
    a name that leads out of ``root``, and what the file system raises.
    """

    form = "save_by_fsspec"
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
        check_input(self.form, source_datapipe)
        if filepath_fn is not None:
            check_columns("filepath_fn", filepath_fn, None)
        self.source_datapipe = source_datapipe
        self.mode = mode
        self.filepath_fn = filepath_fn
        self.kwargs_for_open = dict(kwargs_for_open or {})
        self.root = root
        self.retries = check_count("retries", retries, at_least=0)
        self.kwargs_for_connection = kwargs

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[str]:
        return _SaveIterator(self, context)


@functional_datapipe("save_by_iopath")
class IoPathSaver(FSSpecSaver):
    """``save_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    form = "save_by_iopath"

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        pathmgr: None = None,
        handler: None = None,
    ) -> None:
        check_no_manager(pathmgr, handler)
        super().__init__(source_datapipe, mode, filepath_fn)


class _SaveIterator(NodeIterator[str]):
    node: FSSpecSaver

    def __init__(self, node: FSSpecSaver, context: Context) -> None:
        super().__init__(node, context, node.source_datapipe)
        self.filepath_fn = None if node.filepath_fn is None else self.adopt(node.filepath_fn)

    def leave_out(self) -> bool:
        return True

    def run(self) -> Iterator[str]:
        node = self.node
        for item in self.source.items():
            if not (isinstance(item, tuple | list) and len(item) == 2):
                raise TypeError(f"{node.form} needs pairs (name, data), got {item!r:.200}")
            name, data = item
            url = place_in(node.root, str(name) if self.filepath_fn is None else self.filepath_fn(name))
            with naming_path(url, "writing"):
                if not is_remote(url) and not node.kwargs_for_open and not node.kwargs_for_connection:
                    write_local(url, node.mode, [data])
                else:
                    write_url(
                        url,
                        node.mode,
                        data,
                        options=node.kwargs_for_connection,
                        open_options=node.kwargs_for_open,
                        retries=node.retries,
                    )
            del item, data
            yield url
