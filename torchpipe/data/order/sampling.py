"""The order of an epoch: the user's sampler run in the user's process, lazily, drawing what torch's loader draws.

Runs in the user's process, in the thread that iterates the loader.

A position in it is a count of batches and what it takes to find that position again. There are three ways, the first
that fits: torch's own sequential and shuffled order is computed; a sampler that has a state is asked for it after each
batch; any other is put back to where it stood when the epoch began and run again, as far as it had been asked. Whether
it then gave the same batches is checked: an order that depends on something else is refused.
"""

from __future__ import annotations

import copy
import marshal
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from torchpipe.compat.torch_private import reads_whole
from torchpipe.data.order.samplers import (
    MOST_SEED,
    RolloverPass,
    Samplers,
    has_states,
    length_of,
    load_into,
    ranks_of_sampler,
)
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.node.describe import describe
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.randomness.seeds import fresh_seed
from torchpipe.state.copying import copy_item
from torchpipe.state.flat import damaged, shown

__all__ = [
    "Order",
    "OrderState",
    "SamplerPosition",
    "begin_order",
    "begun_elsewhere",
    "check_order",
    "check_sampler_position",
    "is_computed",
]

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})

OrderState = dict[str, Any]
"""Plain data: how an epoch's order began, and where it stands."""

SamplerPosition = dict[str, Any]
"""A position in the order of a sampler that has a state of its own, as plain data: its ``state``, from which on a pass
has to ``skip`` batches; with ``ends``, that pass is first run to its end, and the position is in the next one.

The state is one from within a pass, before a batch of it. What a sampler tells after its last batch, or between two
passes, may be the end of the one or the start of the other: nobody knows.
"""


class Order(ABC):
    """The batches of indices of an epoch, in order, from a position on.

    ``base_seed`` is the epoch's, drawn when torch's loader draws it. ``may_run_ahead`` says that nobody can tell how
    far ahead of the loop the sampler is asked.
    """

    base_seed: int
    may_run_ahead: bool
    keeps_positions = False  # :meth:`forget_before` is of use

    def __init__(self) -> None:
        self.number = 0  # of the next batch
        self.makes_lists = False  # of a batch's indices, which the sampler may give as any iterable

    def __next__(self) -> Any:
        indices = self._next()
        if self.makes_lists:
            indices = list(indices)
        self.number += 1
        return indices

    @abstractmethod
    def _next(self) -> Any:
        """The next batch's indices. Raises: StopIteration at the end, and what the sampler raises."""

    @abstractmethod
    def state(self, number: int) -> tuple[OrderState, dict[str, Any] | None]:
        """(how to find the position before batch ``number`` again, where the generators stand). Any thread.

        Called for numbers that grow. No generators: no later order is drawn from them.
        """

    def key(self, number: int) -> int:
        """The key of the random streams of batch ``number``: its number, among those of all ranks if there are."""
        return number

    def forget_before(self, number: int) -> None:
        """Nobody will ask for the state of an earlier batch."""
        return

    def settle(self, delivered: int) -> None:
        """The epoch is over, or given up, after so many batches."""
        return

    def rewind(self, handed_out: int) -> None:
        """The epoch is given up: let generators stand as if the sampler had been asked for no more batches."""
        return

    def last_position(self) -> SamplerPosition | None:
        """The way from the ended pass of a sampler with a state of its own to its next one; else None."""
        return None


def begin_order(
    samplers: Samplers,
    *,
    base_seed: int | None = None,
    saved: tuple[OrderState, int] | None = None,
    loaded: bool = False,
    last: SamplerPosition | None = None,
    moves: bool = False,
) -> Order:
    """The order of a new epoch, or, from ``saved`` (its state, a number of batches), the rest of one.

    ``base_seed``: the one to keep, where torch's loader draws none (persistent workers). ``last``: what
    :meth:`Order.last_position` gave at the end of the epoch before; ``loaded``: the sampler stands there. ``moves``:
    generators are left where ``saved`` takes them, since its state does not say where they stood.

    Raises: StateError if the sampler does not come to that number, gives other batches before it, or does not take its
    state.
    """
    if is_computed(samplers.sampler):
        return _Computed(samplers, base_seed, saved)
    return _Sampled(samplers, base_seed, saved, loaded, last, moves)


def begun_elsewhere() -> StateMismatchError:
    """The refusal of an older state from within an epoch that was begun in StatefulDataLoader."""
    return StateMismatchError(
        "the state was saved by an older torchpipe within an epoch that StatefulDataLoader had begun, which is read no "
        "more: finish that epoch with the older one, and load the state from its end"
    )


def check_order(samplers: Samplers, state: OrderState, number: int) -> None:
    """Raises: StateError for what is no order's state before batch ``number``, StateMismatchError for another's."""
    if "base_seed" not in state:
        raise damaged("its order has no base seed")
    if "drawn_by" in state or state.get("start", state) is None:
        raise begun_elsewhere()
    stored_count(state, "base_seed", MOST_SEED)
    sampler = samplers.sampler
    if is_computed(sampler) != ("start" not in state):
        raise StateMismatchError(
            "the state was saved with another kind of order: shuffle=True with and without generator= are two"
        )
    if "start" in state:
        samplers.check(state["start"])
        saved = state.get("sampler")
        if saved is None:
            stored_count(state, "asked")
            if type(state.get("digest")) is not int or type(state.get("ended")) is not bool:
                raise damaged("it does not say which batches its sampler gave")
            samplers.check_parts(state.get("parts", state["start"]["parts"]))
        else:
            check_sampler_position(saved)
            if saved["skip"] > number or saved.get("number") != number:
                raise damaged(f"its sampler's state is {shown(saved)}, and not of batch {number}")
        return
    shuffled = _is_shuffled(sampler)
    if shuffled != ("seed" in state):
        raise StateMismatchError(
            "the state is of a loader that shuffles by a seed and this one does not, or the reverse: make the loader "
            "with the same shuffle= and sampler="
        )
    if shuffled and state["seed"] is not None:
        stored_count(state, "seed", MOST_SEED)
    sized: Any = sampler.sampler if type(sampler) is BatchSampler else sampler
    length = stored_count(state, "length", 2 * max(len(sized.data_source), 1 << 16))  # it may have grown, or shrunk
    size = stored_count(state, "size")
    samplers.check_parts(state.get("parts"))
    if not size or number > -(-length // size):
        raise damaged(f"{number} batches were delivered, and there are {length} samples in batches of {size}")


_MOST_PASSES = 1 << 20  # of one batch each


def check_sampler_position(position: Any) -> None:
    """Raises: StateError for what is no place of a sampler with a state of its own."""
    ends = position.get("ends") if isinstance(position, dict) and "state" in position else None
    if not isinstance(ends, int) or not 0 <= ends <= _MOST_PASSES:  # once it was but yes or no
        raise damaged(f"its sampler's position is {shown(position)}")
    stored_count(position, "skip")


def is_computed(sampler: Any) -> bool:
    """True for torch's sequential or shuffled order, in batches or not, with nobody else's generator in it."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) is RandomSampler:
        return reads_whole(inner) and inner.generator is None
    return type(inner) is SequentialSampler


def _is_shuffled(sampler: Any) -> bool:
    return type(getattr(sampler, "sampler", sampler)) is RandomSampler


class _Computed(Order):
    """The order of ``range(n)`` or ``torch.randperm(n)``: any position is found at once, from the seed that was drawn.

    n and the size of batches are those with which the epoch began: a position counts by them.
    """

    may_run_ahead = True

    def __init__(self, samplers: Samplers, base_seed: int | None, saved: tuple[OrderState, int] | None) -> None:
        super().__init__()
        sampler = samplers.sampler
        self._samplers = samplers
        self._batch_sampler = sampler if type(sampler) is BatchSampler else None
        self._sampler = sampler if self._batch_sampler is None else sampler.sampler
        self._shuffled = type(self._sampler) is RandomSampler
        self._indices: Any = None  # once the first batch is asked for
        self._seed: int | None = None
        self._length = len(self._sampler.data_source)
        self._size = 1 if self._batch_sampler is None else self._batch_sampler.batch_size
        if saved is None:
            self.base_seed = fresh_seed(samplers.generator) if base_seed is None else base_seed
        else:
            state, self.number = saved
            self.base_seed, self._seed = state["base_seed"], state.get("seed")
            self._length, self._size = state.get("length", self._length), state.get("size", self._size)
            if "parts" in state:  # the user may have changed an attribute since the epoch began
                samplers.put_parts(state["parts"])

    def _begin(self) -> Any:
        """The indices, drawn as by torch's sampler when it is asked for the first one."""
        if not self._shuffled:
            return range(self._length)
        if self._seed is None:
            before = self._samplers.now(others=False)
            try:
                self._seed = fresh_seed()
            except BaseException:  # Ctrl-C: what was drawn was for an order that nobody has
                self._samplers.put_now(before)
                raise
        generator = torch.Generator().manual_seed(self._seed)
        return torch.randperm(self._length, generator=generator, device="cpu")

    def _next(self) -> Any:
        if self._indices is None:
            self._indices = self._begin()
        batches = self._batch_sampler
        size = self._size
        start = self.number * size
        left = len(self._indices) - start
        if left <= 0 or (batches is not None and batches.drop_last and left < size):
            raise StopIteration
        part = self._indices[start : start + size]
        indices = part.tolist() if self._shuffled else list(part)
        return indices[0] if batches is None else indices

    def state(self, number: int) -> tuple[OrderState, dict[str, Any]]:
        state: OrderState = {
            "base_seed": self.base_seed,
            "length": self._length,
            "size": self._size,
            "parts": self._samplers.present_parts(under_way=True),
        }
        if not self._shuffled:
            return state, self._samplers.now()
        while True:
            seed = self._seed
            now = self._samplers.now()
            if self._seed == seed:  # else it was drawn meanwhile, in another thread
                return state | {"seed": seed}, now


@dataclass(frozen=True, slots=True)
class _Asked:
    """The progress of the sampler in this epoch. Replaced as a whole: another thread may save a state.

    ``batches`` that it gave, which may be more than were delivered, and their ``digest``. ``before``: while it is asked
    for another one, where the generators stood before that. ``torn``: an exception has struck it in the midst of one,
    so that what it keeps, and draws, is of no batch.
    """

    batches: int = 0
    digest: int = 0
    ended: bool = False
    torn: bool = False
    before: dict[str, Any] | None = None


class _Sampled(Order):
    """The order of any sampler, by its state, or by running it again. Batches past its position wait in ``_queue``."""

    def __init__(
        self,
        samplers: Samplers,
        base_seed: int | None,
        saved: tuple[OrderState, int] | None,
        loaded: bool,
        last: SamplerPosition | None,
        moves: bool,
    ) -> None:
        super().__init__()
        self._samplers = samplers
        self._sampler = samplers.sampler
        self.may_run_ahead = not samplers.may_draw_late
        self._ranks, self._rank = ranks_of_sampler(samplers.parts)
        self._process = dist.get_rank() if dist.is_available() and dist.is_initialized() else self._rank
        self._asked = _Asked()
        self._queue: deque[Any] = deque()
        self._positions: deque[tuple[int, SamplerPosition]] = (
            deque()
        )  # (number, the sampler's position before that batch)
        self._left: list[torch.Tensor] = []  # where the generators stood when the sampler was asked last
        self._owner: Any = samplers.owner
        self._start: OrderState
        if saved is None:
            if loaded and last is not None:
                self._run_to_ends(last["ends"])
            self._start = samplers.capture() | {"drew": base_seed is None, "loaded": loaded}
            self._iterator = iter(self._sampler)
            self.base_seed = fresh_seed(samplers.generator) if base_seed is None else base_seed
        else:
            self._resume(*saved, moves)
        if self._owner is None and is_stateful(self._iterator):
            self._owner = self._iterator
        self.keeps_positions = self._owner is not None
        if saved is None and last is not None and self._owner is samplers.owner:
            self._positions.append((0, last))
        else:
            self._note()

    def _resume(self, state: OrderState, number: int, moves: bool) -> None:
        self._start = start = state["start"]
        self.base_seed = state["base_seed"]
        with self._samplers.as_at(start, for_good=moves):
            saved = state.get("sampler")
            if saved is None:
                self._run_again(state, number)
            else:
                self._find(saved, number)
        while self._asked.batches < number:  # made out of order by another loader, whose sampler had not come so far
            try:
                self._ask()
            except StopIteration:
                raise self._too_few(self._asked.batches, number) from None
        self.number = number

    def _begin_again(self) -> None:
        self._iterator = iter(self._sampler)
        if self._start.get("drew"):  # as the epoch did: the generators must go on as they did then
            fresh_seed(self._samplers.generator)

    def _run_to_ends(self, passes: int) -> None:
        for _ in range(passes):
            for _ in iter(self._sampler):
                pass

    def _find(self, position: SamplerPosition, number: int) -> None:
        """Go to batch ``number`` by the sampler's own state."""
        skip = position["skip"]
        self._check_count(skip)
        if self._owner is not None:
            load_into(self._owner, position["state"])
            self._run_to_ends(position["ends"])
        self._begin_again()
        if self._owner is None:
            if not is_stateful(self._iterator):
                raise StateError("the state has the state of a sampler's iterator, and this sampler's has none")
            load_into(self._iterator, position["state"])
        for done in range(skip):
            self._again(number - skip + done, number)
        self._asked = _Asked(number)
        if skip == 1 or position["ends"]:
            self._positions.append((number - skip, position | {"skip": 0}))

    def _run_again(self, state: OrderState, number: int) -> None:
        """Run the sampler as far as it had been asked; it stands where it stood when the epoch began."""
        asked, ended, digest = state.get("asked", number), state.get("ended", False), 0
        self._check_count(max(asked, number))
        self._begin_again()
        for done in range(asked):
            indices = self._again(done, asked)
            digest = _digest(indices, digest)
            if done >= number:
                self._queue.append(_own(indices))
        self._asked = _Asked(asked, digest, ended)
        more = ended and next(self._iterator, self) is not self
        # Ranks may have batches of their own, and share the state of one of them
        comparable = "digest" in state and state.get("process") == self._process
        if "parts" in state:  # the user may have changed an attribute since the epoch began
            self._samplers.put_parts(state["parts"])
        if more or (comparable and state["digest"] != digest):
            name = type(getattr(self._sampler, "sampler", self._sampler)).__name__
            raise StateError(
                f"{name} does not give the batches again that it gave before the state was saved, so nothing says what "
                "is left of the epoch. Its order depends on something that no state holds: data that have changed, a "
                "random generator that is no attribute of the sampler, or a global one that others draw from as well "
                "while it gives its batches. Give the sampler state_dict() and load_state_dict(), or a generator of "
                "its own"
            )

    def _check_count(self, count: int) -> None:
        length = length_of(self._sampler)
        if length is not None and count > max(2 * length, 1 << 16):  # a length may be an estimate
            raise StateError(
                f"the state says that {count} batches were delivered, and the sampler's length is {length}"
            )

    def _again(self, done: int, count: int) -> Any:
        try:
            return self._first_or_next(done)
        except StopIteration:
            raise self._too_few(done, count) from None

    def _too_few(self, done: int, count: int) -> StateError:
        return StateError(
            f"the sampler ended after {done} of {count} batches that the state says it gave: has the data become "
            "shorter, or does the order not depend on its generators alone?"
        )

    def _first_or_next(self, done: int) -> Any:
        """The sampler's next batch. Where a state that was loaded stood at the end of a pass, of a new one."""
        try:
            return _at_hand(next(self._iterator))
        except StopIteration:
            loaded = self._start.get("loaded") or has_states(self._start["parts"])
            if done or not loaded:
                raise
        self._iterator = iter(self._sampler)
        return _at_hand(next(self._iterator))

    def _next(self) -> Any:
        return self._queue.popleft() if self._queue else self._ask()

    def _first(self) -> Any:
        """Samplers run when they are asked first: in the epoch that they had been told when this one began."""
        epochs = self._samplers.given_epochs()
        if epochs == self._start["epochs"]:
            return self._first_or_next(0)
        self._samplers.tell_epochs(self._start["epochs"])
        try:
            return self._first_or_next(0)
        finally:
            self._samplers.tell_epochs(epochs)

    def _ask(self) -> Any:
        asked = self._asked
        if asked.ended:
            raise StopIteration
        try:
            self._asked = replace(asked, before=self._samplers.now(others=False))
            indices = self._first_or_next(asked.batches) if asked.batches else self._first()
            asked = _Asked(asked.batches + 1, _digest(indices, asked.digest))
        except StopIteration:
            asked = replace(asked, ended=True)
            raise
        except BaseException:
            if before := self._asked.before:
                self._samplers.put_now(before)  # what was drawn was for a batch that nobody has
            asked = replace(asked, torn=True)
            raise
        finally:
            self._asked = asked
            self._left = [item.get_state() for item in self._samplers.generators]
        self._note()
        return _own(indices)

    def key(self, number: int) -> int:
        return number * self._ranks + self._rank

    def _note(self) -> None:
        """Keep the sampler's own state before the next batch."""
        if self.keeps_positions:
            state = copy.deepcopy(self._owner.state_dict())
            self._positions.append((self._asked.batches, {"state": state, "ends": False, "skip": 0}))

    def forget_before(self, number: int) -> None:
        while len(self._positions) > 1 and self._positions[1][0] < max(number, 1):
            self._positions.popleft()

    def _position_before(self, number: int) -> SamplerPosition:
        """That before batch ``number``: from the state before the last batch, if that is one of this pass. Where there
        is but one batch, the state after it may be that of the next pass.
        """
        first = 0 if length_of(self._sampler) == 1 else min(1, number)
        before, position = next(item for item in self._positions if item[0] >= first)
        return position | {"skip": position["skip"] + number - before, "number": number}

    def settle(self, delivered: int) -> None:
        if isinstance(self._iterator, RolloverPass):
            self._iterator.settle(delivered)

    def rewind(self, handed_out: int) -> None:
        asked = self._asked
        if not self._samplers.are_torchs or not self._samplers.generators or asked.batches + asked.ended <= handed_out:
            return
        left = [item.get_state() for item in self._samplers.generators]
        if not all(map(torch.equal, left, self._left)):  # others draw from them as well
            return
        with self._samplers.as_at(self._start, for_good=True):
            self._begin_again()
            asked = _Asked()
            for done in range(handed_out):
                asked = _Asked(done + 1, _digest(self._again(done, handed_out), asked.digest))
            self._asked = asked

    def last_position(self) -> SamplerPosition | None:
        if not self._positions or self._owner is not self._samplers.owner:
            return None
        position = self._position_before(self._asked.batches)  # one of a pass before, where passes have but one batch
        return position | {"skip": 0, "ends": position["ends"] + 1}

    def state(self, number: int) -> tuple[OrderState, dict[str, Any]]:
        self.forget_before(number)
        state: OrderState = {"base_seed": self.base_seed, "start": self._start}
        while True:
            asked = self._asked
            now = self._samplers.now() | (asked.before or {})
            parts = self._samplers.present_parts(under_way=True)
            if self._asked is asked:
                break
        if self._positions:
            return state | {"sampler": self._position_before(number)}, now
        how_far = {"asked": asked.batches, "ended": asked.ended, "digest": asked.digest, "process": self._process}
        return state | how_far | ({} if asked.torn else {"parts": parts}), now


def _at_hand(indices: Any) -> Any:
    """A batch that can be read more than once: some samplers give an iterator, as ``map`` makes it."""
    return list(indices) if isinstance(indices, Iterator) else indices


def _own(indices: Any) -> Any:
    """A batch that waits, as those do that are dealt to workers: the sampler may fill the same list again."""
    if type(indices) is list and all(
        kind in _PLAIN or issubclass(kind, np.generic) for kind in set(map(type, indices))
    ):
        return indices[:]
    return copy_item(indices)


def _digest(indices: Any, before: int) -> int:
    """A checksum of the batches so far: of all their numbers and texts, in any container, array or tensor."""
    # The second version of marshal writes equal values alike
    data = marshal.dumps(indices, 2) if _is_plain(indices) else describe(indices).encode("utf-8", "surrogatepass")
    return zlib.crc32(data, before)


def _is_plain(value: Any) -> bool:
    """Is it made of Python's own numbers and texts alone, in an order of their own?"""
    if type(value) is dict:
        return _is_plain([*value.keys(), *value.values()])
    if type(value) not in (list, tuple):
        return type(value) in _PLAIN
    return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value))
