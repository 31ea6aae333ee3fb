"""The iterator contract: what ``iter(node)`` returns and what a node's author writes.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import DataChunk
from torchpipe.errors import MISFITS, StateError, TorchpipeError, add_note
from torchpipe.node.ends import stream_of
from torchpipe.node.ownership import Keeper, watched
from torchpipe.node.traits import is_ours, node_name, traits_of
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.state import Cursor, decode
from torchpipe.state.copying import copy_item, copy_items, holds_mutable
from torchpipe.state.left_out import LEFT_OUT, gathered, is_note
from torchpipe.stats.tracing import UNTIMED

if TYPE_CHECKING:
    from torchpipe.node.context import Context
    from torchpipe.node.traits import DataPipe

_MOST = 1 << 62
_ENDED = "torchpipe.ended"  # in a state: what was left out in passes that are over
_FAMILIES = (list, tuple, dict, set, frozenset, deque, np.ndarray, torch.Tensor)
__all__ = [
    "NodeIterator",
    "Positions",
    "has_become_shorter",
    "is_stateful",
    "refuse_taken_attributes",
    "refuse_taken_names",
    "refusing_misfits",
    "stored_count",
    "stored_items",
]

T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F")


def is_stateful(value: object) -> bool:
    """True if ``value`` has a state of its own: ``state_dict`` and ``load_state_dict``.

    A module of torch's has both, for its weights, which no pass changes: it counts only if its class says what else
    there is to save (``get_extra_state``, or a ``state_dict`` of its own).
    """
    if isinstance(value, torch.nn.Module) and not _says_its_state(type(value)):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _says_its_state(kind: type) -> bool:
    return any(getattr(kind, name) is not getattr(torch.nn.Module, name) for name in ("state_dict", "get_extra_state"))


def has_become_shorter(done: int, count: int) -> StateError:
    """The error for a stream that ends while the items before a position are made again."""
    return StateError(
        f"the stream ended after {done} of {count} items that the state says were delivered: has the data become "
        "shorter, or does a function not depend on its input alone?"
    )


def stored_count(state: Mapping[str, Any], name: str, at_most: int | None = None) -> int:
    """``state[name]``, a number of items. Raises: StateError unless it is an int from 0 to ``at_most`` (2**62)."""
    value = state.get(name)
    if type(value) is not int or not 0 <= value <= (_MOST if at_most is None else at_most):
        limit = "" if at_most is None else f", and at most {at_most}"
        raise StateError(f"the state has {name}={value!r:.40}, which must be a whole number from 0 on{limit}")
    return value


def stored_items(state: Mapping[str, Any], name: str, at_most: int | None = None) -> list[Any]:
    """``state[name]``, items that are held, as copies: the state stays as it is.

    Raises: StateError if it is no list or too long.
    """
    value = state.get(name)
    if type(value) is not list or (at_most is not None and len(value) > at_most):
        held = f"{len(value)} items" if type(value) is list else f"a {type(value).__name__}"
        most = "" if at_most is None else f" of at most {at_most}"
        raise StateError(f"the state has {held} as {name}, which must be a list{most}")
    return copy_items(value)


def _family(value: object) -> type:
    """The type that a value of ``saved`` keeps during a pass: a number may become any other, a list any other list."""
    if isinstance(value, str | bytes):
        return str if isinstance(value, str) else bytes
    if isinstance(value, Number | np.generic) or (isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0):
        return Number
    return next((kind for kind in _FAMILIES if isinstance(value, kind)), type(value))


@contextmanager
def refusing_misfits(what: str) -> Iterator[None]:
    """Raise a StateError that names ``what`` in the place of errors over a state that is another's; a StateError of the
    library's own gets a note that names the owner of the state, and what to do.
    """
    try:
        yield
    except StateError as error:
        if type(error) is StateError and not hasattr(error, "__notes__"):
            add_note(
                error,
                f"torchpipe: raised while {what} loaded its state. Unless the data have changed, it is damaged or was "
                "saved with another graph: use an older checkpoint, or build the graph as it was",
            )
        raise
    except MISFITS as error:
        if isinstance(error, TorchpipeError):
            raise
        raise StateError(
            f"the state does not fit {what} ({type(error).__name__}: {error}): is it damaged, or another node's?"
        ) from error


class NodeIterator(Iterator[T_co], ABC, Generic[T_co]):
    """One pass over a node: it holds all the state there is, and can save and load it.

    A node's author writes :meth:`run`, a generator that goes on from the attributes of ``self``, and names these in
    ``saved``. The one rule: at every ``yield`` the attributes say all that is needed to go on after that item, and no
    more has been pulled from the inputs than the items yielded need.

    State: plain data that describes the items handed out so far, including the state of all inputs; an independent
    copy, valid while the iterator goes on. Saving and loading is exact at every position: before the first item,
    after the last, and straight after loading. Not thread-safe. After an exception the state is exact only if
    ``exact_after_error`` says so; a loader's is, whatever its nodes say.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    """The attributes that say where the pass stands: numbers, texts, lists, dicts, other plain data, or objects that
    have ``state_dict`` and ``load_state_dict``. Each pass begins with copies of what the class gives them. A value may
    change, but not its kind: a number stays a number, a list a list; what begins as None may become anything. What else
    there is to save, or to check, is for :meth:`get_state` and :meth:`set_state`.
    """

    keeps_items = False
    """True if this pass keeps items of its inputs beyond one ``yield``, in buffers that it hands out later. May be a
    property. Its :meth:`get_state` then saves them by :meth:`kept_items`, and the strict mode looks after them.
    """

    exact_after_error = False  # may be a property
    _torchpipe_last: Any = None  # handed out, where ``on_error`` watches
    untimed = False  # True if what it does is the work of others: waiting for a thread, or for processes

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises: TypeError for what would break the pass: the name of a method that authors do not define, a value
        where the method of an author is expected, or a ``saved`` that is no tuple of names.
        """
        super().__init_subclass__(**options)
        refuse_taken_names(cls)

    def __init__(self, node: DataPipe, context: Context, *inputs: DataPipe) -> None:
        self.node = node
        self.context = context
        within = context if len(inputs) < 2 else context.for_inputs_of(node)
        self.inputs: tuple[NodeIterator[Any], ...] = tuple(within.iterate(item) for item in inputs)
        self.__functions: list[Any] = []
        self.__stream: Iterator[T_co] | None = None
        self.__closed = False
        self.__keeper: Keeper | None = None
        self.__consumer: Keeper | None = None  # of the node that pulls from this one
        self.__random: GlobalRandom | None = None  # that its code, and what is before it, draws from
        self.__ended: dict[str, Any] = {}  # what was left out in passes that this one has begun, and that are over
        self.__kinds: dict[str, type] | None = None  # of what ``saved`` names, as a pass begins with it
        for name in self.saved:
            default = getattr(type(self), name, NodeIterator)
            if not hasattr(default, "__get__") and default is not NodeIterator:
                copied = copy.deepcopy(default) if is_stateful(default) else copy_item(default)
                setattr(self, name, copied)  # a pass that changes it must not change others

    @abstractmethod
    def run(self) -> Iterator[T_co]:
        """Yield the items from the position that the attributes of ``self`` describe.

        Called once, and once more each time that :meth:`leave_out` has returned True.
        """

    def get_state(self) -> dict[str, Any]:
        """This iterator's own position as plain data, without its inputs; copies of buffers, not the buffers.

        Raises: StateError if what ``saved`` names is of another kind than at the start of the pass: it would not load.
        """
        state = {}
        for name in self.saved:
            value = getattr(self, name)
            began_as = _family(value) if self.__kinds is None else self.__kinds[name]
            if value is not None and not is_stateful(value) and _family(value) != began_as is not type(None):
                raise StateError(
                    f"{node_name(self.node)} saves {name}, which begins as a {began_as.__name__} and now is "
                    f"{value!r:.40}, a {type(value).__name__}, so that the state would not load: keep to one kind, or "
                    "let it begin as None"
                )
            state[name] = self._image(value.state_dict() if is_stateful(value) else value)
        return state

    def kept_items(self, items: Iterable[Any]) -> list[Any]:
        """For :meth:`get_state`: items that this pass holds, as they are now, whoever changes them later.

        They are copies, unless the state is encoded before anything else happens, or these items will be handed out as
        copies.
        """
        host, shared = self.context.host, self.context.shared
        kept = list(items)
        if host.strict:
            self._check_kept(kept)
        return kept if shared.noting or host.encodes else copy_items(kept)

    def _check_kept(self, items: list[Any]) -> None:
        if self.keeper is not None:
            for item in items:
                self.keeper.saved(item)
        elif holds_mutable(items):
            raise TypeError(
                f"{type(self).__name__} saves items that it keeps: let it say so, keeps_items = True, so that these "
                "can be looked after"
            )

    @property
    def keeper(self) -> Keeper | None:
        """The keeper that looks after the items which this pass keeps, in strict mode."""
        if self.__keeper is None and self.keeps_items and self.context.host.strict:
            self.__keeper = Keeper(self.node, on=self._has_position)
            self.context.shared.keepers.append(self.__keeper)
        return self.__keeper

    def watch_inputs(self) -> None:
        """In strict mode, let items of the inputs be taken down as they come. Called before any is pulled."""
        if self.keeper is not None:
            for item in self.inputs:
                item.__consumer = self.keeper

    def _image(self, value: Any) -> Any:
        """A part of a state, which stays as it is while the pass goes on."""
        return value if self.context.host.encodes and not self.context.shared.noting else copy_item(value)

    def _note_kinds(self) -> None:
        """Called once, before a state is loaded or the first item is pulled."""
        if self.__kinds is not None:
            return
        for name in self.saved:
            if not hasattr(self, name):
                raise AttributeError(
                    f"{type(self).__name__}.saved names {name!r}, which the iterator does not have: give it a value in "
                    "the class, or in __init__()"
                )
        self.__kinds = {name: _family(getattr(self, name)) for name in self.saved}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take the position that :meth:`get_state` described. Called before :meth:`run`, and before the inputs load.

        Of what ``saved`` names, a value is of the kind that it replaces. Raises: StateError.
        """
        self._note_kinds()
        for name in self.saved:
            present, value = getattr(self, name), state[name]
            if is_stateful(present):
                present.load_state_dict(copy_item(value))
            elif present is None or value is None or _family(value) == _family(present):
                setattr(self, name, copy_item(value))
            else:
                kind = type(present).__name__
                raise StateError(f"the state has {name}={value!r:.40}, which must be of type {kind}")

    def take_over(self, functions: Sequence[Any]) -> None:
        """Save these with the iterator: copies, made for this pass, of the node's functions that have state."""
        self.__functions += functions

    def _saves_functions(self, state: dict[str, Any]) -> bool:
        """True if :meth:`get_state`, which gave ``state``, says nothing of what the node's functions remember."""
        return True

    def with_retries(self, fn: F) -> F:
        """``fn``, a function of the user's or one that reads, such that it is called again as ``retry`` says."""
        retries, host = self.context.retries, self.context.host
        called: Any = fn if retries is None else retries.around(fn)  # type: ignore[arg-type]
        if host.strict:
            called = watched(fn, called, self.node, self.keeper, self.context.shared.keepers)
        return called  # type: ignore[no-any-return]

    def leave_out(self) -> bool:
        """An exception has ended :meth:`run`, and was raised by this node's own code: forget the item in hand.

        Returns True if :meth:`run` can be called again, and goes on with the next item. Where an author does not say
        so, ``on_error`` can leave nothing out.
        """
        return False

    def lost(self, of_input: bool) -> int | None:
        """Leave out an item, as :meth:`leave_out`, where items are paired with those of others by position: the number
        of items of this stream that went with the exception; None where that cannot be told, or it does not go on.

        ``of_input``: one item of its input went, and the exception passed through here. By default one, if the node is
        a source or ``one_to_one``, and :meth:`leave_out` says so. 0 leaves the positions of the stream as they are.
        """
        exact = traits_of(self.node).one_to_one or not (self.inputs or of_input)
        return 1 if exact and self.leave_out() else None

    def items_in_hand(self, of_input: bool) -> int:
        """The number of items that go with the exception which has ended :meth:`run`: more than one where several are
        worked on at once, as those of a batch (``DataChunk``) are. Asked before :meth:`leave_out`; where an exception
        passes through (``of_input``), after :meth:`lost`.
        """
        item = None if of_input else self.current()
        return max(1, len(item)) if isinstance(item, DataChunk) else 1

    def current(self) -> object:
        """The object that is being worked on, as ``on_error`` notes it when :meth:`run` raises: by default the item
        that the first input handed out last.
        """
        return self._last_of(0) if self.inputs else None

    def _last_of(self, number: int) -> object:
        """The item that input ``number`` has handed out last, where ``on_error`` watches."""
        return self.inputs[number]._torchpipe_last

    def stride(self, parts: int, part: int) -> bool:
        """Yield only items ``part``, ``part + parts`` ... of the whole stream, if this can be done without making the
        others; else False, and nothing changes. Called before anything is loaded or yielded.

        An iterator that can has an attribute ``position``: the number of items up to the last one yielded, those left
        out included.
        """
        return False

    @property
    def positional(self) -> bool:
        """True if this iterator can yield positions instead of items, from which its items can be made later."""
        return False

    def by_position(self) -> Positions:
        """Yield positions from now on; returns how to make items of them. Called before anything is loaded or yielded,
        and only if :attr:`positional`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not yield positions")

    def give_keys(self) -> None:
        """Yield the keys, or indices, of items in their place, where a source has any. Called before anything else."""

    @property
    def source(self) -> NodeIterator[Any]:
        """The iterator of the first input."""
        return self.inputs[0]

    def items(self) -> Iterator[T_co]:
        """The stream itself, the quickest way to pull items; pulling from it advances this iterator."""
        if self.__stream is None:
            if self.__closed:
                return iter(())
            failures = self.context.failures
            self._note_kinds()
            if failures is None or not failures.travels:
                stream = self._kept_safe(self._run() if failures is None else failures.watch(self, self._run))
                self.__stream = self._traced(stream)
            else:  # which begins what it watches anew after an exception
                self.__stream = failures.watch(self, lambda: self._traced(self._kept_safe(self._run())))
            if self.__random is not None:
                self.__stream = _Drawing(self.__stream, self.__random)
        return self.__stream

    def draw_from(self, random: GlobalRandom) -> None:
        """Let the code of this pass draw from ``random``, not from what is in place. Called before anything else."""
        self.__random = random

    def draw_from_process(self) -> None:
        """Let the code of this pass draw from what is in place, and that of the passes whose positions it hands on:
        they make the items of their shard alone. Called before anything is loaded or yielded.
        """
        self.__random = None
        for item in self.inputs:
            if item.positional:
                item.draw_from_process()

    def drawing(self, fn: Callable[..., F]) -> Callable[..., F]:
        """``fn``, called with the global random states in place that this pass draws from."""
        random = self.__random
        return fn if random is None else lambda *args: random.within(partial(fn, *args))

    def divide(self, parts: int, part: int) -> bool:
        """Divide the stream by :meth:`stride`, which an author writes."""
        strides = self.stride(parts, part)
        if strides:
            self.__random = None
        return strides

    def _run(self) -> Iterator[T_co]:
        return stream_of(self.run())

    def _traced(self, stream: Iterator[T_co]) -> Iterator[T_co]:
        trace = self.context.host.trace
        return stream if trace is None else trace.watch(stream, self.number_to_trace)

    @property
    def is_begun(self) -> bool:
        """True once the stream has been asked for."""
        return self.__stream is not None

    @property
    def is_closed(self) -> bool:
        return self.__closed

    def _kept_safe(self, stream: Iterator[T_co]) -> Iterator[T_co]:
        """``stream`` such that states that are noted stay true; and looked after, in strict mode."""
        if self.context.lends and self.keeps_items and type(self).get_state is not NodeIterator.get_state:
            stream = self._lent(stream)
        if not self.context.host.strict:
            return stream
        self.watch_inputs()
        if self.keeper is not None:
            stream = self.keeper.going(stream)
        return stream if self.__consumer is None else self.__consumer.coming(stream)

    def _lent(self, stream: Iterator[T_co]) -> Iterator[T_co]:
        """Copies of the items, once a state holds some of them themselves."""
        shared = self.context.shared
        for item in stream:
            held = [copy_item(item) if shared.lent else item]
            del item  # the consumer alone decides how long an item lives
            yield held.pop()

    @property
    def number_to_trace(self) -> int:
        """The number of this iterator's node in a trace."""
        return UNTIMED if self.untimed else self.context.node_id(self.node)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        return next(self.__stream or self.items())

    def state_dict(self) -> dict[str, Any]:
        state = self.get_state()
        if self.__functions and self._saves_functions(state):
            state["functions"] = [self._image(fn.state_dict()) for fn in self.__functions]
        if len(self.inputs) > 1 and self.context.shared.passes:
            with self.context.shared.gathering():
                state["inputs"] = [item.state_dict() for item in self.inputs]
        elif self.inputs:
            state["inputs"] = [item.state_dict() for item in self.inputs]
        return state | self.state_of_ended()

    def state_of_ended(self) -> dict[str, Any]:
        """The entry in the state for passes that :meth:`end_pass` has ended."""
        return {_ENDED: {key: gathered([self.__ended]) for key in self.__ended}} if self.__ended else {}

    def end_pass(self, inner: Any) -> None:
        """Close ``inner``, a pass that this one has begun and is done with: what ``on_error`` has left out in it stays
        in the state of this one.
        """
        if isinstance(inner, NodeIterator) and (self.context.shared.skipping or inner.context.shared.skipping):
            with suppress(StateError):  # after an error there may be none
                note = gathered([inner.state_dict(), self.__ended])
                self.__ended = {LEFT_OUT: note} if note["count"] else {}
                self.context.shared.skipping |= inner.context.shared.skipping
        close = getattr(inner, "close", None)
        if close is not None:
            close()

    def state_later(self) -> Callable[[], dict[str, Any]] | None:
        """A function that gives later the state of now; None if noting that costs as much as :meth:`state_dict`.

        Called between two items, by their consumer.
        """
        if self._has_position or self.__functions or not self.inputs:
            return None
        marks = [mark for item in self.inputs if (mark := item.state_later()) is not None]
        return (lambda: {"inputs": [mark() for mark in marks]}) if len(marks) == len(self.inputs) else None

    @property
    def _has_position(self) -> bool:
        """True if there is something to save besides the inputs."""
        kind = type(self)
        inherits = kind.state_dict is NodeIterator.state_dict and kind.get_state is NodeIterator.get_state
        return bool(self.saved) or not inherits

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position that ``state`` describes; only before the first item.

        A state may also be a cursor, whose items are then dropped here, once all that are loaded with it have their
        positions. Raises: StateError when the iterator has started or the state is another node's.
        """
        self._check_unstarted()
        cursor = Cursor.from_state(state)
        with self.context.shared.loading() as following:
            if cursor is not None:
                if cursor.snapshot is not None:
                    self.load_state_dict(decode(cursor.snapshot, allow_pickle=self.context.host.allow_pickle))
                following.append(partial(self.drop, cursor.skip))
                return
            with refusing_misfits(node_name(self.node)):
                inner = self.drawing(self._load_own)(state)  # which may run code of the user's
            for item, value in zip(self.inputs, inner):
                item.load_state_dict(value)

    def _check_unstarted(self) -> None:
        if self.__stream is not None or self.__closed:
            raise StateError(
                f"{type(self).__name__} has already started: load a state into a new iterator, before its first item"
            )

    def _load_own(self, state: dict[str, Any]) -> list[Any]:
        """Load all but the inputs, whose states are returned."""
        if not isinstance(state, dict):
            raise TypeError(f"it is {type(state).__name__}, not a dict")
        inner, functions = state.get("inputs", []), state.get("functions", [])
        if not isinstance(inner, list) or not isinstance(functions, list):
            raise TypeError("its inputs and functions are no lists")
        self.set_state(state)
        self._load_ended(state)
        own = self.__functions if self._saves_functions(state) else []
        if len(inner) != len(self.inputs) or len(functions) != len(own):
            raise StateError(
                f"the state has {len(inner)} inputs and {len(functions)} stateful functions, "
                f"{node_name(self.node)} has {len(self.inputs)} and {len(own)}"
            )
        for fn, value in zip(own, functions):
            fn.load_state_dict(copy_item(value))
        return inner

    def _load_ended(self, state: dict[str, Any]) -> None:
        if _ENDED not in state:
            return
        note = state[_ENDED]
        if not isinstance(note, dict) or note.keys() != {LEFT_OUT} or not is_note(note[LEFT_OUT]):
            raise StateError(f"what was left out in passes that are over is a count and texts, not {note!r:.60}")
        self.__ended = {LEFT_OUT: gathered([note])}
        self.context.shared.skipping.update(entry[0] for entry in note[LEFT_OUT]["noted"])

    def drop(self, count: int) -> Any:
        """Pull ``count`` items and forget them, but for the last one, which is returned.

        Raises: StateError if the stream ends before.
        """
        stream, last = self.items() if count else iter(()), None
        on_again = self.context.host.on_again
        with self.context.making_again():
            for done in range(count):
                if (last := next(stream, self)) is self:
                    raise has_become_shorter(done, count)
                if on_again is not None:
                    on_again()
        return last

    def interrupt(self) -> None:
        """Wake whoever waits for this iterator's inputs in another thread; the pass is then over. Thread-safe."""
        for item in self.inputs:
            item.interrupt()

    def close(self) -> None:
        """End this pass and let go of everything it holds: files, threads, inputs. Idempotent."""
        if self.__closed:
            return
        stream = self._end_stream()
        replays: list[Any] = self.context.shared.replays
        if self in replays:
            replays.remove(self)
        with ExitStack() as stack:  # all is closed, whatever a part of it raises
            for item in reversed(self.inputs):
                stack.callback(item.close)
            close = getattr(stream, "close", None)
            if close is not None:
                stack.callback(close)

    def _end_stream(self) -> Iterator[T_co] | None:
        """From now on the stream gives nothing more; returns what it was."""
        self.__closed = True
        stream, self.__stream = self.__stream, iter(())
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Drawing(Iterator[T_co]):
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


_OF_AUTHORS = frozenset(
    {
        "by_position",
        "close",
        "current",
        "exact_after_error",
        "get_state",
        "items_in_hand",
        "interrupt",
        "keeps_items",
        "leave_out",
        "lost",
    }
    | {"load_state_dict", "positional", "run", "saved", "set_state", "state_dict", "stride"}
)  # what a class may define anew; the rest of NodeIterator is the engine's
_OF_PASSES = frozenset({"node", "context", "inputs"})
_OF_STATES = frozenset({"functions", _ENDED})  # keys that the engine adds to what ``saved`` names


def refuse_taken_names(cls: type[NodeIterator[Any]]) -> None:
    """Raises: TypeError if a class of the user's takes a name that the engine uses for something else."""
    saved: object = cls.saved
    if isinstance(saved, str):
        raise TypeError(
            f"{cls.__name__}.saved is the text {saved!r}, and names belong in a tuple: saved = ({saved!r},)"
        )
    if is_ours(cls.__module__):
        return
    for name in sorted({*vars(cls), *cls.saved}):
        if name.startswith("__") and name.endswith("__"):
            continue
        present = getattr(NodeIterator, name, None)
        engines = name in _OF_PASSES or (hasattr(NodeIterator, name) and name not in _OF_AUTHORS)
        is_value = callable(present) and not callable(getattr(cls, name))
        if engines or is_value or (name in cls.saved and name in _OF_AUTHORS | _OF_STATES):
            raise TypeError(
                f"{cls.__name__} has an attribute {name!r}, which every NodeIterator has for a purpose of its own: "
                "choose another name"
            )


def refuse_taken_attributes(iterator: NodeIterator[Any]) -> None:
    """Raises: TypeError if the pass has set an attribute over a method of :class:`NodeIterator`."""
    for name in vars(iterator):
        if callable(getattr(NodeIterator, name, None)):
            raise TypeError(
                f"{type(iterator).__name__} sets self.{name}, which is a method of every NodeIterator: choose another "
                "name"
            )


@dataclass
class Positions:
    """The way to make items of the positions that ``owner`` yields.

    ``reader`` gives the function from a position to its item, when the pass begins; ``holds`` says whether a value, out
    of a state, is one of the positions. ``current`` is the one that is being read.
    """

    owner: NodeIterator[Any]
    reader: Callable[[], Callable[[Any], Any]]
    holds: Callable[[Any], bool]
    current: Any = None

    def __post_init__(self) -> None:
        self.owner.untimed = True  # what it makes of positions is its work, and counts

    def read(self, positions: Iterator[Any]) -> Iterator[Any]:
        """The items at ``positions``, each made when it is asked for; a crash meanwhile is the owner's."""
        items = self._items(positions)
        context = self.owner.context
        return (
            items if context.host.trace is None else context.host.trace.watch(items, context.node_id(self.owner.node))
        )

    def _items(self, positions: Iterator[Any]) -> Iterator[Any]:
        read = self.reader()
        for position in positions:
            self.current = position
            yield read(position)
