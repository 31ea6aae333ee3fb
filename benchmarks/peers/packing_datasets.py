"""Hugging Face ``datasets`` and a generator that packs, as it is written by hand, in two workers of StatefulDataLoader.

The dataset lies in memory as an Arrow table, is shuffled by index and gives numpy arrays. The generator keeps lists of
tokens, and its state is the number of the document and these lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.harness.job import Job
from benchmarks.workloads.p17_packing import LENGTH, document

__all__ = ["Loader"]

_MOST = 20_000  # documents in memory; a longer pass reads them again and again


@cache
def _table(count: int) -> Any:
    return Dataset.from_generator(_rows, gen_kwargs={"count": count}, keep_in_memory=True).with_format("numpy")


def _rows(count: int) -> Iterator[dict[str, Any]]:
    for index in range(count):
        yield {"tokens": document(index)}


class Packed(IterableDataset[dict[str, torch.Tensor]]):
    """Sequences of one length."""

    def __init__(self, count: int) -> None:
        self.rows = _table(min(count, _MOST)).shuffle(seed=0)
        self.endless = count > _MOST
        self.next_row = 0
        self.inputs: list[int] = []
        self.labels: list[int] = []
        self.positions: list[int] = []

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        info = get_worker_info()
        parts, part = (1, 0) if info is None else (info.num_workers, info.id)
        while True:
            for row in range(self.next_row * parts + part, len(self.rows), parts):
                self.next_row += 1
                tokens = self.rows[row]["tokens"].tolist()
                self.inputs.extend(tokens[:-1])
                self.labels.extend(tokens[1:])
                self.positions.extend(range(len(tokens) - 1))
                while len(self.inputs) >= LENGTH:
                    yield self._take()
            self.next_row = 0
            if not self.endless:
                return

    def _take(self) -> dict[str, torch.Tensor]:
        first = self.positions[0]
        restart = next((n for n, place in enumerate(self.positions[:LENGTH]) if place != first + n), LENGTH)
        places = [*range(restart), *self.positions[restart:LENGTH]]  # a text that was cut begins anew
        made = {"input_ids": self.inputs[:LENGTH], "labels": self.labels[:LENGTH], "positions": places}
        self.inputs, self.labels, self.positions = (
            buffer[LENGTH:] for buffer in (self.inputs, self.labels, self.positions)
        )
        return {name: torch.tensor(values) for name, values in made.items()}

    def state_dict(self) -> dict[str, Any]:
        # Copies: a worker's queue pickles the state in a thread of its own, while the next batch is made
        buffers = {name: list(getattr(self, name)) for name in ("inputs", "labels", "positions")}
        return {"next_row": self.next_row, **buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class Loader:
    def __init__(self, job: Job) -> None:
        self.loader: Any = StatefulDataLoader(
            Packed(job.count), batch_size=job.batch_size, drop_last=True, num_workers=job.workers
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        return
