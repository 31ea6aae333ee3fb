"""The sources of an epoch's order: samplers, generators, the process's random states. Saved, and put back.

Runs in the user's process.

One rule for every sampler: it is used in place, what can be saved is saved, and a state that is loaded puts all of it
back. A sampler with ``state_dict`` says itself where it stands. Of any other one, torch's own included, all is saved
that it refers to and that is no longer as it was when it became the loader's, followed as pickle does
(``torchpipe/values``). What cannot be taken down, and may have changed, is told of when a state is saved.

An order may also be drawn from the process's own generators: torch's default one gives the seeds of epochs and shuffled
orders where there is no ``generator=``, and a sampler of the user's may draw from any of the three. These states are in
a loader's state too, and are put back when it is loaded.

``last_batch``, as in Gluon, says what becomes of samples that do not fill a batch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.node.validate import check_count
from torchpipe.randomness.global_random import RandomStates
from torchpipe.state import encode
from torchpipe.state.flat import damaged, shown
from torchpipe.values import ObjectTracker, check, put

__all__ = [
    "MOST_SEED",
    "LastBatch",
    "RolloverBatchSampler",
    "RolloverPass",
    "Samplers",
    "has_states",
    "length_of",
    "load_into",
    "parts_of",
    "put_back",
    "ranks_of_sampler",
    "stands_at",
    "with_last_batch",
]

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
    contradicts = drop_last and last_batch != "discard"  # which say the same: a trainer gives both
    if contradicts or batch_sampler is not None or batch_size is None:
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


MOST_SEED = (1 << 63) - 1

DRAW_FROM_NOBODY = (BatchSampler, SequentialSampler, DistributedSampler, RolloverBatchSampler)
"""Sampler classes that draw from none of the process's generators."""
_DRAW_AT_ONCE = (BatchSampler, SequentialSampler, DistributedSampler, SubsetRandomSampler, WeightedRandomSampler)
_TORCHS = (*DRAW_FROM_NOBODY, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_CONSTANT = (list, tuple, range, np.ndarray, torch.Tensor)  # indices in a fixed order, given as a sampler
_DATA = ("data_source", "dataset")  # attributes of samplers that are not theirs
_EPOCH = ("epoch",)  # from outside, where there is a ``set_epoch``
_ROLLED = ("carried",)  # saved apart


def parts_of(sampler: Any) -> list[Any]:
    """The sampler and every sampler that it holds, directly or in a list, tuple or dict."""
    found = [sampler]
    for part in found:
        for name, value in _attributes(part):
            if name in _DATA:
                continue
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            some = any(issubclass(kind, Sampler) for kind in set(map(type, held)))  # there may be a million indices
            inner = [item for item in held if isinstance(item, Sampler)] if some else []
            if value is not None and name in ("sampler", "batch_sampler") and type(held) is tuple and held is not value:
                inner = [value]
            found += [item for item in inner if not any(item is other for other in found)]
    return found


def _generators_of(parts: list[Any], generator: Any) -> list[torch.Generator]:
    found = [generator, *(value for part in parts for _, value in _attributes(part))]
    return list({id(item): item for item in found if isinstance(item, torch.Generator)}.values())


def _attributes(part: Any) -> list[tuple[str, Any]]:
    return [] if isinstance(part, _CONSTANT) else list(getattr(part, "__dict__", {}).items())


def ranks_of_sampler(parts: list[Any]) -> tuple[int, int]:
    """(how many ranks a sampler divides among, which one this is)."""
    for part in parts:
        ranks, rank = getattr(part, "num_replicas", None), getattr(part, "rank", None)
        if type(ranks) is type(rank) is int and 0 <= rank < ranks:
            return ranks, rank
    return 1, 0


def length_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # it has none, or one that fails in any way: it is only asked for what it may tell
        return None


def load_into(owner: Any, value: Any) -> None:
    """``owner.load_state_dict(value)``. Raises: StateError if that fails."""
    try:
        owner.load_state_dict(copy.deepcopy(value))
    except Exception as error:
        raise StateError(
            f"{type(owner).__name__}.load_state_dict() does not take what the state has for it: {error!r:.200}"
        ) from error


def stands_at(owner: Any, value: Any) -> bool:
    """Then nothing is loaded: what has just been made may not be meant to have a state loaded before it is used."""
    with suppress(Exception):
        return encode(owner.state_dict()) == encode(value)
    return False


_put_back: list[torch.Tensor] = []  # the last state that this process's default generator was put back to


def put_back(samplers: Samplers, state: dict[str, Any], *, tells: bool = True) -> None:
    """:meth:`Samplers.put_now` for a loader's state that is loaded, or, unless this ``tells``, was looked at."""
    of_torch, present = state.get("torch"), torch.get_rng_state()
    if of_torch is not None:
        if tells and _put_back and torch.equal(_put_back[0], of_torch) and not torch.equal(present, of_torch):
            warnings.warn(
                "torch's default generator was put back, for the second time, to where one and the same loader's state "
                "has it: what is drawn from it next was drawn before, in your training as well. A loader that is taken "
                "back again and again should have generator=torch.Generator()",
                UserWarning,
                stacklevel=3,
            )
        _put_back[:] = [of_torch]
    samplers.put_now(state)
    samplers.keeps_seed = state.get("keeps_seed", samplers.keeps_seed)


class Samplers:
    """The samplers of a loader. Make it when the loader is made: what changes from then on belongs to states.

    ``keeps_seed``: one base seed is drawn for all epochs, as torch's loader does for workers that persist. It decides
    what later orders are drawn from, so that a run keeps to it, wherever it goes on.
    """

    def __init__(self, sampler: Any, generator: torch.Generator | None, *, keeps_seed: bool = False) -> None:
        self.sampler = sampler
        self.keeps_seed = keeps_seed
        self.generator = generator
        self.parts = parts_of(sampler)
        self.generators = _generators_of(self.parts, generator)
        self.note()
        names = {number: _others_names(part) for number, part in enumerate(self.parts)}
        self._tracker = ObjectTracker(self.parts, held=self.generators, held_types=(Dataset,), names=names)
        self._warned = False
        self.start: dict[str, Any] | None = None  # what there was to save before the first epoch
        self.dataset: Any = None  # an iterable one that is read in this process, as it was then

    def note(self) -> None:
        """A pass has ended: what holds other samplers or generators now is its doing, and belongs to states."""
        self._noted = self._references()

    def are_other(self, sampler: Any, generator: Any, *, within: bool) -> bool:
        """True if somebody has put other samplers or generators into the loader; ``within``: or into a sampler."""
        other = sampler is not self.sampler or generator is not self.generator
        return other or (within and self._references() != self._noted)

    def _references(self) -> list[tuple[str, int]]:
        """The samplers and generators in attributes of samplers, and what stands in ``sampler`` and ``generator``."""
        return [
            (name, id(value))
            for part in self.parts
            for name, value in _attributes(part)
            if isinstance(value, Sampler | torch.Generator) or name in ("sampler", "batch_sampler", "generator")
        ]

    def copied(self) -> Samplers:
        """The same with samplers and generators of their own. Raises: TypeError for a sampler that cannot be copied."""
        held = [value for part in self.parts for name, value in _attributes(part) if name in _DATA]
        try:
            return copy.deepcopy(self, {id(value): value for value in held})
        except Exception as error:
            raise TypeError(
                f"{type(self.sampler).__name__} cannot be copied ({error!r:.200}), and asking it for batches would "
                "change what the loader gives next: ask a loader of its own, made anew, with the state loaded"
            ) from error

    @property
    def owner(self) -> Any:
        """The sampler whose own state says where an epoch stands, or None.

        It stands before everything else, or in a batch sampler of torch's, which holds nothing between two batches.
        """
        outer = self.sampler
        if is_stateful(outer):
            return outer
        inner = getattr(outer, "sampler", None) if type(outer) is BatchSampler else None
        return inner if is_stateful(inner) else None

    @property
    def may_draw_late(self) -> bool:
        """True if a sampler may draw random numbers not only when it is asked first, but each time, or at its end."""
        return any(
            not (type(part) in _DRAW_AT_ONCE or isinstance(part, _CONSTANT))
            or getattr(part, "generator", None) is not None
            for part in self.parts
        )

    @property
    def are_torchs(self) -> bool:
        """True if all are of torch's own classes, which keep nothing but their generators."""
        return all(type(part) in _TORCHS or isinstance(part, _CONSTANT) for part in self.parts)

    # -- generators and the process's random states -----------------------------------------------------------------

    @property
    def _unknown(self) -> bool:
        """True if a sampler may draw from any of the process's generators."""
        return self.owner is None and not self.are_torchs

    def now(self, *, others: bool = True) -> dict[str, Any]:
        """The present state of everything that an order may be drawn from. Plain data.

        ``others``: with the states of ``random`` and numpy, which take 0.1 ms.
        """
        state: dict[str, Any] = {
            "generators": [item.get_state() for item in self.generators],
            "keeps_seed": self.keeps_seed,
        }
        unknown = self._unknown
        if (
            unknown
            or self.generator is None
            or any(
                type(part) not in DRAW_FROM_NOBODY and getattr(part, "generator", None) is None for part in self.parts
            )
        ):
            state["torch"] = torch.get_rng_state()
        if unknown and others:
            with suppress(StateError):  # a bit generator of another kind than numpy's standard cannot be saved
                present = RandomStates.now().to_dict()
                state["others"] = {name: present[name] for name in ("python", "numpy")}
        return state

    def put_now(self, state: dict[str, Any]) -> None:
        """Put back what :meth:`now` gave."""
        for item, saved in zip(self.generators, state["generators"]):
            item.set_state(saved)
        if "others" in state:
            _of_process(state).put()
        elif "torch" in state:
            torch.set_rng_state(state["torch"])

    def check_now(self, state: Any) -> None:
        """Raises: StateError for what :meth:`now` cannot have given, StateMismatchError for that of other samplers."""
        if not isinstance(state, dict):
            raise damaged("it does not say where the generators stand")
        if type(state.get("keeps_seed", False)) is not bool:
            raise damaged(f"it has one base seed for all epochs: {shown(state['keeps_seed'])}")
        saved = state.get("generators")
        if type(saved) is not list:
            raise damaged(f"the states of generators are {shown(saved)}")
        if len(saved) != len(self.generators):
            raise StateMismatchError(
                f"the state has {len(saved)} generators of samplers, this loader has {len(self.generators)}: give "
                "generator= and samplers as the loader that saved it had them"
            )
        default = [torch.default_generator] if "torch" in state else []
        for item, value in zip([*self.generators, *default], [*saved, state.get("torch")]):
            try:
                torch.Generator(item.device).set_state(value)
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                raise damaged(f"the state of a generator cannot be used: {error!s:.200}") from None
        if "others" in state:
            try:
                _of_process(state)
            except Exception as error:
                raise damaged(f"the process's random states cannot be used: {error!s:.200}") from None

    # -- all of it, when an epoch begins ----------------------------------------------------------------------------

    def capture(self, *, whole: bool = False) -> dict[str, Any]:
        """Everything that an epoch's order is made from, as it stands now. Plain data. ``whole``: also what a sampler
        keeps that says itself where an epoch stands.
        """
        state: dict[str, Any] = {"now": self.now(), "parts": self.present_parts(whole=whole)}
        state["epochs"] = self.given_epochs()
        ranks = ranks_of_sampler(self.parts)[0]
        if ranks > 1:
            state["ranks"] = ranks
        if isinstance(self.sampler, RolloverBatchSampler):
            state["carried"] = list(self.sampler.carried)
        return state

    def present_parts(self, *, whole: bool = False, under_way: bool = False) -> dict[str, Any]:
        """The values that samplers keep; not ``whole``: none where one says itself where an epoch stands.

        ``under_way``: a pass is at work. torch's samplers change none of their large lists and arrays then, so that
        these are taken to be as they were when it began.
        """
        count = len(self.parts)
        if self.owner is not None and not whole:
            return {"count": count, "values": None, "states": {}}
        values = self._tracker.now(at_large=not (under_way and self.are_torchs))  # before samplers are asked
        lost = {number for number, _ in self._tracker.lost()}
        states = {
            number: copy.deepcopy(part.state_dict())
            for number, part in enumerate(self.parts)
            if number in lost and is_stateful(part)
        }
        return {"count": count, "values": values, "states": states}

    def put(self, state: dict[str, Any], *, epochs: bool) -> None:
        """Put back what :meth:`capture` gave. ``epochs``: also the epochs' numbers that samplers were told."""
        self.put_parts(state["parts"])
        if epochs:
            self.tell_epochs(state["epochs"])
        if isinstance(self.sampler, RolloverBatchSampler):
            self.sampler.carried = list(state["carried"])
        self.put_now(state["now"])

    def put_parts(self, parts: Any) -> None:
        """Put back what :meth:`present_parts` gave."""
        values, states = _values_in(parts)
        if values is not None:
            put(self._tracker, values)
        for number, state in states.items():
            load_into(self.parts[number], state)
        self.note()

    def put_own(self, state: dict[str, Any]) -> None:
        """Put back what :meth:`capture` gave of samplers: not the process's generators, nor the loader's."""
        self.put_parts(state["parts"])
        self.tell_epochs(state["epochs"])
        for item, saved in zip(self.generators, state["now"]["generators"]):
            if item is not self.generator:
                item.set_state(saved)

    def given_epochs(self) -> list[int | None]:
        """The epochs' numbers that samplers were told, those that are told any."""
        return [part.epoch if _takes_epochs(part) else None for part in self.parts]

    def tell_epochs(self, epochs: Iterable[Any]) -> None:
        """Each sampler that is told its epoch's number."""
        for part, epoch in zip(self.parts, epochs):
            if type(epoch) is int and part.epoch != epoch:
                part.set_epoch(epoch)

    @contextmanager
    def as_at(self, state: dict[str, Any], *, for_good: bool = False) -> Iterator[None]:
        """Let all stand as after :meth:`put`; afterwards the process's random states are again what they were before.
        So are generators, unless what is done meanwhile is to last (``for_good``): then the epochs' numbers are.
        """
        before, outside = self.now(others=False), RandomStates.now()
        epochs = self.given_epochs()
        try:
            self.put(state, epochs=True)
            yield
        finally:
            outside.put()
            if for_good:
                self.tell_epochs(epochs)
            else:
                self.put_now({"generators": before["generators"]})

    def check(self, state: Any) -> None:
        """Raises: as :meth:`check_now`, for what is no result of :meth:`capture`."""
        if not isinstance(state, dict) or "parts" not in state:
            raise damaged("it does not say how its epoch began")
        self.check_now(state.get("now"))
        self._check_carried(state)
        here = ranks_of_sampler(self.parts)[0]
        if state.get("ranks", 1) != here:
            raise StateMismatchError(
                f"the state's batches are those of a sampler that divides among {shown(state.get('ranks', 1))} ranks, "
                f"and this loader's divides among {here}: the same count of other batches. Resume on as many ranks, or "
                "use distributed=True in the place of a sampler, whose states go on under any number"
            )
        epochs = state.get("epochs")
        self.check_parts(state["parts"])
        if type(epochs) is not list or any(item is not None and type(item) is not int for item in epochs):
            raise damaged(f"its samplers' epochs are {shown(epochs)}")
        if len(epochs) != len(self.parts) or any(
            epoch is not None and not _takes_epochs(part) for part, epoch in zip(self.parts, epochs)
        ):
            raise StateMismatchError(
                "the state has epochs of other samplers than this loader's: make the loader with the samplers it had "
                "when the state was saved"
            )

    def check_parts(self, parts: Any) -> None:
        """Raises: as :meth:`check_now`, for what is no result of :meth:`present_parts`."""
        if not isinstance(parts, dict | list) or (isinstance(parts, dict) and not _PARTS.issubset(parts)):
            raise damaged(f"what it keeps of samplers is {shown(parts)}")
        count = len(parts) if isinstance(parts, list) else stored_count(parts, "count")
        if count != len(self.parts):
            raise StateMismatchError(
                f"the state has {shown(count)} samplers, this loader has {len(self.parts)}: make it as it was"
            )
        values, states = _values_in(parts)
        if type(states) is not dict or not all(type(item) is int and 0 <= item < count for item in states):
            raise damaged(f"what its samplers say of themselves is {shown(states)}")
        if not all(is_stateful(self.parts[number]) for number in states):
            raise StateMismatchError("the state has samplers with a state of their own: make the loader as it was")
        if values is not None:
            check(self._tracker, values)

    def _check_carried(self, state: dict[str, Any]) -> None:
        sampler = self.sampler
        rolls = isinstance(sampler, RolloverBatchSampler)
        if rolls != ("carried" in state):
            saved, here = ("other" if rolls else "'rollover'"), ("'rollover'" if rolls else "other")
            raise StateMismatchError(f"drop_last: the state was saved with {saved}, this loader has {here}")
        if not rolls:
            return
        carried = state["carried"]
        if type(carried) is not list or len(carried) >= sampler.batch_size:
            raise damaged(f"what is left over is {shown(carried)}, and not less than a batch of indices")
        if type(sampler.sampler) in (SequentialSampler, RandomSampler):  # others may give keys of any kind
            length = len(sampler.sampler.data_source)
            if not all(type(index) is int and 0 <= index < length for index in carried):
                raise damaged(f"what is left over is {shown(carried)}, and not of {length} samples")

    def tell_what_is_lost(self) -> None:
        """Warn, once, of attributes that have changed and that no state can hold."""
        if self._warned or self.owner is not None:
            return
        lost = [text for number, text in self._tracker.lost() if not is_stateful(self.parts[number])]
        if lost:
            self._warned = True
            warnings.warn(
                f"the loader's state does not hold {', '.join(lost)[:1000]}: what that keeps cannot be taken down, and "
                "may not be what it was when the loader was made. If the order of samples depends on it, a resumed run "
                "goes on in another order. Give the sampler state_dict() and load_state_dict()",
                UserWarning,
                stacklevel=4,
            )


def _of_process(state: dict[str, Any]) -> RandomStates:
    return RandomStates.from_dict(state["others"] | {"torch": state["torch"].numpy().tobytes()})


def _takes_epochs(part: Any) -> bool:
    """True if somebody else tells it the number of each epoch."""
    return callable(getattr(part, "set_epoch", None)) and type(getattr(part, "epoch", None)) is int


def _others_names(part: Any) -> tuple[str, ...]:
    """Attributes that are somebody else's to keep."""
    epoch = _EPOCH if _takes_epochs(part) else ()
    rolled = _ROLLED if isinstance(part, RolloverBatchSampler) else ()
    return (*_DATA, *epoch, *rolled, *getattr(type(part), "kept_by_order", ()))


_PARTS = {"count", "values", "states"}


def _values_in(parts: Any) -> tuple[Any, dict[int, Any]]:
    """(what samplers keep, what those say that have a state); states from before have a list with all of each."""
    if isinstance(parts, dict):
        return parts["values"], parts["states"]
    if any(item is not None and not isinstance(item, dict) for item in parts):
        raise damaged(f"what it keeps of samplers is {shown(parts)}")
    values = {"older": [None if item is None else item.get("kept") for item in parts]}
    return values, {number: item["state"] for number, item in enumerate(parts) if item and "state" in item}


def has_states(parts: Any) -> bool:
    """True if a sampler says of itself where it stands, in what :meth:`Samplers.present_parts` gave."""
    return bool(_values_in(parts)[1])
