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
from collections.abc import Callable
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

from torchpipe.errors import StateError
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.randomness.seeds import fresh_seed

__all__ = ["Order", "OrderState", "begin_order", "draw_base_seed"]

OrderState = dict[str, Any]
"""Plain data: how an epoch's order began, and for samplers with a state, where it stands."""

_DRAW_FROM_NOBODY = (BatchSampler, SequentialSampler, DistributedSampler)  # of the global generators, that is
_DRAW_AT_ONCE = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


class Order(ABC):
    """The batches of indices of an epoch, in order, from a position on.

    ``base_seed`` is the epoch's, drawn when torch's loader draws it. ``may_run_ahead`` says that nobody can tell how
    far ahead of the loop the sampler is asked.
    """

    base_seed: int
    may_run_ahead: bool

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


def begin_order(
    sampler: Any,
    generator: torch.Generator | None,
    *,
    base_seed: int | None = None,
    saved: tuple[OrderState, int] | None = None,
) -> Order:
    """The order of a new epoch, or, from ``saved`` (its state, a number of batches), the rest of one.

    ``base_seed``: the one to keep, where torch's loader draws none (persistent workers). Raises: StateError if the
    saved state is not this sampler's, or if the sampler ends before that number.
    """
    kind: Callable[..., Order] = _Computed if _is_computed(sampler) else _Sampled
    return kind(sampler, generator, base_seed, saved)


def draw_base_seed(generator: torch.Generator | None) -> int:
    """The draw that torch's loader makes for each of its iterators."""
    return fresh_seed(generator)


def _is_computed(sampler: Any) -> bool:
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
        base_seed: int | None,
        saved: tuple[OrderState, int] | None,
    ) -> None:
        super().__init__()
        self._batch_sampler = sampler if type(sampler) is BatchSampler else None
        self._sampler = sampler if self._batch_sampler is None else sampler.sampler
        self._shuffled = type(self._sampler) is RandomSampler
        self._indices: Any = None  # once the first batch is asked for
        self._seed: int | None = None
        if saved is None:
            self.base_seed = draw_base_seed(generator) if base_seed is None else base_seed
        else:
            state, self.number = saved
            self.base_seed = stored_count(state, "base_seed", (1 << 63) - 1)
            if ("seed" in state) != (self._shuffled and state.get("begun") is True):
                raise StateError("the state is damaged: it has a seed for an order that has none, or the reverse")
            self._seed = stored_count(state, "seed", (1 << 63) - 1) if "seed" in state else None

    def _begin(self) -> Any:
        """What torch's sampler does when it is asked for the first index."""
        length = len(self._sampler.data_source)
        if not self._shuffled:
            return range(length)
        if self._seed is None:
            self._seed = fresh_seed()
        generator = torch.Generator()
        generator.manual_seed(self._seed)
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
        state: OrderState = {"base_seed": self.base_seed}
        return state if self._seed is None else state | {"seed": self._seed, "begun": True}


class _Sampled(Order):
    """Of any sampler: by its state, or by running it again."""

    def __init__(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        base_seed: int | None,
        saved: tuple[OrderState, int] | None,
    ) -> None:
        super().__init__()
        self._chain = _chain(sampler)
        self.may_run_ahead = all(type(part) in (BatchSampler, *_DRAW_AT_ONCE) for part in self._chain) and not any(
            getattr(part, "generator", None) is not None for part in self._chain
        )
        self._owner: Any = next((part for part in self._chain if is_stateful(part)), None)
        self._after: deque[tuple[int, Any]] = deque()  # (number, the owner's state before that batch)
        found = [generator, *(getattr(part, "generator", None) for part in self._chain)]
        self._generators = list({id(item): item for item in found if isinstance(item, torch.Generator)}.values())
        self._start: OrderState
        if saved is None:
            self._start = self._capture() | {"drew": base_seed is None}
            self._iterator = iter(sampler)
            self.base_seed = draw_base_seed(generator) if base_seed is None else base_seed
        else:
            self._restore(sampler, generator, *saved)
        if self._owner is None and is_stateful(self._iterator):
            self._owner = self._iterator
        self._note()

    def _capture(self) -> OrderState:
        epochs = [part.epoch if type(getattr(part, "epoch", None)) is int else None for part in self._chain]
        start: OrderState = {"generators": [item.get_state() for item in self._generators], "epochs": epochs}
        if self._owner is None and any(type(part) not in _DRAW_FROM_NOBODY for part in self._chain):
            with suppress(StateError):  # a bit generator of another kind than numpy's standard: not to be saved
                start["global"] = GlobalRandom.present().to_dict()
        return start

    def _restore(self, sampler: Any, generator: torch.Generator | None, state: OrderState, number: int) -> None:
        start = state["start"]
        if not isinstance(start, dict) or len(start["generators"]) != len(self._generators):
            raise StateError(
                f"the state has {len(start['generators'])} generators of samplers, this loader has "
                f"{len(self._generators)}: give generator= as the loader that saved it had it"
            )
        self._start = start
        for part, epoch in zip(self._chain, start["epochs"]):
            if type(epoch) is int and part.epoch != epoch:
                part.set_epoch(epoch) if hasattr(part, "set_epoch") else setattr(part, "epoch", epoch)
        for item, saved in zip(self._generators, start["generators"]):
            item.set_state(saved)
        self.base_seed = stored_count(state, "base_seed", (1 << 63) - 1)
        known, skip = state.get("sampler"), number
        if known is not None:
            known_at, value = known
            skip = number - known_at
            if self._owner is not None:
                self._owner.load_state_dict(copy.deepcopy(value))
        with nullcontext() if "global" not in start else GlobalRandom.of(start["global"]).installed():
            self._replay(sampler, generator, known, skip)
        self.number = number

    def _replay(self, sampler: Any, generator: torch.Generator | None, known: Any, skip: int) -> None:
        self._iterator = iter(sampler)
        if known is not None and self._owner is None:
            if not is_stateful(self._iterator):
                raise StateError("the state has the state of a sampler's iterator, and this sampler's has none")
            self._iterator.load_state_dict(copy.deepcopy(known[1]))
        if self._start.get("drew"):
            draw_base_seed(generator)  # as the epoch did: the generators must go on as they did then
        done = sum(1 for _ in islice(self._iterator, skip))
        if done < skip:
            raise StateError(
                f"the sampler ended after {done} of {skip} batches that the state says were delivered: has the data "
                "become shorter, or does the order not depend on its generators alone?"
            )

    def _next(self) -> Any:
        return next(self._iterator)

    def __next__(self) -> Any:
        indices = super().__next__()
        self._note()
        return indices

    def _note(self) -> None:
        """Keep the sampler's state before the next batch."""
        if self._owner is not None:
            self._after.append((self.number, copy.deepcopy(self._owner.state_dict())))

    def state(self, number: int) -> OrderState:
        while len(self._after) > 1 and self._after[1][0] <= number:
            self._after.popleft()
        state: OrderState = {"base_seed": self.base_seed, "start": self._start}
        return state | {"sampler": list(self._after[0])} if self._after else state


def _chain(sampler: Any) -> list[Any]:
    """The sampler, and those inside it: a batch sampler has one in ``sampler``."""
    chain = [sampler]
    while (inner := getattr(chain[-1], "sampler", None)) is not None and not any(inner is part for part in chain):
        chain.append(inner)
    return chain
