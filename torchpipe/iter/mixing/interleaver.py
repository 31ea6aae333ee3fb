"""``interleave``: several files, or other makers of items, open at once. Runs wherever its shard runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from torchpipe.errors import GraphError, StateError
from torchpipe.iter._positioned import positioned
from torchpipe.node.announce import announce_replay
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, is_stateful, refusing_misfits, stored_count, stored_items
from torchpipe.node.traits import callable_name, is_node, node_name
from torchpipe.node.validate import check_columns, check_count, check_input
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.randomness.seeds import derive_seed

__all__ = ["Interleaver"]

T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()
_INNER = (
    "epoch", "shard", "num_shards", "rank", "world_size", "local_shard", "section", "threads", "allow_pickle",
    "announces", "memory", "policy", "replays", "restoring", "failures", "retries",
)  # fmt: skip
_SCRATCH = (0x1E4F,)  # any key: what is drawn from it is thrown away


def _itself(item: Any) -> Any:
    return item


@functional_datapipe("interleave")
class Interleaver(IterDataPipe[R]):
    """Opens ``cycle_length`` items of its input at once with ``fn``, and takes ``block_length`` items of each in turn.

    As tf.data's node of this name: where one ends, the next of the input takes its place in the turn. ``fn`` makes
    something iterable of an item (a path, say): a node, which has random streams of its own, a container, an open file,
    an iterator. Without it the items themselves are iterated. The order is a function of the input alone.

    State: the items that are open (so give paths, not open files), and where each stands, as with ``flatmap``: the
    state of a node, of an iterator that has one, a place in a sequence or file that can seek; of a generator, the
    number of results, which are made again, as a :class:`~torchpipe.errors.ReplayWarning` announces. It has no length.

    Raises: ValueError for counts below 1; TypeError if ``fn`` is no function, has a state, or, while iterating, returns
    nothing iterable; GraphError, while iterating, if what it opens draws from the global random states meanwhile:
    with several open, what each draws could not be told apart after a resume.
    """

    thins = True

    at_hand = False  # what fn returns may wait, for what the consumer does

    @overload
    def __init__(
        self: Interleaver[Any], datapipe: IterDataPipe[Any], *, cycle_length: int = ..., block_length: int = ...
    ) -> None: ...
    @overload
    def __init__(
        self,
        datapipe: IterDataPipe[T],
        fn: Callable[[T], Iterable[R]],
        cycle_length: int = ...,
        block_length: int = ...,
    ) -> None: ...
    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Iterable[Any]] = _itself,
        cycle_length: int = 4,
        block_length: int = 1,
    ) -> None:
        check_input("interleave", datapipe)
        check_columns("fn", fn, None)
        if is_stateful(fn) and not isinstance(fn, type):
            raise TypeError(
                f"{callable_name(fn)} has a state of its own, and is called again for what is open when a state is "
                "loaded: give interleave() a function that depends on the item alone"
            )
        self.datapipe = datapipe
        self.fn = fn
        self.cycle_length = check_count("cycle_length", cycle_length, at_least=1, at_most=1 << 16)
        self.block_length = check_count("block_length", block_length, at_least=1)

    def iterate(self, context: Context) -> NodeIterator[R]:
        return _InterleaveIterator(self, context)


@dataclass
class _Open:
    """An item of the input that is open, or about to be opened again."""

    item: Any
    number: int  # of the item in the input
    handed_out: int = 0
    parts: Any = None  # an iterator, once opened
    left: list[Any] | None = None  # what is left of a container
    loaded: Any = None  # the iterator's state, until it is opened

    def state(self) -> dict[str, Any]:
        if self.left is not None:
            return {"left": self.left[self.handed_out :]}
        state = {"item": self.item, "number": self.number, "handed_out": self.handed_out}
        reached = self.loaded
        if self.parts is not None and is_stateful(self.parts):
            reached = copy.deepcopy(self.parts.state_dict())
        return state if reached is None else {**state, "iterator": reached}

    def close(self) -> None:
        close = getattr(self.parts, "close", None)
        if close is not None:
            close()


class _InterleaveIterator(NodeIterator[R]):
    node: Interleaver[R]

    def __init__(self, node: Interleaver[R], context: Context) -> None:
        super().__init__(node, context, node.datapipe)
        self.fn = self.with_retries(node.fn)
        self.places: list[_Open | None] = [None] * node.cycle_length
        self.turn = 0
        self.in_block = 0
        self.opened = 0  # items of the input
        context.replays.append(self)

    @property
    def replayed(self) -> bool:
        return False  # what is made again draws from no global random state

    def to_replay(self) -> tuple[str, int]:
        replayed = (
            item.handed_out
            for item in self.places
            if item is not None and item.left is None and item.loaded is None and not is_stateful(item.parts)
        )
        return f"the iterators in {node_name(self.node)}", sum(replayed)

    def get_state(self) -> dict[str, Any]:
        return {
            "open": [None if item is None else item.state() for item in self.places],
            "turn": self.turn,
            "in_block": self.in_block,
            "opened": self.opened,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        node = self.node
        self.turn = stored_count(state, "turn", at_most=node.cycle_length - 1)
        self.in_block = stored_count(state, "in_block", at_most=node.block_length - 1)
        self.opened = stored_count(state, "opened")
        places = stored_items(state, "open", at_most=node.cycle_length)
        if len(places) != node.cycle_length:
            raise StateError(f"the state has {len(places)} places, this node {node.cycle_length}")
        self.places = [None if saved is None else self._stored(saved) for saved in places]
        if self.context.announces and self.to_replay()[1]:
            announce_replay(*self.to_replay())

    def _stored(self, saved: dict[str, Any]) -> _Open:
        if "left" in saved:
            return _Open(None, 0, left=stored_items(saved, "left"))
        made = _Open(saved["item"], stored_count(saved, "number"), stored_count(saved, "handed_out"))
        made.loaded = copy.deepcopy(saved.get("iterator"))
        return made

    def run(self) -> Iterator[R]:
        source = self.source.items()
        idle = 0  # places in a row at which there was nothing
        while idle < len(self.places):
            place = self.places[self.turn]
            if place is None:
                item = next(source, _END)
                if item is _END:
                    idle += 1
                    self._advance()
                    continue
                place = self.places[self.turn] = _Open(item, self.opened)
                self.opened += 1
                self._open(place, GlobalRandom.present())
            elif place.parts is None and place.left is None:
                self._open_again(place)
            part = self._next(place)
            if part is _END:
                place.close()
                self.places[self.turn] = None
                self._advance()
                continue
            idle = 0
            self.in_block += 1
            if self.in_block == self.node.block_length:
                self._advance()
            yield part

    def _advance(self) -> None:
        self.turn, self.in_block = (self.turn + 1) % len(self.places), 0

    def _next(self, place: _Open) -> Any:
        if place.left is not None:
            if place.handed_out == len(place.left):
                return _END
            part = place.left[place.handed_out]
        else:
            first = place.handed_out == 0 and not is_stateful(place.parts)
            before = GlobalRandom.present() if first else None
            part = next(place.parts, _END)
            if before is not None:
                self._check_draws(before, place.item)
        place.handed_out += 1
        return part

    def _open(self, place: _Open, before: GlobalRandom) -> None:
        result: Any = self.fn(place.item)
        if is_node(result):
            inner = self.context
            context = Context.for_graph(
                result,
                seed=derive_seed(*inner.stream_key(self.node), place.number),
                **{name: getattr(inner, name) for name in _INNER},
            )
            place.parts = context.iterate(result)
            return
        parts = positioned("interleave", result, self.fn)
        self._check_draws(before, place.item)
        if isinstance(parts, list):
            place.left = parts
        else:
            place.parts = parts

    def _open_again(self, place: _Open) -> None:
        """Go to where it stood. What is drawn meanwhile from the global random states is thrown away, and refused."""
        scratch = GlobalRandom(_SCRATCH)
        with scratch.installed():
            before = GlobalRandom.present()
            self._open(place, before)
            if place.left is not None:
                raise StateError(
                    f"{callable_name(self.fn)} made an iterator of {place.item!r:.80} when the state was saved, and "
                    "makes a container now: is it the same function?"
                )
            parts, loaded, place.loaded = place.parts, place.loaded, None
            if loaded is not None:
                if not is_stateful(parts):
                    raise StateError(
                        f"the state holds that of an iterator over {place.item!r:.80}, and {callable_name(self.fn)} "
                        f"made a {type(parts).__name__} of it, without load_state_dict(): is it the same function?"
                    )
                with refusing_misfits(f"the iterator in {node_name(self.node)}"):
                    parts.load_state_dict(loaded)
                return
            for done in range(0 if is_stateful(parts) else place.handed_out):
                if next(parts, _END) is _END:
                    raise StateError(
                        f"{place.item!r:.80} gave only {done} items, and had given {place.handed_out} when the state "
                        "was saved: is the data the same?"
                    )
            self._check_draws(before, place.item)

    def _check_draws(self, before: GlobalRandom, item: Any) -> None:
        if GlobalRandom.present().to_dict() != before.to_dict():
            raise GraphError(
                f"{callable_name(self.fn)} draws from the global random states for {item!r:.80}, and all that is open "
                "at once shares them: after a resume it could not draw the same. Use shuffle() and random_map() behind "
                "interleave(), or let it return a node, or an iterator with state_dict()"
            )

    def leave_out(self) -> bool:
        place = self.places[self.turn]
        if place is None:
            return False
        place.close()
        self.places[self.turn] = None
        self._advance()
        return True

    def close(self) -> None:
        super().close()
        for item in self.places:
            if item is not None:
                item.close()
        self.places = [None] * self.node.cycle_length
