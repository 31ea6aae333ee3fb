"""The iterator of nodes that make many items of one: ``flatmap``, archives.

If the parts of an item are a list, what is left of it is the state. If they come one by one from an iterator, the
state is the position *before* the item was pulled and where the iterator stands: its own state, if it has one, else the
number of parts handed out. Resuming pulls the item again and goes there; parts that have to be made again for that and
dropped are announced. So an open file as an item does not matter, and no part is stored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.node.context import Context
from torchpipe.node.iterator import MayReplay, NodeIterator, is_stateful, refusing_misfits, stored_count, stored_items
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.randomness.global_random import GlobalRandom, RandomStates
from torchpipe.state.copying import copy_item, separated

__all__ = ["ExpandingIterator"]

T = TypeVar("T")

_END = object()


@dataclass
class _Start:
    """The position before an item: what the state says of inputs and functions, and the global random states."""

    state: dict[str, Any]
    random: RandomStates
    before: dict[int, Any]  # those of what stands before sharding points


class ExpandingIterator(MayReplay[T]):
    """One pass over a node that expands each item of its only input; define :meth:`expand`.

    A function whose results are lists for some items and iterators for others cannot be saved within the first iterator
    after a list: noting the position before every item would cost too much where lists are the rule.
    """

    keeps_items = True
    users_parts = False  # True if a function of the user's makes the parts, which may share something, or keep it

    def __init__(self, node: DataPipe, context: Context, datapipe: DataPipe) -> None:
        super().__init__(node, context)
        self.inputs = (replace(context, lends=True).iterate(datapipe),)
        self._parts: list[T] = []
        self._handed_out = 0  # of the parts of the current item
        self._lazy = True  # may the next item's parts come from an iterator? Judged by the last item
        self._within = False  # the current item's parts come from an iterator
        self._start: _Start | None = None  # of the current item, if it was noted
        self._refused = ""  # why it was not
        self._current: Any = None  # the iterator of its parts
        self._number = 0  # items of the input that were pulled
        self._loaded: Any = None  # that iterator's state, before there is one

    @abstractmethod
    def expand(self, item: Any) -> Iterable[T]:
        """The parts of ``item``: a list if they are all there already, else an iterator."""

    def get_state(self) -> dict[str, Any]:
        if not self._within:
            return {"left": self.kept_items(self._parts[self._handed_out :]), "number": self._number}
        if self._start is None:
            raise StateError(
                self._refused
                or f"{node_name(self.node)} made a list of the item before and an iterator of this one, within which "
                "no state can be taken: make the same of all items, or take the state later"
            )
        state = {"handed_out": self._handed_out, "number": self._number, "random": self._start.random.to_dict()}
        state |= {"before": self._start.before} if self._start.before else {}
        reached = copy_item(self._current.state_dict()) if is_stateful(self._current) else self._loaded
        return state if reached is None else {**state, "iterator": reached}

    def to_replay(self) -> tuple[str, int]:
        stands = self._loaded is not None or is_stateful(self._current)
        return f"the iterator in {node_name(self.node)}", self._handed_out if self._within and not stands else 0

    def state_dict(self) -> dict[str, Any]:
        if not self._within or self._start is None or not self._start.state:  # loaded, and not pulled again
            return super().state_dict()
        own = self.get_state() | self.pass_engine.ended()
        return own | self._start.state  # the inputs as they are now are not asked

    def set_state(self, state: dict[str, Any]) -> None:
        self._within = "handed_out" in state
        self._number = stored_count(state, "number")
        if self._within:
            self._handed_out = stored_count(state, "handed_out")
            before = dict(state.get("before", {}))
            for drawn in before.values():
                if drawn is not None:
                    RandomStates.from_dict(drawn)  # complains of all that would fail when an item is made again
            self._start = _Start({}, RandomStates.from_dict(state["random"]), before)
            self._loaded = copy_item(state.get("iterator"))
        else:
            self._parts = stored_items(state, "left")

    def run(self) -> Iterator[T]:
        source = self.source.items()
        if self._within:
            yield from self._hand_out(self._pull_again(source))
        yield from self._hand_out(self._parts)
        while True:
            self._start = self._note(RandomStates.now()) if self._lazy else None
            item = next(source, _END)
            if item is _END:
                return
            self._number += 1
            parts = self.expand(item)
            if isinstance(parts, list):
                self._parts = parts = separated(parts) if self.users_parts else parts
                self._lazy = False
            else:
                self._lazy = self._within = True
                self._current = parts
            yield from self._hand_out(parts)

    def _hand_out(self, parts: Iterable[T]) -> Iterator[T]:
        copies = self._within and self.users_parts
        for part in parts:
            self._handed_out += 1
            yield copy_item(part) if copies else part
        self._leave()

    def _leave(self) -> None:
        """The current item has given all its parts."""
        if isinstance(self._current, NodeIterator):
            self.end_pass(self._current)
        self._parts = []
        self._handed_out = 0
        self._within = False
        self._current = None

    def leave_out(self) -> bool:
        self._leave()
        self._loaded = None
        return True

    def _note(self, random: RandomStates) -> _Start | None:
        """The position now; None if no state can be taken here: an error only for the caller that asks for one."""
        try:
            with self.context.shared.lending():
                state = super().state_dict()
        except StateError as error:
            self._refused = str(error)
            return None
        self._refused = ""
        kept: dict[str, Any] = {key: state[key] for key in ("inputs", "functions") if key in state}
        return _Start(kept, random, self.context.shared.random.state())

    def _pull_again(self, source: Iterator[Any]) -> Iterator[T]:
        """The parts, after those handed out before, of the item that was current when the state was taken.

        Whatever makes the item and its parts sees the global random states that it saw the first time; afterwards those
        in place now are put back.
        """
        random = RandomStates.now() if self._start is None else self._start.random
        before = self.context.shared.random.state() if self._start is None else self._start.before
        self._start = self._note(random)
        if self._start is not None:
            self._start.before = before
        with self.context.making_again(), self.context.shared.random.going_on_from(before), GlobalRandom.at(random):
            item = next(source, _END)
            parts = iter(() if item is _END else self.expand(item))
            if self._loaded is not None:
                if not is_stateful(parts):
                    raise StateError(
                        f"{node_name(self.node)} saved the state of an iterator, and now made a {type(parts).__name__} "
                        "without load_state_dict() of the same item: is it the same function?"
                    )
                with refusing_misfits(f"the iterator in {node_name(self.node)}"):
                    parts.load_state_dict(self._loaded)  # type: ignore[attr-defined]
            for done in range(0 if self._loaded is not None else self._handed_out):
                if next(parts, _END) is _END:
                    raise StateError(
                        f"{node_name(self.node)} made only {done} parts of an item that had given {self._handed_out} "
                        "when the state was saved: is the data the same, does the function depend on its input alone?"
                    )
        self._current, self._loaded = parts, None
        return parts
