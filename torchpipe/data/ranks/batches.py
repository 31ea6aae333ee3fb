"""``DataLoader(distributed=...)``: the batches of one process, dealt to the ranks in turn. Runs in the user's process.

Ranks are those that divide data: all, or those of a mesh's dimension. Rank r of w has every w-th batch from r on. All
of them know the whole order: it is fixed by a seed that they have in common, and by the epoch. A position is therefore
one count for all of them, of the samples that all together have had; it says nothing of ranks, and any number of them,
with batches of any size, goes on from there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from torchpipe.compat.torch_private import gives_batches
from torchpipe.data.order.samplers import MOST_SEED
from torchpipe.data.order.sampling import Order, OrderState
from torchpipe.data.ranks.graph import group_of
from torchpipe.errors import RankError, StateError, StateMismatchError
from torchpipe.execution.ranks import Among, DataRanks, Talk, data_ranks
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.node.validate import check_choice
from torchpipe.randomness.seeds import derive_seed, fresh_seed, next_fresh_seed
from torchpipe.state.flat import damaged

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader
    from torchpipe.data.position import Position

__all__ = ["RankedSampler", "Uneven", "begin_ranked", "check_ranked", "order_at", "ranked_sampler"]

Uneven: TypeAlias = Literal["drop", "pad", "raise"]

_ORDER, _BATCHES = 0, 1  # what seeds are derived for


def ranked_sampler(
    dataset: Any,
    *,
    distributed: bool | Among,
    uneven: Uneven,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
    generator: torch.Generator | None,
    in_order: bool,
    worker_seeding: str,
    last_batch: str | None,
) -> RankedSampler | None:
    """The sampler of a loader with these arguments, if it divides by itself.

    Raises: ValueError for what contradicts, TypeError for ``distributed`` that names no ranks, RuntimeError without an
    initialized process group.
    """
    check_choice("uneven", uneven, ("drop", "pad", "raise"))
    if distributed is False:
        if uneven != "drop":
            raise ValueError(f"uneven={uneven!r} says how ranks end, and nothing divides here: give distributed=True")
        return None
    if isinstance(sampler, RankedSampler):  # of a loader that is made again from its attributes
        if distributed is not True and data_ranks(distributed, "distributed=") != sampler.ranks:
            raise ValueError(
                f"the sampler divides among {sampler.num_replicas} ranks, and distributed= names other ones: leave "
                "sampler out"
            )
        return sampler
    if sampler is not None or batch_sampler is not None:
        raise ValueError(
            "distributed=True divides the dataset among the ranks itself, in its order or shuffled: leave sampler and "
            "batch_sampler out, or give a sampler that divides (torch.utils.data.DistributedSampler) without "
            "distributed=True"
        )
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "distributed=True divides map-style datasets: an iterable one has no indices to deal. Use DataLoader2 with "
            "DistributedReadingService(total_shards=...), or let the dataset divide itself"
        )
    refused = {
        "in_order=False is refused: it is none": in_order is False,
        "worker_seeding='torch' is refused: its workers have states": worker_seeding == "torch",
        "last_batch='rollover' is refused: what is left over is a rank's own": last_batch == "rollover",
        "a dataset with a state_dict of its own is refused: that is a rank's own": is_stateful(dataset),
    }
    for text in (text for text, found in refused.items() if found):
        raise ValueError("with distributed=True the position is one count for all ranks, and so " + text)
    return RankedSampler(
        dataset,
        data_ranks(distributed, "distributed="),
        batch_size or 1,
        bool(shuffle),
        drop_last or last_batch == "discard",
        uneven,
        generator,
    )


@dataclass(frozen=True, kw_only=True)
class _Share:
    """Which samples the batches of a rank have, ``before`` samples into the order."""

    length: int
    size: int
    rank: int
    ranks: int
    drop_last: bool
    uneven: str
    before: int = 0

    @property
    def batches(self) -> int:
        """The batches that are left, of all ranks."""
        left = max(0, self.length - self.before)
        return left // self.size if self.drop_last else -(-left // self.size)

    @property
    def steps(self) -> int:
        """How many each rank takes."""
        return -(-self.batches // self.ranks) if self.uneven == "pad" else self.batches // self.ranks

    def start(self, step: int) -> int:
        """Where in the order this rank's batch begins.

        A pad is its batch of the step before, which may have been before a stop; in an epoch's first step, rank 0's.
        """
        number = step * self.ranks + self.rank
        if number >= self.batches:
            number -= self.ranks
        start = self.before + number * self.size
        return start if start >= 0 else self.before

    def after(self, steps: int) -> int:
        """How many samples of the order are behind all ranks then."""
        return min(self.length, self.before + min(self.batches, steps * self.ranks) * self.size)


class RankedSampler(DistributedSampler[Any]):
    """What a ``DataLoader(distributed=True)`` has as ``sampler``. ``set_epoch`` does what the loader's does.

    A ``DistributedSampler`` for those who look for one. Iterated by itself it gives this rank's indices of the epoch,
    once the ranks have agreed on a seed. ``len()``: the number of samples that this rank has in an epoch.
    """

    def __init__(
        self,
        dataset: Any,
        ranks: DataRanks,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        uneven: str,
        generator: Any,
    ) -> None:
        super().__init__(dataset, ranks.count, ranks.rank, shuffle, drop_last=drop_last)
        self.ranks = ranks
        self.batch_size = batch_size
        self.uneven = uneven
        self.run_seed: int | None = None  # agreed, or of a state
        self._drawn_from: torch.Generator | None = generator
        self._asked: Any = None

    def attach(self, loader: Any) -> None:
        """``set_epoch`` is ``loader``'s from now on."""
        self._asked = weakref.WeakMethod(loader._epoch_asked)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        asked = None if self._asked is None else self._asked()
        if asked is not None:
            asked(epoch)

    def foretell(self) -> int:
        """The seed of the run, as far as this rank knows. Nothing is drawn."""
        return self._settled(next_fresh_seed(self._drawn_from)) if self.run_seed is None else self.run_seed

    def draw(self) -> int:
        return self._settled(fresh_seed(self._drawn_from)) if self.run_seed is None else self.run_seed

    def _settled(self, drawn: int) -> int:
        return drawn if self._drawn_from is not None else self.ranks.shared_seed(drawn)

    def share(self, before: int = 0) -> _Share:
        return _Share(
            length=len(self.dataset),  # type: ignore[arg-type]
            size=self.batch_size,
            rank=self.rank,
            ranks=self.num_replicas,
            drop_last=self.drop_last,
            uneven=self.uneven,
            before=before,
        )

    def indices(self, seed: int, epoch: int) -> Any:
        """The order of all samples in ``epoch``."""
        length = len(self.dataset)  # type: ignore[arg-type]
        if not self.shuffle:
            return range(length)
        generator = torch.Generator().manual_seed(derive_seed(seed, epoch, _ORDER) >> 1)
        return torch.randperm(length, generator=generator, device="cpu")

    def __iter__(self) -> Iterator[int]:
        if self.run_seed is None and self.shuffle:
            raise RuntimeError("the ranks have not agreed on a seed yet: iterate the loader, which lets them")
        share, indices = self.share(), self.indices(self.run_seed or 0, self.epoch)
        for step in range(share.steps):
            start = share.start(step)
            yield from map(int, indices[start : start + self.batch_size])

    def __len__(self) -> int:
        share = self.share()
        starts = (share.start(step) for step in (share.steps - 1,) if step >= 0)
        return max(0, share.steps - 1) * self.batch_size + sum(
            min(self.batch_size, share.length - start) for start in starts
        )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_asked": None}


class _RankedOrder(Order):
    """This rank's batches of an epoch, from a position on; any position is found at once."""

    may_run_ahead = True

    def __init__(
        self, sampler: RankedSampler, seed: int, batched: bool, number: int, before: int, epoch: int | None = None
    ) -> None:
        super().__init__()
        self.number = self._first = number
        self.base_seed = derive_seed(seed, _BATCHES) >> 1
        self._sampler = sampler
        self._share = sampler.share(before)
        self._seed = seed
        self._batched = batched
        self._indices: Any = None  # once the first batch is asked for
        self._epoch = sampler.epoch if epoch is None else epoch

    def _next(self) -> Any:
        step = self.number - self._first
        if step >= self._share.steps:
            raise StopIteration
        if self._indices is None:
            self._indices = self._sampler.indices(self._seed, self._epoch)
        start = self._share.start(step)
        part = self._indices[start : start + self._share.size]
        indices = part.tolist() if isinstance(part, torch.Tensor) else list(part)
        return indices if self._batched else indices[0]

    def key(self, number: int) -> int:
        """The place of its first sample: batches of any size, before a stop and after it, have other ones."""
        return self._share.start(number - self._first)

    def state(self, number: int) -> tuple[OrderState, None]:
        return {
            "base_seed": self.base_seed,
            "seed": self._seed,
            "shuffle": self._sampler.shuffle,
            "samples": self._share.after(number - self._first),
        }, None


def check_ranked(sampler: RankedSampler, state: OrderState) -> None:
    """Raises: StateError for what is no state of such an order, StateMismatchError for one of another."""
    if "samples" not in state:
        raise StateMismatchError(
            "the state was saved without distributed=True: another order, which does not say what all ranks have had"
        )
    stored_count(state, "seed", MOST_SEED)
    stored_count(state, "samples", len(sampler.dataset))  # type: ignore[arg-type]
    if type(state.get("shuffle")) is not bool:
        raise damaged("it does not say whether its order is shuffled")
    if state["shuffle"] != sampler.shuffle:
        raise StateMismatchError(f"the state was saved with shuffle={state['shuffle']}, here it is {sampler.shuffle}")


def begin_ranked(loader: DataLoader[Any], epoch: int, saved: Position | None) -> Order:
    """The order of an epoch, once the ranks have agreed. Raises: RankError if they do not begin the same."""
    sampler: RankedSampler = loader.sampler  # type: ignore[assignment]
    order = None if saved is None else saved.order
    before = 0 if order is None else order["samples"]
    if order is not None:
        sampler.run_seed = order["seed"]
    seeded = sampler.run_seed is not None
    seed = sampler.draw()
    if sampler.num_replicas > 1:
        share = sampler.share(before)
        same = {
            "the dataset's length": share.length,
            "batch_size": share.size,
            "drop_last": share.drop_last,
            "shuffle": sampler.shuffle,
            "uneven": share.uneven,
            "epoch": epoch,
            "samples": before,
        }
        answers = group_of(loader, sampler.ranks).objects(Talk.BEGIN, (seed, seeded, same))
        for name in same:
            _check_equal(name, {rank: theirs[name] for rank, (_, _, theirs) in enumerate(answers)})
        _check_equal("seed", {rank: theirs for rank, (theirs, fixed, _) in enumerate(answers) if fixed or not rank})
        seed = answers[0][0]
    sampler.run_seed, sampler.epoch = seed, epoch
    left = sampler.share(before)
    if not before and not left.steps:
        raise RankError(
            f"{left.batches} batches of {left.length} samples for {left.ranks} ranks: none would have one in this "
            f'epoch. Make batch_size smaller than {left.size}, choose uneven="pad", or run fewer ranks'
        )
    if left.uneven == "raise" and left.batches % left.ranks:
        raise RankError(
            f'{left.batches} batches do not divide among {left.ranks} ranks. Choose uneven="drop" to leave out the '
            'last ones, "pad" to let ranks repeat one, or another batch_size'
        )
    return _RankedOrder(sampler, seed, gives_batches(loader), 0 if saved is None else saved.delivered, before)


def order_at(loader: DataLoader[Any], position: Position, epoch: int, first: int) -> Order:
    """The order of ``epoch`` before batch ``first`` or an earlier one; other ranks are not asked.

    Raises: StateError for batches before a position that other ranks, or batches of another size, have led to.
    """
    sampler: RankedSampler = loader.sampler  # type: ignore[assignment]
    saved = position.order if position.epoch == epoch else None
    seed = sampler.foretell() if position.order is None else position.order["seed"]
    number, before = (0, 0) if saved is None else (position.delivered, saved["samples"])
    if first < number:
        if sampler.share().after(number) != before:
            raise StateError(
                f"the {number} batches before this position had {before} samples, and batches of {sampler.batch_size} "
                f"on {sampler.num_replicas} ranks have others: ask with batch_size and ranks as they were then"
            )
        number = before = 0
    return _RankedOrder(sampler, seed, gives_batches(loader), number, before, epoch)


def _check_equal(name: str, values: dict[int, Any]) -> None:
    if len(set(values.values())) > 1:
        shown = ", ".join(f"rank {rank}: {value}" for rank, value in values.items())
        raise RankError(
            f"the ranks do not begin the same epoch: {name} differs ({shown}). Make the same loader on every rank, and "
            "load the same state, or those that were saved at the same step"
        )
