"""The data that the iterators of one pass over a graph share.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from torchpipe.node.ownership import Keeper
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.randomness.seeds import StreamKey

if TYPE_CHECKING:
    from torchpipe.node.iterator import MayReplay

__all__ = ["GraphPass", "RandomBefore"]


@dataclass(eq=False)
class RandomBefore:
    """The global random states of the nodes before sharding points, by their numbers: alike in all shards.

    ``_waiting``: states that were loaded, of nodes that have not begun yet.
    """

    _begun: dict[int, GlobalRandom] = field(default_factory=dict)
    _waiting: dict[int, Any] = field(default_factory=dict)

    def of(self, number: int, key: StreamKey) -> GlobalRandom:
        """The states of one node, which begin by ``key``."""
        if number not in self._begun:
            self._begun[number] = GlobalRandom(key)
            if number in self._waiting:
                self._begun[number].load_state_dict(self._waiting.pop(number))
        return self._begun[number]

    def state(self) -> dict[int, Any]:
        """Plain data: None where nothing was drawn. Without those of nodes that are at work: theirs are in place."""
        waiting = {number: random for number, random in self._begun.items() if not random.entered}
        return self._waiting | {number: random.state_dict() for number, random in waiting.items()}

    def load(self, states: Mapping[int, Any]) -> None:
        """Put back what :meth:`state` gave. Raises: what code raises over what it cannot have given."""
        for number, random in self._begun.items():
            if not random.entered:
                random.load_state_dict(states.get(number))
        self._waiting = {number: state for number, state in states.items() if number not in self._begun}

    @contextmanager
    def going_on_from(self, states: Mapping[int, Any]) -> Iterator[None]:
        """Meanwhile, these nodes draw as from ``states``; then as if that had not been."""
        present = self.state()
        self.load(states)
        try:
            yield
        finally:
            self.load(present)


@dataclass(eq=False)
class GraphPass:
    """The data that the iterators of one pass share."""

    assumed: Mapping[int, Any] = field(
        default_factory=dict
    )  # node_id -> assumption(), of what is replayed from its start
    # By their ids, those that may make items again: it does not hold them, so that one which nobody has ends at once
    replays: WeakValueDictionary[int, MayReplay[Any]] = field(default_factory=WeakValueDictionary)
    restoring: list[object] = field(default_factory=list)  # not empty while items are made again
    noting: int = 0  # above 0 while a state is taken that is kept as it is while the pass goes on
    keepers: list[Keeper] = field(default_factory=list)  # in strict mode
    lent: bool = False  # has one been taken? Then items that it holds are handed out as copies
    skipping: set[str] = field(default_factory=set)  # the nodes that have left something out, by their names
    random: RandomBefore = field(default_factory=RandomBefore)
    passes: dict[Any, Any] = field(default_factory=dict)  # those that several iterators read, of whoever shares them
    _gathered: dict[int, dict[Any, set[int]]] = field(default_factory=dict)  # thread -> whom it asked for a state
    _loading: dict[int, list[Callable[[], object]]] = field(default_factory=dict)  # thread -> what follows its load

    def replaying(self) -> list[MayReplay[Any]]:
        """The present passes that may make items again to resume: other threads open and close some meanwhile."""
        return [item for reference in self.replays.valuerefs() if (item := reference()) is not None]

    @contextmanager
    def loading(self) -> Iterator[list[Callable[[], object]]]:
        """Meanwhile, this thread loads states of several iterators. What is in the list is called when all have theirs:
        to pull from one of them may start what they share, the shards of all branches say, where each stands then.
        """
        thread = threading.get_ident()
        if thread in self._loading:
            yield self._loading[thread]
            return
        following = self._loading[thread] = []
        try:
            yield following
        finally:
            del self._loading[thread]
        for call in following:
            call()

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Meanwhile, this thread takes one state of several iterators, at one moment: what they share is in it once."""
        thread = threading.get_ident()
        if thread in self._gathered:
            yield
            return
        gathered = self._gathered[thread] = {}
        try:
            yield
        finally:
            del self._gathered[thread]
        for shared, readers in gathered.items():
            shared.gathered(readers)

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Meanwhile, a state is taken that holds the items of buffers themselves: whoever keeps some hands out copies
        from now on. So a state for each item does not cost a copy of all buffers.
        """
        self.noting += 1
        self.lent = True
        try:
            yield
        finally:
            self.noting -= 1

    def gather(self, shared: Any, reader: int) -> bool:
        """``reader`` of the pass ``shared`` is asked for its state: is that of ``shared`` gathered already?"""
        gathered = self._gathered.get(threading.get_ident())
        if gathered is None:
            return False
        before = shared in gathered
        gathered.setdefault(shared, set()).add(reader)
        return before

    def torn(self) -> str:
        """The name of a shared pass whose readers' states, in the state taken last, are of different moments; or ""."""
        return next((name for item in self.passes.values() if (name := item.torn())), "")
