"""Base of the nodes that read tables: the arguments that they have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.formats.tables.blocks import Blocks, BlocksPart, TableRecords
from torchpipe.formats.tables.columns import (
    check_columns,
    check_columns_of,
    check_fill_null,
    check_filter,
    check_format,
)
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.validate import check_count

__all__ = ["TableReader"]


class TableReader(FileReader[Any]):
    """Base of the readers of tables: rows as dicts, or batches of ``batch_size`` rows."""

    def __init__(
        self,
        paths: Paths,
        columns: Sequence[str] | None,
        keep: Any,
        batch_size: int | None,
        format: str | None,
        fill_null: Any,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(paths, storage_options)
        self.columns = check_columns(columns)
        self.keep = check_filter(keep)
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size, at_least=1)
        self.format = check_format(format, self.batch_size)
        self.fill_null = check_fill_null(fill_null, self.format)

    @abstractmethod
    def blocks(self, path: str, part: bool) -> Blocks:
        """The blocks of rows in a file, of which ``part`` says that some are read alone."""

    def records(self, item: Any) -> TableRecords:
        path, span = self.piece_of(item)
        blocks = self.blocks(path, span is not None)
        try:
            check_columns_of(path, blocks.columns, self.fill_null if isinstance(self.fill_null, Mapping) else ())
        except ValueError:
            blocks.close()
            raise
        part_of = blocks if span is None else BlocksPart(blocks, *span)
        return TableRecords(part_of, self.batch_size, self.format, self.fill_null)
