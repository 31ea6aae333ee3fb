"""``last_batch``, as in Gluon: what becomes of samples that do not fill a batch. Runs in the user's process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from torchpipe.node.validate import check_count

__all__ = ["LastBatch", "RolloverBatchSampler", "with_last_batch"]

LastBatch: TypeAlias = Literal["keep", "discard", "rollover"]


class RolloverBatchSampler(Sampler[list[Any]]):
    """Batches of ``batch_size`` indices; what is left of an epoch begins the first batch of the next.

    State: what is left over, and how many batches of the epoch have been handed out.
    """

    def __init__(self, sampler: Any, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        self._left: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._left = self._left, []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        self._left = batch

    def __len__(self) -> int:
        return (len(self._left) + len(self.sampler)) // self.batch_size

    @property
    def carried(self) -> list[Any]:
        """The indices left over from the epoch before."""
        return list(self._left)

    @carried.setter
    def carried(self, value: list[Any]) -> None:
        self._left = list(value)


def with_last_batch(
    last_batch: LastBatch | None,
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
    generator: Any,
) -> tuple[bool, Any, int | None]:
    """(drop_last, batch_sampler, batch_size) for torch's constructor. Raises: ValueError for what contradicts."""
    if last_batch is None:
        return drop_last, batch_sampler, batch_size
    if last_batch not in ("keep", "discard", "rollover"):
        raise ValueError(f"last_batch must be 'keep', 'discard' or 'rollover', got {last_batch!r}")
    if drop_last or batch_sampler is not None or batch_size is None:
        raise ValueError("last_batch option is mutually exclusive with drop_last, batch_sampler and batch_size=None")
    if last_batch != "rollover":
        return last_batch == "discard", None, batch_size
    if not hasattr(dataset, "__getitem__") or hasattr(dataset, "__next__"):
        raise ValueError("last_batch='rollover' is for map-style datasets: an iterable one has no sampler")
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if sampler is None:
        sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
    return False, RolloverBatchSampler(sampler, batch_size), 1
