"""``last_batch``, as in Gluon: what becomes of samples that do not fill a batch. Runs in the user's process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, TypeAlias

from torch.utils.data import IterableDataset, RandomSampler, Sampler, SequentialSampler

from torchpipe.node.validate import check_count

__all__ = ["LastBatch", "RolloverBatchSampler", "RolloverPass", "with_last_batch"]

LastBatch: TypeAlias = Literal["keep", "discard", "rollover"]


class RolloverBatchSampler(Sampler[list[Any]]):
    """Batches of ``batch_size`` indices; what is left of an epoch begins the first batch of the next.

    ``carried``: what this epoch begins with, and so what its length counts. It changes where a pass is settled: the
    loader does that when an epoch ends. An epoch that is given up before its last batch carries nothing.
    """

    def __init__(self, sampler: Any, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        self.carried: list[Any] = []

    def __iter__(self) -> RolloverPass:
        return RolloverPass(self)

    def __len__(self) -> int:
        return (len(self.carried) + len(self.sampler)) // self.batch_size


class RolloverPass(Iterator[list[Any]]):
    """One epoch's batches. Its rest is known once it has ended, or with its last batch, if the sampler has a length."""

    def __init__(self, owner: RolloverBatchSampler) -> None:
        self._owner = owner
        self._left = list(owner.carried)
        self._indices = iter(owner.sampler)
        self._count = 0  # of batches
        self._over = False
        try:
            self._batches: int | None = len(owner)
        except Exception:  # without a length, or one that fails in any way: it is only asked for what it may tell
            self._batches = None

    def __next__(self) -> list[Any]:
        batch = self._take()
        if len(batch) < self._owner.batch_size:
            self._left, self._over = batch, True
            raise StopIteration
        self._count += 1
        if self._count == self._batches:
            self._left = self._take()
            self._over = len(self._left) < self._owner.batch_size
        return batch

    def _take(self) -> list[Any]:
        """A batch, unless the end comes first. An error of the sampler loses what was taken."""
        left, self._left = self._left, []
        return [*left, *islice(self._indices, self._owner.batch_size - len(left))]

    def settle(self, delivered: int) -> None:
        """The next epoch begins with what this one left over, if all of its batches were ``delivered``."""
        self._owner.carried = list(self._left) if self._over and delivered == self._count else []


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
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ValueError("last_batch='rollover' is for map-style datasets: an iterable one has no sampler")
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if sampler is None:
        sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
    return False, RolloverBatchSampler(sampler, batch_size), 1
