"""Base of the nodes that write files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from torchpipe.formats.storage.writing import path_in
from torchpipe.iter._shared.bases import ItemIterator, OnePerItem
from torchpipe.iter._shared.pairs import naming_path, pair_of
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.validate import check_columns

__all__ = ["FileSaver"]


class _SaveIterator(ItemIterator[str]):
    node: FileSaver

    def __init__(self, node: FileSaver, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.path_of = os.fspath if node.filepath_fn is None else self.with_retries(node.filepath_fn)

    def run(self) -> Iterator[str]:
        for item in self.source.items():
            yield self._saved(item)

    def _saved(self, item: Any) -> str:
        name, data = pair_of(self.node.form, item, "(name, data)")
        path = path_in(self.node.root, os.fspath(self.path_of(name)))
        with naming_path(path, "writing"):
            self.node.write(path, data)
        return path


class FileSaver(OnePerItem[str]):
    """Writes the data of pairs (name, data), and yields the paths; names that lead out of ``root`` are refused."""

    iterator = _SaveIterator
    one_to_one = True

    def __init__(
        self,
        source: IterDataPipe[tuple[Any, Any]],
        filepath_fn: Callable[[Any], str] | None,
        root: str | os.PathLike[str] | None,
    ) -> None:
        super().__init__(source)
        if filepath_fn is not None:
            check_columns("filepath_fn", filepath_fn, None)
        self.filepath_fn = filepath_fn
        self.root = None if root is None else os.fspath(root)

    @abstractmethod
    def write(self, path: str, data: Any) -> None:
        """Write a file."""
