"""``DataLoader(distributed=...)``: the batches of one process, dealt to the ranks in turn. Runs in the user's process.

Ranks are those that divide data: all, or those of a mesh's dimension. Rank r of w has every w-th batch from r on. All
of them know the whole order: it is fixed by a seed that they have in common, and by the epoch. A position is therefore
one count for all of them, of the samples that all together have had; it says nothing of ranks, and any number of them,
with batches of any size, goes on from there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from torchpipe.compat.torch_private import gives_batches
from torchpipe.data.order.sampling import Order, OrderState
from torchpipe.data.ranks.balance import Balance
from torchpipe.data.ranks.graph import group_of
from torchpipe.data.ranks.windows import (
    ResumePoint,
    Share,
    Windows,
    check_planned,
    check_run,
    kept_of_run,
    planned_state,
    resumed_at,
)
from torchpipe.errors import RankError, StateError, StateMismatchError
from torchpipe.execution.ranks import Among, DataRanks, Talk, data_ranks
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.node.validate import check_choice
from torchpipe.randomness.seeds import derive_seed, fresh_seed, next_fresh_seed
from torchpipe.state.flat import damaged

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader
    from torchpipe.data.position import Position

__all__ = ["RankedSampler", "Ranks", "begin_ranked", "check_ranked", "order_at", "ranked_sampler"]

_ORDER, _BATCHES = 0, 1  # what seeds are derived for


@dataclass(frozen=True)
class Ranks:
    """``DataLoader(..., distributed=Ranks(...))``: the ranks that divide the batches, and how they end together.

    Args:
        group: True: all ranks of the initialized process group; ``mesh["dp"]`` (a ``DeviceMesh`` of one dimension) or a
            ``ProcessGroup``: those.
        uneven: when the batches do not fill the last step. ``"drop"``: it is left out. ``"pad"``: ranks without one
            have their batch of the step before again. ``"raise"``: RankError when the epoch begins.
        balance: a :class:`Balance`: by the costs of samples, which are known before reading, make the ranks of each
            step equally busy.

    Raises: TypeError or ValueError, naming the argument.
    """

    group: bool | Among = True
    _: KW_ONLY
    uneven: Literal["drop", "pad", "raise"] = "drop"
    balance: Balance | None = None

    def __post_init__(self) -> None:
        check_choice("uneven", self.uneven, ("drop", "pad", "raise"))
        if self.balance is not None and not isinstance(self.balance, Balance):
            raise TypeError(
                f"balance={self.balance!r:.80} must be a torchpipe.data.Balance: Ranks(balance=Balance(lengths))"
            )


def ranked_sampler(
    dataset: Any,
    *,
    distributed: bool | Among | Ranks,
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
    if distributed is False:
        return None
    ranks = distributed if isinstance(distributed, Ranks) else Ranks(distributed)
    if isinstance(sampler, RankedSampler):  # of a loader that is made again from its attributes
        if ranks.group is not True and data_ranks(ranks.group, "distributed=") != sampler.ranks:
            raise ValueError(
                f"the sampler divides among {sampler.num_replicas} ranks, and distributed= names other ones: leave "
                "sampler out"
            )
        if ranks.balance not in (None, sampler.balance):
            raise ValueError("the sampler balances, or does not, and balance= says otherwise: leave sampler out")
        if isinstance(distributed, Ranks) and ranks.uneven != sampler.uneven:
            raise ValueError(f"the sampler has uneven={sampler.uneven!r}, and Ranks says otherwise: leave sampler out")
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
        data_ranks(ranks.group, "distributed="),
        batch_size or 1,
        bool(shuffle),
        drop_last or last_batch == "discard",
        ranks.uneven,
        generator,
        ranks.balance,
    )


class RankedSampler(DistributedSampler[Any]):
    """The ``sampler`` of a ``DataLoader(distributed=True)``. ``set_epoch`` does the same as the loader's.

    A ``DistributedSampler`` for those who look for one. Iterated by itself it gives this rank's indices of the epoch,
    once the ranks have agreed on a seed. ``len()``: the number of samples that this rank has in an epoch.
    """

    kept_by_order = ("balance", "costs", "row")  # in the state of an order, or of no effect on it

    def __init__(
        self,
        dataset: Any,
        ranks: DataRanks,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        uneven: Literal["drop", "pad", "raise"],
        generator: Any,
        balance: Balance | None,
    ) -> None:
        super().__init__(dataset, ranks.count, ranks.rank, shuffle, drop_last=drop_last)
        self.ranks = ranks
        self.batch_size = batch_size
        self.uneven = uneven
        self.balance = balance
        self.costs = None if balance is None else balance.costs(len(dataset))
        if balance is not None and self.costs is not None:
            self.costs.check_window(min(len(self.costs.table), balance.window * batch_size * ranks.count))
        self.run_seed: int | None = None  # agreed, or of a state
        self.forget_row()
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

    def forget_row(self) -> None:
        """Set ``row`` as a run begins: windows are planned for ranks that have ``row`` samples in a step."""
        self.row = (None if self.balance is None else self.balance.row) or self.batch_size

    def kept(self) -> dict[str, Any]:
        """The values that the next epoch takes over."""
        return kept_of_run(self, self.foretell())

    def check_kept(self, kept: dict[str, Any]) -> None:
        """Raises: StateError, StateMismatchError where :meth:`take_over` may not have it."""
        check_run(self, kept)

    def take_over(self, kept: dict[str, Any]) -> None:
        """From a state, which has been checked: within an epoch or between two."""
        self.run_seed = kept["seed"]
        self.forget_row()
        if "balance" in kept:
            self.row = kept["balance"]["row"]

    def foretell(self) -> int:
        """The seed of the run, as far as this rank knows. Nothing is drawn."""
        return self._settled(next_fresh_seed(self._drawn_from)) if self.run_seed is None else self.run_seed

    def draw(self) -> int:
        return self._settled(fresh_seed(self._drawn_from)) if self.run_seed is None else self.run_seed

    def _settled(self, drawn: int) -> int:
        return drawn if self._drawn_from is not None else self.ranks.shared_seed(drawn)

    def share(self, before: int = 0) -> Share:
        length = len(self.dataset)  # type: ignore[arg-type]
        planned = self.balance is not None and not self.balance.shadow
        if planned and self.costs is not None and len(self.costs.table) != length:
            raise RuntimeError(
                f"the dataset has {length} samples, and had {len(self.costs.table)} when the loader was made, with "
                "their costs: make a new loader, with costs of all of them"
            )
        return Share(
            length=length,
            size=self.batch_size,
            rank=self.rank,
            ranks=self.num_replicas,
            drop_last=self.drop_last,
            uneven=self.uneven,
            before=before,
        )

    def arranged(self, share: Share, indices: Callable[[], Any]) -> Share | Windows:
        """The positions of this rank's batches in the order. ``indices`` gives the order, if it is asked."""
        if self.balance is None or self.costs is None or len(self.costs.table) != share.length:
            return share
        return Windows(share, self.costs, self.balance.window, self.row, indices, shadow=self.balance.shadow)

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
        arranged = self.arranged(share, lambda: indices)
        for step in range(share.steps):
            yield from (int(indices[place]) for place in arranged.positions(step))

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
        self,
        sampler: RankedSampler,
        seed: int,
        batched: bool,
        number: int,
        at: ResumePoint,
        epoch: int | None = None,
    ) -> None:
        super().__init__()
        before, done = at
        self.number, self._first = number, number - done
        self.base_seed = derive_seed(seed, _BATCHES) >> 1
        self._sampler = sampler
        self._share = sampler.share(before)
        self.arranged = sampler.arranged(self._share, self._all)
        self._seed = seed
        self._batched = batched
        self._indices: Any = None  # once the first batch is asked for
        self._epoch = sampler.epoch if epoch is None else epoch

    def go_to(self, number: int) -> None:
        """To batch ``number``, or to the end. Not back."""
        self.number = max(self.number, min(number, self._first + self._share.steps))

    def _all(self) -> Any:
        if self._indices is None:
            self._indices = self._sampler.indices(self._seed, self._epoch)
        return self._indices

    def _next(self) -> Any:
        step = self.number - self._first
        if step >= self._share.steps:
            raise StopIteration
        positions, order = self.arranged.positions(step), self._all()
        indices = (
            order[positions].tolist() if isinstance(order, torch.Tensor) else [order[place] for place in positions]
        )
        return indices if self._batched else indices[0]

    def key(self, number: int) -> int:
        """The place of its first sample, in turn: batches of any size, before a stop and after it, have other ones."""
        return self._share.start(number - self._first)

    def state(self, number: int) -> tuple[OrderState, None]:
        steps = number - self._first
        return {
            "base_seed": self.base_seed,
            "shuffle": self._sampler.shuffle,
            "samples": self._share.after(steps),
            **planned_state(self._sampler, self._seed, self._share, self.arranged, steps),
        }, None


def check_ranked(sampler: RankedSampler, state: OrderState) -> None:
    """Raises: StateError for what is no state of such an order, StateMismatchError for one of another."""
    if "samples" not in state:
        raise StateMismatchError(
            "the state was saved without distributed=True: another order, which does not say what all ranks have had"
        )
    stored_count(state, "samples", len(sampler.dataset))  # type: ignore[arg-type]
    if type(state.get("shuffle")) is not bool:
        raise damaged("it does not say whether its order is shuffled")
    if state["shuffle"] != sampler.shuffle:
        raise StateMismatchError(f"the state was saved with shuffle={state['shuffle']}, here it is {sampler.shuffle}")
    check_planned(sampler, state)


def begin_ranked(loader: DataLoader[Any], epoch: int, saved: Position | None) -> Order:
    """The order of an epoch, once the ranks have agreed. Raises: RankError if they do not begin the same."""
    sampler: RankedSampler = loader.sampler  # type: ignore[assignment]
    order = None if saved is None else saved.order
    before = 0 if order is None else order["samples"]
    at = resumed_at(sampler, order)
    seeded = sampler.run_seed is not None
    seed = sampler.draw()
    if sampler.costs is not None:
        sampler.ranks.check_same("the costs of balance=", sampler.costs.digest)
    if sampler.num_replicas > 1:
        share = sampler.share(before)
        same = {
            "the dataset's length": share.length,
            "what the dataset holds": loader._data_of(share.length).digest,
            "batch_size": share.size,
            "drop_last": share.drop_last,
            "shuffle": sampler.shuffle,
            "uneven": share.uneven,
            "epoch": epoch,
            "samples": before,
            "balance": None
            if sampler.costs is None
            else f"{sampler.balance}, row {sampler.row}, costs {sampler.costs.digest}",
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
    begun = _RankedOrder(sampler, seed, gives_batches(loader), 0 if saved is None else saved.delivered, at)
    loader._windows = begun.arranged if isinstance(begun.arranged, Windows) else None
    return begun


def order_at(loader: DataLoader[Any], position: Position, epoch: int, first: int) -> Order:
    """The order of ``epoch`` before batch ``first`` or an earlier one; other ranks are not asked.

    Raises: StateError for batches before a position that other ranks, or batches of another size, have led to.
    """
    sampler: RankedSampler = loader.sampler  # type: ignore[assignment]
    saved = position.order if position.epoch == epoch else None
    number, before = (0, 0) if saved is None else (position.delivered, saved["samples"])
    at = resumed_at(sampler, saved)
    if first < number:
        if sampler.share().after(number) != before:
            raise StateError(
                f"the {number} batches before this position had {before} samples, and batches of {sampler.batch_size} "
                f"on {sampler.num_replicas} ranks have others: ask with batch_size and ranks as they were then"
            )
        number, at = 0, ResumePoint(0, 0)
    order = _RankedOrder(sampler, sampler.foretell(), gives_batches(loader), number, at, epoch)
    order.go_to(first)
    return order


def _check_equal(name: str, values: dict[int, Any]) -> None:
    if len(set(values.values())) > 1:
        shown = ", ".join(f"rank {rank}: {value}" for rank, value in values.items())
        raise RankError(
            f"the ranks do not begin the same epoch: {name} differs ({shown}). Make the same loader on every rank, and "
            "load the same state, or those that were saved at the same step"
        )
