"""The engine's side of a pass over a node, in one attribute of the iterator that the node's author writes.

Runs in every process that executes a part of a graph. It does not hold that iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.node.ownership import Keeper
from torchpipe.node.traits import node_name
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.state.copying import copy_item
from torchpipe.state.left_out import LEFT_OUT, gathered, is_note
from torchpipe.stats.tracing import UNTIMED

if TYPE_CHECKING:
    from torchpipe.node.context import Context
    from torchpipe.node.traits import DataPipe

__all__ = ["ENDED", "Drawing", "PassEngine"]

F = TypeVar("F")
T_co = TypeVar("T_co", covariant=True)

ENDED = "torchpipe.ended"  # in a state: what was left out in passes that are over


class PassEngine:
    """The engine's notes of one pass over ``node``.

    ``functions``: copies, made for this pass, of the node's functions that have state, and are saved with it.
    ``random``: the global random states that its code, and what is before it, draws from; None for what is in place.
    ``kinds``: those of what ``saved`` names, as the pass begins. ``keeper``: in strict mode, the one that looks after
    the items which this pass keeps; ``consumer``: that of the node which pulls from this one. ``last``: the item handed
    out last, where ``on_error`` watches.
    """

    def __init__(self, node: DataPipe, context: Context, *, has_position: bool) -> None:
        self.node = node
        self.context = context
        self.has_position = has_position  # there is something to save besides the inputs
        self.stream: Iterator[Any] | None = None
        self.is_closed = False
        self.functions: list[Any] = []
        self.saves_functions: Callable[[dict[str, Any]], bool] = lambda state: True  # in a state of this kind
        self.random: GlobalRandom | None = None
        self.kinds: Mapping[str, type] | None = None
        self.keeper: Keeper | None = None
        self.consumer: Keeper | None = None
        self.last: Any = None
        self._ended: dict[str, Any] = {}  # what was left out in passes that this one has begun, and that are over

    @property
    def is_begun(self) -> bool:
        """True once the stream has been asked for."""
        return self.stream is not None

    def end_stream(self) -> Iterator[Any] | None:
        """From now on the stream gives nothing more; returns what it was."""
        self.is_closed = True
        stream, self.stream = self.stream, iter(())
        return stream

    def check_unstarted(self) -> None:
        """Raises: StateError once the stream has been asked for, or is closed."""
        if self.is_begun or self.is_closed:
            raise StateError(
                f"{node_name(self.node)} has already started: load a state into a new iterator, before its first item"
            )

    def drawing(self, fn: Callable[..., F]) -> Callable[..., F]:
        """``fn``, called with the global random states in place that this pass draws from."""
        random = self.random
        return fn if random is None else lambda *args: random.within(partial(fn, *args))

    def number_to_trace(self, untimed: bool) -> int:
        """The number of the node in a trace; ``untimed`` if what the pass does is the work of others."""
        return UNTIMED if untimed else self.context.node_id(self.node)

    def image(self, value: Any) -> Any:
        """A part of a state, which stays as it is while the pass goes on."""
        return value if self.context.host.encodes and not self.context.shared.noting else copy_item(value)

    # --- what was left out in passes that are over

    def note_ended(self, inner: Any) -> None:
        """``inner``, a pass that this one has begun, is over: what was left out in it stays in this state."""
        shared, of_inner = self.context.shared, inner.context.shared
        if shared.skipping or of_inner.skipping:
            with suppress(StateError):  # after an error there may be none
                note = gathered([inner.state_dict(), self._ended])
                self._ended = {LEFT_OUT: note} if note["count"] else {}
                shared.skipping |= of_inner.skipping

    def ended(self) -> dict[str, Any]:
        """The entry in the state for these."""
        return {ENDED: {key: gathered([self._ended]) for key in self._ended}} if self._ended else {}

    def load_ended(self, state: dict[str, Any]) -> None:
        """Take over that entry of ``state``, if there is one. Raises: StateError."""
        if ENDED not in state:
            return
        note = state[ENDED]
        if not isinstance(note, dict) or note.keys() != {LEFT_OUT} or not is_note(note[LEFT_OUT]):
            raise StateError(f"what was left out in passes that are over is a count and texts, not {note!r:.60}")
        self._ended = {LEFT_OUT: gathered([note])}
        self.context.shared.skipping.update(entry[0] for entry in note[LEFT_OUT]["noted"])


class Drawing(Iterator[T_co]):
    """A stream, each item of which is made with a set of global random states in place. Goes on after exceptions."""

    def __init__(self, stream: Iterator[T_co], random: GlobalRandom) -> None:
        self._stream = stream
        self._random = random

    def __next__(self) -> T_co:
        return self._random.within(self._stream.__next__)

    def close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            self._random.within(close)
