"""``save_to_disk``: write files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torchpipe.formats.storage.writing import write_whole
from torchpipe.iter._shared.files import FileSaver
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["Saver"]

_MODES = ("w", "wt", "wb", "x", "xt", "xb")


@functional_datapipe("save_to_disk")
class Saver(FileSaver):
    """Takes pairs (name, data), writes each to a file, and yields the paths of these.

    ``filepath_fn`` makes the path of the name; without it they are the same. With ``root`` names are within it, and one
    that leads out of it is an error. ``mode`` is ``"w"`` or ``"t"`` for text, ``"wb"`` or ``"b"`` for bytes; with
    ``"x"`` files must not be there yet. Folders are made; a file is there whole or not at all.

    State: none of its own. After a restore, the file of the item that is made again is written again.

    Raises: ValueError for another mode; while iterating, TypeError for other items and for data that do not
    fit the mode, ValueError for a name that leads out of ``root``, and OSError.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(source_datapipe, filepath_fn, root)
        self.mode = mode if "w" in mode or "x" in mode else f"w{mode}"
        if self.mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")

    def write(self, path: str, data: Any) -> None:
        write_whole(path, self.mode, [data])
