"""IoPath's three nodes by their names: fsspec takes IoPath's place, and takes none of what IoPath's users gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchpipe.iter.files import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["IoPathFileLister", "IoPathFileOpener", "IoPathSaver"]


@functional_datapipe("list_files_by_iopath")
class IoPathFileLister(FSSpecFileLister):
    """``list_files_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    def __init__(
        self,
        root: str | Sequence[str] | IterDataPipe[Any],
        masks: str | Sequence[str] = "",
        *,
        pathmgr: None = None,
        handler: None = None,
    ) -> None:
        _check_no_manager(pathmgr, handler)
        super().__init__(root, masks)


@functional_datapipe("open_files_by_iopath")
class IoPathFileOpener(FSSpecFileOpener):
    """``open_files_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    def __init__(
        self, source_datapipe: IterDataPipe[Any], mode: str = "r", pathmgr: None = None, handler: None = None
    ) -> None:
        _check_no_manager(pathmgr, handler)
        super().__init__(source_datapipe, mode)


@functional_datapipe("save_by_iopath")
class IoPathSaver(FSSpecSaver):
    """``save_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        pathmgr: None = None,
        handler: None = None,
    ) -> None:
        _check_no_manager(pathmgr, handler)
        super().__init__(source_datapipe, mode, filepath_fn)


def _check_no_manager(pathmgr: object, handler: object) -> None:
    """Raises: TypeError if either is given."""
    if pathmgr is not None or handler is not None:
        raise TypeError(
            f"pathmgr={pathmgr!r} and handler={handler!r} are IoPath's, in whose place fsspec is used: register a file "
            "system with fsspec.register_implementation(), or give its options to the ..._by_fsspec form"
        )
