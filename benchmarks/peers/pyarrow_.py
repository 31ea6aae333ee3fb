"""pyarrow's own reader, and a line that makes tensors of its columns, as users write it. For P18."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.peers import pyarrow_batches

__all__ = ["Loader"]


class Loader(pyarrow_batches.Loader):
    def __iter__(self) -> Iterator[Any]:
        names = self.job.columns
        for batch in pyarrow_batches.record_batches(self.job):
            yield {name: torch.from_numpy(batch.column(name).to_numpy()) for name in names}
