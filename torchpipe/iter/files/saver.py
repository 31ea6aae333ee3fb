"""``save_to_disk``: write files. Runs wherever its shard runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from torchpipe.iter._shared.pairs import naming_path
from torchpipe.iter._shared.saving import place_in, write_local
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_columns, check_input

__all__ = ["Saver"]

_MODES = ("w", "wt", "wb", "x", "xt", "xb")


@functional_datapipe("save_to_disk")
class Saver(IterDataPipe[str]):
    """Takes pairs (name, data), writes each to a file, and yields the paths of these.

    ``filepath_fn`` makes the path of the name; without it they are the same. With ``root`` names are within it, and one
    that leads out of it is an error. ``mode`` is ``"w"`` or ``"t"`` for text, ``"wb"`` or ``"b"`` for bytes; with
    ``"x"`` files must not be there yet. Folders are made; a file is there whole or not at all.

    State: none of its own. After a restore, the file of the item that is made again is written again.

    Raises: ValueError for another mode; while iterating, TypeError for items that are no pairs and for data that do not
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
        check_input("save_to_disk", source_datapipe)
        if filepath_fn is not None:
            check_columns("filepath_fn", filepath_fn, None)
        self.mode = mode if "w" in mode or "x" in mode else f"w{mode}"
        if self.mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        self.source_datapipe = source_datapipe
        self.filepath_fn = filepath_fn
        self.root = None if root is None else os.fspath(root)

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[str]:
        return _SaveIterator(self, context)


class _SaveIterator(NodeIterator[str]):
    node: Saver

    def __init__(self, node: Saver, context: Context) -> None:
        super().__init__(node, context, node.source_datapipe)
        self.filepath_fn = None if node.filepath_fn is None else self.adopt(node.filepath_fn)

    def leave_out(self) -> bool:
        return True

    def run(self) -> Iterator[str]:
        for item in self.source.items():
            if not (isinstance(item, tuple | list) and len(item) == 2):
                raise TypeError(f"save_to_disk needs pairs (name, data), got {item!r:.200}")
            name, data = item
            path = place_in(self.node.root, os.fspath(name if self.filepath_fn is None else self.filepath_fn(name)))
            with naming_path(path, "writing"):
                write_local(path, self.node.mode, [data])
            del item, data
            yield path
