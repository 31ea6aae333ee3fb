"""The order of an epoch: the user's sampler run in the user's process, lazily, drawing what torch's loader draws.

Runs in the user's process, in the thread that iterates the loader.

A position in it is a count of batches and what it takes to find that place again. There are three ways, the first that
fits: torch's own sequential and shuffled order is computed, a sampler that has a state is asked for it after each
batch, and any other is run again to that place, with the generators as they were when it began.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torchpipe.data.order.draws import Draws
from torchpipe.data.order.rollover import RolloverBatchSampler, RolloverPass
from torchpipe.data.order.standing import (
    MOST_SEED,
    chain_of,
    check_carried,
    check_generators,
    generators_of,
    length_of,
    load_into,
    own_state,
    place_of,
    tell_epochs,
)
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.randomness.seeds import fresh_seed
from torchpipe.state.flat import damaged, shown

__all__ = ["DRAW_FROM_NOBODY", "Order", "OrderState", "begin_order", "check_order", "is_computed"]

OrderState = dict[str, Any]
"""Plain data: how an epoch's order began, and for samplers with a state, where it stands."""

DRAW_FROM_NOBODY = (BatchSampler, SequentialSampler, DistributedSampler)  # of the global generators, that is
_DRAW_AT_ONCE = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


class Order(ABC):
    """The batches of indices of an epoch, in order, from a position on.

    ``base_seed`` is the epoch's, drawn when torch's loader draws it. ``may_run_ahead`` says that nobody can tell how
    far ahead of the loop the sampler is asked.
    """

    base_seed: int
    may_run_ahead: bool
    keeps_places = False  # :meth:`forget_before` is of use

    def __init__(self) -> None:
        self.number = 0  # of the next batch

    def __next__(self) -> Any:
        indices = self._next()
        self.number += 1
        return indices

    @abstractmethod
    def _next(self) -> Any:
        """The next batch's indices. Raises: StopIteration at the end, and what the sampler raises."""

    @abstractmethod
    def state(self, number: int) -> OrderState:
        """How to find the place before batch ``number`` again; called for numbers that grow."""

    def key(self, number: int) -> int:
        """What the random streams of batch ``number`` belong to: its number, among those of all ranks if there are."""
        return number

    def forget_before(self, number: int) -> None:
        """Nobody will ask for the state of an earlier batch."""
        return

    def settle(self, delivered: int) -> None:
        """The epoch is over, or given up, after so many batches."""
        return

    def follow(self, epoch: int) -> None:
        """A state stood at the end of its epoch, and ``epoch`` begins at once, without a word to the samplers."""
        return


def begin_order(
    sampler: Any,
    generator: torch.Generator | None,
    draws: Draws,
    *,
    base_seed: int | None = None,
    saved: tuple[OrderState, int] | None = None,
    loaded: bool = False,
) -> Order:
    """The order of a new epoch, or, from ``saved`` (its state, a number of batches), the rest of one.

    ``base_seed``: the one to keep, where torch's loader draws none (persistent workers). ``loaded``: the sampler's own
    state was loaded, and stands at the end of an epoch. Raises: StateError if the sampler ends before that number, or
    does not take its state.
    """
    if is_computed(sampler):
        return _Computed(sampler, generator, draws, base_seed, saved)
    return _Sampled(sampler, generator, draws, base_seed, saved, loaded)


def check_order(sampler: Any, generator: torch.Generator | None, state: OrderState, number: int) -> None:
    """Raises: StateError for what is no order's state before batch ``number``, StateMismatchError for another's."""
    if "base_seed" not in state:
        raise damaged("its order has no base seed")
    stored_count(state, "base_seed", MOST_SEED)
    if is_computed(sampler) != ("start" not in state):
        raise StateMismatchError(
            "the state was saved with another kind of order: shuffle=True with and without generator= are two"
        )
    if "start" in state:
        _check_start(sampler, generator, state["start"])
        known = state.get("sampler")
        if known is not None and (type(known) is not list or len(known) != 2 or known[0] not in (0, number)):
            raise damaged(f"its sampler's state is {shown(known)}, and not of batch {number}")
    else:
        check_generators(state.get("generators", []), generators_of((), generator))
        shuffled = type(getattr(sampler, "sampler", sampler)) is RandomSampler
        if shuffled != ("seed" in state):
            raise StateMismatchError("the state has a seed for an order that has none, or the reverse")
        if shuffled:
            stored_count(state, "seed", MOST_SEED)
        if "drawn_by" in state:
            check_generators([state["drawn_by"]], [torch.Generator()])


def _check_start(sampler: Any, generator: torch.Generator | None, start: Any) -> None:
    if not isinstance(start, dict):
        raise damaged("it does not say how its epoch began")
    chain = chain_of(sampler)
    check_generators(start.get("generators"), generators_of(chain, generator))
    check_carried(sampler, start)
    saved, here = start.get("ranks", 1), place_of(chain)[0]
    if saved != here:
        raise StateMismatchError(
            f"the state's batches are those of a sampler that divides among {shown(saved)} ranks, and this loader's "
            f"divides among {here}: the same count of other batches. Resume on as many ranks, or use distributed=True "
            "in the place of a sampler, whose states go on under any number"
        )
    epochs = start.get("epochs")
    if type(epochs) is not list or any(item is not None and type(item) is not int for item in epochs):
        raise damaged(f"its samplers' epochs are {shown(epochs)}")
    if len(epochs) != len(chain) or any(
        saved is not None and type(getattr(part, "epoch", None)) is not int for part, saved in zip(chain, epochs)
    ):
        raise StateMismatchError("the state has epochs of other samplers than this loader's")
    if "global" in start:
        try:
            GlobalRandom.of(start["global"])
        except Exception as error:
            raise damaged(f"the global random states cannot be used: {error!s:.200}") from None


def is_computed(sampler: Any) -> bool:
    """Is it torch's sequential or shuffled order, in batches or not, with nobody else's generator in it?"""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) is RandomSampler:
        whole = not inner.replacement and inner._num_samples is None
        return whole and inner.generator is None
    return type(inner) is SequentialSampler


class _Computed(Order):
    """Of ``range(n)`` or ``torch.randperm(n)``: any place is found at once, from the seed that was drawn."""

    may_run_ahead = True

    def __init__(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        draws: Draws,
        base_seed: int | None,
        saved: tuple[OrderState, int] | None,
    ) -> None:
        super().__init__()
        self._batch_sampler = sampler if type(sampler) is BatchSampler else None
        self._sampler = sampler if self._batch_sampler is None else sampler.sampler
        self._shuffled = type(self._sampler) is RandomSampler
        self._indices: Any = None  # once the first batch is asked for
        self._draws = draws
        self._seed: int | None = None
        self._drawn_by: Any = None  # the state of the generator that another library's sampler drew the order from
        if saved is None:
            self.base_seed = draws.seed(generator) if base_seed is None else base_seed
        else:
            state, self.number = saved
            self.base_seed, self._seed = state["base_seed"], state.get("seed")
            self._drawn_by = state.get("drawn_by")
            if generator is not None and "generators" in state:
                generator.set_state(state["generators"][0])
            batches = len(sampler)
            if self.number > batches:
                raise StateError(f"the state says that {self.number} batches were delivered, and there are {batches}")
        self._generators = [item.get_state() for item in generators_of((), generator)]  # for the next epoch's seed

    def _begin(self) -> Any:
        """What torch's sampler does when it is asked for the first index."""
        length = len(self._sampler.data_source)
        if not self._shuffled:
            return range(length)
        if self._seed is None:
            self._seed = self._draws.seed()
        generator = torch.Generator()
        if self._drawn_by is None:
            generator.manual_seed(self._seed)
        else:
            generator.set_state(self._drawn_by)
        return torch.randperm(length, generator=generator)

    def _next(self) -> Any:
        if self._indices is None:
            self._indices = self._begin()
        batches = self._batch_sampler
        size = 1 if batches is None else batches.batch_size
        start = self.number * size
        left = len(self._indices) - start
        if left <= 0 or (batches is not None and batches.drop_last and left < size):
            raise StopIteration
        part = self._indices[start : start + size]
        indices = part.tolist() if self._shuffled else list(part)
        return indices[0] if batches is None else indices

    def state(self, number: int) -> OrderState:
        state: OrderState = {"base_seed": self.base_seed, "generators": self._generators}
        if not self._shuffled:
            return state
        if self._drawn_by is not None:
            state["drawn_by"] = self._drawn_by
        return state | {"seed": self._draws.next_seed() if self._seed is None else self._seed}  # what it would draw now


class _Sampled(Order):
    """Of any sampler: by its state, or by running it again.

    With ``last_batch="rollover"`` always by running it again, from the sampler's state when the epoch began: what has
    begun a batch there is not the sampler's to know.
    """

    def __init__(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        draws: Draws,
        base_seed: int | None,
        saved: tuple[OrderState, int] | None,
        loaded: bool,
    ) -> None:
        super().__init__()
        self._sampler = sampler
        self._chain = chain_of(sampler)
        self._rolls = isinstance(sampler, RolloverBatchSampler)
        self._loaded = loaded
        self._draws = draws
        self._random: GlobalRandom | None = None
        self.may_run_ahead = all(type(part) in (BatchSampler, *_DRAW_AT_ONCE) for part in self._chain) and not any(
            getattr(part, "generator", None) is not None for part in self._chain
        )
        self._ranks, self._rank = place_of(self._chain)
        self._owner: Any = own_state(self._chain)
        self._after: deque[tuple[int, Any]] = deque()  # (number, the owner's state before that batch)
        self._generators = generators_of(self._chain, generator)
        self._start: OrderState
        if saved is None:
            self._start = self._capture() | {"drew": base_seed is None}
            if self._rolls:
                self._note()
            self._iterator = draws.within(lambda: iter(sampler))
            self.base_seed = draws.seed(generator) if base_seed is None else base_seed
        else:
            self._restore(generator, *saved)
        if self._owner is None and is_stateful(self._iterator):
            self._owner = self._iterator
        self.keeps_places = self._owner is not None and not self._rolls
        if self.keeps_places:
            self._note()

    def _capture(self) -> OrderState:
        epochs = [part.epoch if type(getattr(part, "epoch", None)) is int else None for part in self._chain]
        start: OrderState = {"generators": [item.get_state() for item in self._generators], "epochs": epochs}
        if self._ranks > 1:
            start["ranks"] = self._ranks
        if isinstance(self._sampler, RolloverBatchSampler):
            start["carried"] = list(self._sampler.carried)
        if self._owner is None and any(type(part) not in DRAW_FROM_NOBODY for part in self._chain):
            with suppress(StateError):  # a bit generator of another kind than numpy's standard: not to be saved
                start["global"] = GlobalRandom.present().to_dict()
        return start

    def _restore(self, generator: torch.Generator | None, state: OrderState, number: int) -> None:
        present = state["start"] is None  # another library's state does not say: with the generators as they are
        self._start = start = self._capture() | {"drew": True} if present else state["start"]
        self._told = [getattr(part, "epoch", None) for part in self._chain]
        tell_epochs(self._chain, start["epochs"])
        for item, saved in zip(self._generators, start["generators"]):
            item.set_state(saved)
        if isinstance(self._sampler, RolloverBatchSampler):
            self._sampler.carried = list(start["carried"])
        self.base_seed = state["base_seed"]
        known, skip = state.get("sampler"), number
        ended = known is not None and not self._rolls and number == length_of(self._sampler)
        if known is not None:
            skip = number - known[0]
            if self._owner is not None:
                load_into(self._owner, known[1])
                if self._rolls:
                    self._after.append((0, known[1]))
        # The global generators hold by now what is none of the sampler's: from here on it has its own
        self._random = GlobalRandom.of(start["global"]) if "global" in start and not present else None
        with self._random or nullcontext():
            self._replay(generator, known, skip, ended)
        self.number = number

    def follow(self, epoch: int) -> None:
        # Who told them each epoch's number has not told them this one, or has before the state's number was put back
        saved = self._start["epochs"]
        counted = [type(old) is int and 0 < old == epoch - 1 for old in saved]
        tell_epochs(self._chain, [epoch if counts else told for counts, told in zip(counted, self._told)])

    def _replay(self, generator: torch.Generator | None, known: Any, skip: int, ended: bool) -> None:
        length = length_of(self._sampler)
        if length is not None and skip > max(2 * length, 1 << 16):  # a length may be an estimate
            raise StateError(f"the state says that {skip} batches were delivered, and the sampler's length is {length}")
        # At its end, a sampler's state may be that of the next epoch's start: it is not asked
        self._iterator = iter(()) if ended else iter(self._sampler)
        if ended:
            known = None
        if known is not None and self._owner is None:
            if not is_stateful(self._iterator):
                raise StateError("the state has the state of a sampler's iterator, and this sampler's has none")
            load_into(self._iterator, known[1])
        if self._start.get("drew"):  # as the epoch did: the generators must go on as they did then
            self._draws.pass_over(generator) if self._random is None else fresh_seed(generator)
        done = sum(1 for _ in islice(self._iterator, skip))
        if done < skip:
            raise StateError(
                f"the sampler ended after {done} of {skip} batches that the state says were delivered: has the data "
                "become shorter, or does the order not depend on its generators alone?"
            )

    def _next(self) -> Any:
        own, again, self._loaded = self._random, self._loaded, False
        try:
            return (self._draws if own is None else own).within(self._iterator.__next__)
        except StopIteration:
            if own is not None:
                self._draws.stand_at(own.of_torch)
            if own is not None or not again:
                raise
            self._iterator = iter(self._sampler)  # what its state was at the end of is over
            return next(self._iterator)

    def __next__(self) -> Any:
        indices = super().__next__()
        if self.keeps_places:
            self._note()
        return indices

    def key(self, number: int) -> int:
        return number * self._ranks + self._rank

    def _note(self) -> None:
        """Keep the sampler's state before the next batch."""
        if self._owner is not None:
            self._after.append((self.number, copy.deepcopy(self._owner.state_dict())))

    def forget_before(self, number: int) -> None:
        while len(self._after) > 1 and self._after[1][0] <= number:
            self._after.popleft()

    def settle(self, delivered: int) -> None:
        if isinstance(self._iterator, RolloverPass):
            self._iterator.settle(delivered)

    def state(self, number: int) -> OrderState:
        self.forget_before(number)
        state: OrderState = {"base_seed": self.base_seed, "start": self._start}
        return state | {"sampler": list(self._after[0])} if self._after else state
