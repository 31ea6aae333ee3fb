"""``mix``: several sources in proportion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.function_results import checked_size, length_of, plain
from torchpipe.node.iterator import NodeIterator, refusing_misfits, stored_count, stored_items
from torchpipe.node.traits import node_name
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_choice, check_count, check_function, check_input
from torchpipe.randomness.seeds import IndexStream

__all__ = ["Mixer", "Stop", "Weights"]

T = TypeVar("T")

Stop: TypeAlias = Literal["first_exhausted", "all_exhausted", "restart", "never"]
Shares: TypeAlias = Sequence[float] | Mapping[str, float]
"""A number for each input, or for each name of one: 0 for those that are not named."""
Weights: TypeAlias = Shares | Mapping[int, Shares] | Callable[[int], Shares]

_END: Any = object()
_FINE = 1 << 53
_LARGEST = float(1 << 62)  # of a count that a state may tell


@functional_datapipe("mix")
class Mixer(IterDataPipe[T]):
    """Hands out the items of several inputs in the proportion of ``weights``, in random order, and evenly.

    After any number of items, each input has given at most one more than its share, and at most as many less as there
    are other inputs: an input is drawn with a chance in proportion to what it lacks. ``by="tokens"`` weighs items by
    their length (``len``; of a dict, that of ``input_ids`` or ``tokens``), a function by what it returns for an item.

    ``weights`` are numbers from 0 on, one for each input; or a dict, from how many samples (or tokens) of this node on
    which weights hold, ``{0: [7, 3], 50_000: [5, 5]}``; or a function that is told that number. Each shard counts
    alone. With ``names``, one for each input, weights may be given by them, ``{"web": 7, "books": 3}``, in a schedule
    too; a name that is left out has 0. Let each input have its own ``sharding_filter``: then the proportion holds in
    every shard, and no shard reads what others keep.

    ``stop``: ``"first_exhausted"`` ends when an input has no more items; ``"all_exhausted"`` goes on with the others;
    ``"restart"`` begins a new pass over it, shuffled anew, until each has ended once; ``"never"`` does so for ever.

    Weights are no part of the graph's identity, and a state loads with others if they hold from a later number on than
    any shard has come to: items are made again as they were. Others raise StateMismatchError, with what the shard has
    come to. A function has to give the same for numbers that are past; that is checked at a snapshot alone.

    A state has the inputs that the mix had when it was saved: declare one that is to come later from the start, with
    weight 0. ``loader.mixtures()`` counts what each has given, ``loader.next_change()`` says from which number
    on weights may be others.

    State: what each input lacks and gave, the number of samples (tokens), the pass over each input, a key and a count
    of draws.

    Raises: ValueError for weights that do not fit the inputs, are negative or sum to nothing; TypeError for an input
    that is no iterable node. While iterating, RuntimeError for an input without items that is to be restarted; or, with
    ``"first_exhausted"``, that is divided among shards of which this one got none (with ``"all_exhausted"``, that is a
    UserWarning): ``on_error`` does not leave these out.
    """

    fingerprint_ignores = (
        "names",
        "weights",
    )  # names are in states; weights are compared by ``assumption``: those that begin later on may be others
    pairs = False
    seeded = True

    def __init__(
        self,
        *datapipes: IterDataPipe[T],
        weights: Weights,
        by: Literal["samples", "tokens"] | Callable[[Any], float] = "samples",
        stop: Stop = "first_exhausted",
        names: Sequence[str] = (),
    ) -> None:
        if not datapipes:
            raise ValueError("mix needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_input("mix", datapipe)
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(type(name) is str for name in names):
            raise TypeError(f"names are texts in the order of the inputs, such as a tuple, got {names!r:.80}")
        if names and len(set(names)) != len(datapipes):
            raise ValueError(f"names has to name each of {len(datapipes)} inputs, got {names!r:.80}")
        check_choice("stop", stop, get_args(Stop))
        if isinstance(by, str):
            check_choice("by", by, ("samples", "tokens"))
        else:
            check_function("by", by)
        self.datapipes = datapipes
        self.names = tuple(names)
        self.weights = weights
        self.by = by
        self.stop = stop
        self.schedule()

    def schedule(self) -> _Schedule:
        """The schedule of weights. Raises: ValueError, TypeError."""
        weights, count = self.weights, len(self.datapipes)
        if callable(weights):
            function = weights
            return _Schedule([], lambda number: self._in_order(function(number)), count)
        if not isinstance(weights, Mapping) or any(isinstance(key, str) for key in weights):
            return _Schedule([(0, _normal(self._in_order(weights), count))], None, count)
        by_number: dict[Any, Any] = {**weights}
        found = [(check_count("a key of weights", at, at_least=0), self._in_order(by_number[at])) for at in by_number]
        steps = [(at, _normal(those, count)) for at, those in found]
        if not steps or min(steps)[0] != 0:
            raise ValueError(f"weights as a dict need a key 0, from which they begin, got {list(weights)!r:.60}")
        return _Schedule(sorted(steps), None, count)

    def _in_order(self, weights: Any) -> Any:
        """``weights`` in the order of the inputs, if they are given by name."""
        if not isinstance(weights, Mapping):
            return weights
        unknown = [name for name in weights if name not in self.names]
        if unknown:
            names = ", ".join(map(repr, self.names)) or "none: say names=['web', ...]"
            raise ValueError(f"weights name {unknown[0]!r:.60}, and the inputs of this mix have the names {names}")
        return [weights.get(name, 0) for name in self.names]

    def assumption(self) -> Any:
        """The weights by steps; of a function, none."""
        return [[start, list(weights)] for start, weights in self.schedule().steps]

    def __len__(self) -> int:
        """Raises: TypeError unless every input is read once, to its end."""
        if self.stop != "all_exhausted" or not all(all(weights) for _, weights in self.schedule().steps or [(0, [0])]):
            raise TypeError(f"the length of mix(stop={self.stop!r}) is not known")
        return sum(len(datapipe) for datapipe in self.datapipes)

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _MixIterator(self, context)


def _normal(weights: Any, count: int) -> list[float]:
    """``weights``, scaled to a sum of 1. Raises: ValueError, TypeError."""
    try:
        found = [float(_number(weight)) for weight in weights]
    except (TypeError, ValueError):
        raise TypeError(f"weights are {count} numbers, one for each input, got {weights!r:.80}") from None
    if len(found) != count:
        raise ValueError(f"weights has {len(found)} numbers for {count} inputs: {weights!r:.80}")
    total = math.fsum(found)
    if not all(0 <= weight < math.inf for weight in found) or not 0 < total < math.inf:
        raise ValueError(f"weights must be 0 or more, and not all 0, got {weights!r:.80}")
    return [weight / total for weight in found]


def _number(weight: Any) -> Any:
    found = plain(weight)
    if type(found) not in (int, float):
        raise TypeError
    return found


def _rounded_up(number: float) -> int:
    """To two digits."""
    unit = int(10 ** max(0, len(str(int(number))) - 2))
    return math.ceil(number / unit) * unit


def _stored(weights: Any, count: int) -> list[float]:
    """Weights as :func:`_normal` made them, out of a state: to the bit."""
    if type(weights) is not list or len(weights) != count or not all(type(weight) is float for weight in weights):
        raise StateError(f"the state has weights {weights!r:.60}, this mix has {count} inputs")
    _normal(weights, count)
    return weights


class _Schedule:
    """Weights by the number of samples or tokens: steps, or a function."""

    def __init__(self, steps: list[tuple[int, list[float]]], fn: Callable[[int], Any] | None, count: int) -> None:
        self.steps = steps
        self.fn = fn
        self._count = count

    def at(self, number: float) -> tuple[list[float], float]:
        """The weights that hold at ``number``, and until when they do so for sure."""
        if self.fn is not None:
            return _normal(self.fn(int(number)), self._count), 0
        weights, until = self.steps[0][1], math.inf
        for start, those in self.steps:
            if start > number:
                until = start
                break
            weights = those
        return weights, until

    def parts_from(self, other: _Schedule, number: float) -> float:
        """The first number, from ``number`` on, at which the two differ."""
        if self.at(number)[0] != other.at(number)[0]:
            return number
        if self.fn is not None or other.fn is not None:
            return math.inf
        later = sorted(start for start, _ in (*self.steps, *other.steps) if start > number)
        return next((start for start in later if self.at(start)[0] != other.at(start)[0]), math.inf)


class _MixIterator(NodeIterator[T]):
    node: Mixer[T]

    def __init__(self, node: Mixer[T], context: Context) -> None:
        super().__init__(node, context, *node.datapipes)
        self.schedule = node.schedule()
        self.random = IndexStream(context.stream_key(node))
        self.lacks = [0.0 for _ in self.inputs]
        self.rounds = [0 for _ in self.inputs]
        self.ended = [False for _ in self.inputs]  # True once it has ended
        self.gave = [False for _ in self.inputs]  # True once this pass over it has given an item
        self.given: list[int] | None = [0 for _ in self.inputs]  # items of the epoch; None: an old state does not say
        self.over = False
        self.items_before = 0
        self.count: float = 0  # samples or tokens
        self.weights: list[float] = []  # of those inputs that are drawn from
        self.until: float = 0  # and until when they hold
        self.agreed: float = math.inf  # until where these weights are those of the state that was loaded
        self.past: _Schedule | None = None  # those, until all is made again that was made by them
        self.in_hand: int | None = None  # the input of the item whose size is being told
        assumed = context.shared.assumed.get(context.node_id(node))
        if assumed is not None and self.schedule.fn is None:
            with refusing_misfits(node_name(node)):
                self._agree_with(assumed)
        by = node.by
        self.size_of = None if by == "samples" else self.with_retries(length_of if by == "tokens" else by)

    def get_state(self) -> dict[str, Any]:
        held = self.past or self.schedule
        return {
            "items": self.items_before,
            "count": self.count,
            "lacks": list(self.lacks),
            "rounds": list(self.rounds),
            "ended": list(self.ended),
            "gave": list(self.gave),
            "given": None if self.given is None else list(self.given),
            "names": list(self.node.names),
            "over": self.over,
            "random": self.random.state_dict(),
            "weights": [[start, list(weights)] for start, weights in held.steps],
            "now": held.at(self.count)[0],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        inputs = len(self.inputs)
        lists = [stored_items(state, name, inputs) for name in ("lacks", "rounds", "ended", "gave")]
        lacks, rounds, ended, gave = lists
        rounds = [stored_count({"round": number}, "round", 1 << 31) for number in rounds]
        count = state["count"]
        if any(len(values) != inputs for values in lists) or type(count) not in (int, float):
            raise StateError(f"the state is of a mix of {len(lacks)} inputs, this one has {inputs}")
        if not all(type(lack) is float and abs(lack) < _LARGEST for lack in lacks) or not 0 <= count < _LARGEST:
            raise StateError("the state tells of what inputs lack in other than numbers")
        self.items_before, self.count, self.lacks = stored_count(state, "items"), count, lacks
        self.random.load_state_dict(state["random"])
        for number, passes in enumerate(rounds):
            if passes:
                self._restart(number, passes)
        self.ended, self.gave, self.over = list(map(bool, ended)), list(map(bool, gave)), bool(state["over"])
        given = state.get("given")
        self.given = None if given is None else [stored_count({"given": each}, "given") for each in given]
        if self.given is not None and len(self.given) != inputs:
            raise StateError(f"the state says what {len(self.given)} inputs gave, this mix has {inputs}")
        names = [*state.get("names", ())]
        if names and self.node.names and names != [*self.node.names]:
            now = ", ".join(map(repr, self.node.names))
            raise StateMismatchError(
                f"mix() had inputs named {', '.join(map(repr, names))}, and has {now}: keep the order of inputs"
            )
        self._check_weights(state)

    def _check_weights(self, state: dict[str, Any]) -> None:
        now = _stored(state["now"], len(self.inputs))
        self._agree_with(state["weights"])
        if self.past is None and now != self.schedule.at(self.count)[0]:  # of a function, known at this position alone
            raise self._other_weights(now)

    def _agree_with(self, steps: Any) -> None:
        """Weights by ``steps`` have held so far."""
        inputs = len(self.inputs)
        saved = [(stored_count({"start": start}, "start"), _stored(those, inputs)) for start, those in steps]
        if saved and saved[0][0] == 0:
            self.past = _Schedule(sorted(saved), None, inputs)
            self.agreed = self.schedule.parts_from(self.past, self.count)

    def _other_weights(self, before: list[float]) -> StateMismatchError:
        there, unit = self.count, "samples" if self.size_of is None else "tokens"
        later = _rounded_up(1.5 * there + 1000 * (there / self.items_before if self.items_before else 1))
        here, then = ([round(weight, 6) for weight in those] for those in (self.schedule.at(there)[0], before))
        steps = [] if self.past is None else [step for step in self.past.steps if step[0] < there]
        past = ", ".join(f"{start}: {[round(weight, 6) for weight in those]}" for start, those in steps) or f"0: {then}"
        return StateMismatchError(
            f"mix() stands after {there:.0f} {unit} in shard {self.context.shard}, where the state has the weights "
            f"{then} and this graph has {here}. What was made is made again as it was, so new weights can hold from a "
            f"number on that no shard has come to, for example weights={{{past}, {later}: {here}}}"
        )

    def _restart(self, number: int, passes: int) -> None:
        self.end_pass(self.inputs[number])
        fresh = self.context.for_round(passes).iterate(self.node.datapipes[number])
        self.inputs = (*self.inputs[:number], fresh, *self.inputs[number + 1 :])
        self.rounds[number], self.gave[number] = passes, False

    def run(self) -> Iterator[T]:
        while not self.over and (number := self._draw()) is not None:
            item = next(self.inputs[number].items(), _END)
            if item is _END:
                self._end(number)
            else:
                self.in_hand = number
                self._account(number, item)
                self.in_hand = None
                yield item

    def current(self) -> object:
        return None if self.in_hand is None else self.inputs[self.in_hand].pass_engine.last

    def leave_out(self) -> bool:
        """An item without a size can be left out; wrong weights, and an input without items, cannot."""
        in_hand, self.in_hand = self.in_hand, None
        return in_hand is not None

    def _draw(self) -> int | None:
        """The input that gives the next item; None if there is none."""
        if self.count >= self.until:
            self._weigh()
        step = 1.0 if self.size_of is None or not self.items_before else self.count / self.items_before
        chances = [max(0.0, lack + weight * step) if weight else 0.0 for lack, weight in zip(self.lacks, self.weights)]
        total = math.fsum(chances)
        if not total:  # those that lack something are not drawn from any more
            chances, total = self.weights, math.fsum(self.weights)
        if not total:
            return None
        rest = self.random.index(_FINE) / _FINE * total
        for number, chance in enumerate(chances):
            rest -= chance
            if rest < 0:
                return number
        return max(range(len(chances)), key=chances.__getitem__)

    def _weigh(self) -> None:
        """Look up the weights that hold now, and share those of inputs that are done with among the others."""
        if self.past is not None and not self.context.shared.restoring:
            # Where items stand before, that the state has made, or are made again since
            if self.count > self.agreed or (self.count == self.agreed and self.items_before and not self.weights):
                raise self._other_weights(self.past.at(self.count)[0])
            self.past = None
        weights, self.until = (self.past or self.schedule).at(self.count)
        if self.past is not None:
            self.until = 0  # until all is restored
        if self.node.stop == "all_exhausted" and any(self.ended):
            weights = [0.0 if ended else weight for weight, ended in zip(weights, self.ended)]
            if not any(weights):
                self.weights = weights
                return
            weights = _normal(weights, len(weights))
            lost = math.fsum(lack for lack, ended in zip(self.lacks, self.ended) if ended)
            shares = zip(self.lacks, weights, self.ended)
            self.lacks = [0.0 if ended else lack + weight * lost for lack, weight, ended in shares]
        self.weights = weights

    def _account(self, number: int, item: T) -> None:
        size = 1 if self.size_of is None else checked_size(self.size_of, item, "the size")
        self.lacks = [lack + weight * size for lack, weight in zip(self.lacks, self.weights)]
        self.lacks[number] -= size
        self.gave[number] = True
        if self.given is not None:
            self.given[number] += 1
        self.items_before += 1
        self.count += size

    def _end(self, number: int) -> None:
        """Input ``number`` has ended. Raises: RuntimeError if it has no items, and could not be done without."""
        stop = self.node.stop
        if not self.gave[number] and stop in ("first_exhausted", "all_exhausted"):
            self._check_share(number)
        self.ended[number] = True
        if stop == "all_exhausted":
            self.until = 0  # other weights hold from now on
        elif stop == "first_exhausted" or (stop == "restart" and self._all_have_ended()):
            self.over = True
        elif self.gave[number]:
            self._restart(number, self.rounds[number] + 1)
        else:
            raise RuntimeError(
                f"mix(stop={stop!r}) is to begin input {number} anew, and it has no items: it would do so for ever. "
                f"Does shard {self.context.shard} of {self.context.num_shards} get any?"
            )

    def _check_share(self, number: int) -> None:
        """Input ``number`` has no items here. If it is divided among shards, others have some.

        Raises: RuntimeError where the shard would end with it, and give next to nothing of the other inputs.
        """
        node, context = self.node.datapipes[number], self.context
        among = context.graph.division(node)
        parts = context.share(among)[0] if among else 1
        if parts == 1:
            return
        text = (
            f"mix() has no item of input {number} ({node_name(node)}) in shard {context.shard} of "
            f"{context.num_shards}, so the proportion of its weights cannot hold there: that input is divided among "
            f"{parts} where it has fewer items (files, say). Use fewer shards, put its sharding_filter() where it has "
            "more items (behind the node that yields rows), or mix first and divide then: "
            "a.mix(b, weights=...).sharding_filter()"
        )
        if self.node.stop == "first_exhausted":
            raise RuntimeError(text)
        if not context.shared.restoring:
            warn_user(text, UserWarning)

    def _all_have_ended(self) -> bool:
        return all(ended for ended, weight in zip(self.ended, self.weights) if weight)
