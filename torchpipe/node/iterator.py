"""The iterator contract: what a node's author writes, and what ``iter(node)`` gives.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from torchpipe.compat.torch_datapipes import DataChunk
from torchpipe.errors import StateError
from torchpipe.node.ownership import check_kept, keeper_of, looked_after, watched
from torchpipe.node.pass_engine import ENDED, Drawing, PassEngine
from torchpipe.node.state_values import (
    has_become_shorter,
    is_stateful,
    kinds_of_saved,
    load_saved,
    refusing_misfits,
    set_defaults,
    stored_count,
    stored_items,
    values_of_saved,
)
from torchpipe.node.stop_iteration import stream_of
from torchpipe.node.traits import is_ours, node_name, traits_of
from torchpipe.node.user_warnings import announce_replay
from torchpipe.state import Cursor, decode
from torchpipe.state.copying import copy_item, copy_items

if TYPE_CHECKING:
    from torchpipe.node.context import Context
    from torchpipe.node.graph_pass import GraphPass
    from torchpipe.node.traits import DataPipe

__all__ = [
    "MayReplay",
    "NodeIterator",
    "Positions",
    "StreamOver",
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
        self.pass_engine = PassEngine(node, context, has_position=_has_position(self))
        set_defaults(self)

    # --- what an author writes

    @abstractmethod
    def run(self) -> Iterator[T_co]:
        """Yield the items from the position that the attributes of ``self`` describe.

        Called once, and once more each time that :meth:`leave_out` has returned True.
        """

    def get_state(self) -> dict[str, Any]:
        """This iterator's own position as plain data, without its inputs; copies of buffers, not the buffers.

        Raises: StateError if what ``saved`` names is of another kind than at the start of the pass: it would not load.
        """
        return values_of_saved(self, self.pass_engine.kinds or {}, self.pass_engine.image)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take the position that :meth:`get_state` described. Called before :meth:`run`, and before the inputs load.

        Of what ``saved`` names, a value is of the kind that it replaces. Raises: StateError.
        """
        load_saved(self, state)

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
        return self.inputs[0].pass_engine.last if self.inputs else None

    @property
    def by_position(self) -> Positions | None:
        """The ways in which this pass can leave items unmade that others keep; None if it cannot. Asked before anything
        is loaded or yielded; nothing changes until one of them is taken.
        """
        return None

    # --- what an author calls

    @property
    def source(self) -> NodeIterator[Any]:
        """The iterator of the first input."""
        return self.inputs[0]

    def with_retries(self, fn: F) -> F:
        """``fn``, a function of the user's or one that reads, such that it is called again as ``retry`` says."""
        retries, host = self.context.retries, self.context.host
        called: Any = fn if retries is None else retries.around(fn)  # type: ignore[arg-type]
        if host.strict:
            called = watched(fn, called, self.node, keeper_of(self), self.context.shared.keepers)
        return called  # type: ignore[no-any-return]

    def kept_items(self, items: Iterable[Any]) -> list[Any]:
        """For :meth:`get_state`: items that this pass holds, as they are now, whoever changes them later.

        They are copies, unless the state is encoded before anything else happens, or these items will be handed out as
        copies.
        """
        host, shared = self.context.host, self.context.shared
        kept = list(items)
        if host.strict:
            check_kept(self, kept)
        return kept if shared.noting or host.encodes else copy_items(kept)

    def end_pass(self, inner: Any) -> None:
        """Close ``inner``, a pass that this one has begun and is done with: what ``on_error`` has left out in it stays
        in the state of this one.
        """
        if isinstance(inner, NodeIterator):
            self.pass_engine.note_ended(inner)
        close = getattr(inner, "close", None)
        if close is not None:
            close()

    # --- what a consumer calls

    def items(self) -> Iterator[T_co]:
        """The stream itself, the quickest way to pull items; pulling from it advances this iterator."""
        engine = self.pass_engine
        if engine.stream is None:
            if engine.is_closed:
                return iter(())
            stream = _begin(self)
            engine.stream = stream if engine.random is None else Drawing(stream, engine.random)
        return engine.stream

    def __next__(self) -> T_co:
        return next(self.pass_engine.stream or self.items())

    def state_dict(self) -> dict[str, Any]:
        engine = self.pass_engine
        state = self.get_state()
        if engine.functions and engine.saves_functions(state):
            state["functions"] = [engine.image(fn.state_dict()) for fn in engine.functions]
        if len(self.inputs) > 1 and self.context.shared.passes:
            with self.context.shared.gathering():
                state["inputs"] = [item.state_dict() for item in self.inputs]
        elif self.inputs:
            state["inputs"] = [item.state_dict() for item in self.inputs]
        return state | engine.ended()

    def state_later(self) -> Callable[[], dict[str, Any]] | None:
        """A function that gives later the state of now; None if noting that costs as much as :meth:`state_dict`.

        Called between two items, by their consumer.
        """
        if self.pass_engine.has_position or self.pass_engine.functions or not self.inputs:
            return None
        marks = [mark for item in self.inputs if (mark := item.state_later()) is not None]
        return (lambda: {"inputs": [mark() for mark in marks]}) if len(marks) == len(self.inputs) else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position that ``state`` describes; only before the first item.

        A state may also be a cursor, whose items are then dropped here, once all that are loaded with it have their
        positions. Raises: StateError when the iterator has started or the state is another node's.
        """
        self.pass_engine.check_unstarted()
        cursor = Cursor.from_state(state)
        with self.context.shared.loading() as following:
            if cursor is not None:
                if cursor.snapshot is not None:
                    self.load_state_dict(decode(cursor.snapshot, allow_pickle=self.context.host.allow_pickle))
                following.append(partial(self.drop, cursor.skip))
                return
            with refusing_misfits(node_name(self.node)):
                inner = self.pass_engine.drawing(_load_own)(self, state)  # which may run code of the user's
                if isinstance(self, MayReplay) and self.context.host.announces and self.to_replay()[1]:
                    announce_replay(*self.to_replay())
            for item, value in zip(self.inputs, inner):
                item.load_state_dict(value)

    def drop(self, count: int) -> Any:
        """Pull ``count`` items and forget them, but for the last one, which is returned.

        Raises: StateError if the stream ends before.
        """
        stream = self.items() if count else iter(())
        return self.context.make_again(stream, count, lambda done: has_become_shorter(done, count))

    def interrupt(self) -> None:
        """Wake whoever waits for this iterator's inputs in another thread; the pass is then over. Thread-safe."""
        for item in self.inputs:
            item.interrupt()

    def close(self) -> None:
        """End this pass and let go of everything it holds: files, threads, inputs. Idempotent."""
        if self.pass_engine.is_closed:
            return
        stream = self.pass_engine.end_stream()
        self.context.shared.replays.pop(id(self), None)
        with ExitStack() as stack:  # all is closed, whatever a part of it raises
            for item in reversed(self.inputs):
                stack.callback(item.close)
            close = getattr(stream, "close", None)
            if close is not None:
                stack.callback(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- steps of these

    def draw_from_process(self) -> None:
        """Let the code of this pass, and of those that it hands positions on of, draw from what is in place: they make
        the items of their shard alone. Called before anything is loaded or yielded.
        """
        self.pass_engine.random = None
        for item in self.inputs if traits_of(self.node).selects else ():
            item.draw_from_process()


def _begin(iterator: NodeIterator[Any]) -> Iterator[Any]:
    """The stream of ``iterator``, with all that watches it. It holds the iterator; the iterator's engine holds it."""
    failures = iterator.context.failures
    _note_kinds(iterator)
    if failures is None:
        return _traced(iterator, _kept_safe(iterator, stream_of(iterator.run())))
    if failures.travels:  # it begins what it watches anew after an exception
        return failures.watch(iterator, lambda: _traced(iterator, _kept_safe(iterator, stream_of(iterator.run()))))
    return _traced(iterator, _kept_safe(iterator, failures.watch(iterator, lambda: stream_of(iterator.run()))))


def _note_kinds(iterator: NodeIterator[Any]) -> None:
    """Note the kinds of what ``saved`` names: before a state is loaded, or the first item is pulled."""
    if iterator.pass_engine.kinds is None:
        iterator.pass_engine.kinds = kinds_of_saved(iterator)


def _kept_safe(iterator: NodeIterator[Any], stream: Iterator[Any]) -> Iterator[Any]:
    """``stream`` such that states that are noted stay true; and looked after, in strict mode."""
    if iterator.context.lends and iterator.keeps_items and type(iterator).get_state is not NodeIterator.get_state:
        stream = _lent(stream, iterator.context.shared)
    return looked_after(iterator, stream)


def _lent(stream: Iterator[Any], shared: GraphPass) -> Iterator[Any]:
    """Copies of the items, once a state holds some of them themselves."""
    for item in stream:
        held = [copy_item(item) if shared.lent else item]
        del item  # the consumer alone decides how long an item lives
        yield held.pop()


def _traced(iterator: NodeIterator[Any], stream: Iterator[Any]) -> Iterator[Any]:
    trace = iterator.context.host.trace
    return stream if trace is None else trace.watch(stream, iterator.pass_engine.number_to_trace(iterator.untimed))


def _load_own(iterator: NodeIterator[Any], state: dict[str, Any]) -> list[Any]:
    """Load all but the inputs, whose states are returned."""
    if not isinstance(state, dict):
        raise TypeError(f"it is {type(state).__name__}, not a dict")
    inner, functions = state.get("inputs", []), state.get("functions", [])
    if not isinstance(inner, list) or not isinstance(functions, list):
        raise TypeError("its inputs and functions are no lists")
    _note_kinds(iterator)
    if type(iterator).set_state is NodeIterator.set_state:
        unknown = sorted(state.keys() - {*iterator.saved, "inputs", *_OF_STATES}, key=str)
        if unknown:
            raise StateError(
                f"the state has {', '.join(map(repr, unknown))}, which {type(iterator).__name__} does not save: was it "
                "saved by other code of this node?"
            )
    iterator.set_state(state)
    iterator.pass_engine.load_ended(state)
    engine = iterator.pass_engine
    own = engine.functions if engine.saves_functions(state) else []
    if len(inner) != len(iterator.inputs) or len(functions) != len(own):
        raise StateError(
            f"the state has {len(inner)} inputs and {len(functions)} stateful functions, "
            f"{node_name(iterator.node)} has {len(iterator.inputs)} and {len(own)}"
        )
    for fn, value in zip(own, functions):
        fn.load_state_dict(copy_item(value))
    return inner


def _has_position(iterator: NodeIterator[Any]) -> bool:
    """True if the pass has something to save besides the inputs."""
    kind = type(iterator)
    inherits = kind.state_dict is NodeIterator.state_dict and kind.get_state is NodeIterator.get_state
    return bool(iterator.saved) or not inherits


_OF_AUTHORS = frozenset(
    {
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
    | {"load_state_dict", "run", "saved", "set_state", "state_dict"}
)  # what a class may define anew; the rest of NodeIterator is the engine's
_OF_PASSES = frozenset({"node", "context", "inputs", "pass_engine"})
_OF_STATES = frozenset({"functions", ENDED})  # keys that the engine adds to what ``saved`` names


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
    """Raises: TypeError if the pass has set an attribute over a method of :class:`NodeIterator`, or was not made by its
    constructor.
    """
    if not isinstance(vars(iterator).get("pass_engine"), PassEngine):
        raise TypeError(
            f"{type(iterator).__name__} has no pass_engine, which NodeIterator makes: call super().__init__(...), "
            "and give an attribute of that name another one"
        )
    for name in vars(iterator):
        if callable(getattr(NodeIterator, name, None)):
            raise TypeError(
                f"{type(iterator).__name__} sets self.{name}, which is a method of every NodeIterator: choose another "
                "name"
            )


class MayReplay(NodeIterator[T_co]):
    """A pass that may have to make items again to resume. How many those are is announced when a state is loaded."""

    replayed = False  # True if it has no state: a replay alone tells what it drew from global random states

    def __init__(self, node: DataPipe, context: Context, *inputs: DataPipe) -> None:
        super().__init__(node, context, *inputs)
        context.shared.replays[id(self)] = self

    @abstractmethod
    def to_replay(self) -> tuple[str, int]:
        """Its name, and the number of items that would be made again to resume here."""


class StreamOver(NodeIterator[Any]):
    """A stream over ``inner``, whose items :meth:`run` hands on. State: that of ``inner``."""

    def __init__(self, inner: NodeIterator[Any]) -> None:
        super().__init__(inner.node, inner.context)
        self.inputs = (inner,)

    def run(self) -> Iterator[Any]:
        return self.source.items()

    def state_dict(self) -> dict[str, Any]:
        return self.source.state_dict()

    def state_later(self) -> Callable[[], dict[str, Any]] | None:
        return self.source.state_later()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)


@dataclass
class Positions:
    """The ways in which ``owner`` can leave items unmade. One that is None it does not have.

    ``stride(parts, part)``: from now on it yields only items ``part``, ``part + parts`` ... of the whole stream; its
    attribute ``position`` is then the number of items up to the last one yielded, those left out included.

    ``begin``: from now on positions are yielded in place of items, of which items can be made later. ``reader`` gives
    the function from a position to its item, when the pass begins; ``holds`` says whether a value, out of a state, is
    one of the positions. ``current`` is the one that is being read.
    """

    owner: NodeIterator[Any]
    stride: Callable[[int, int], None] | None = None
    begin: Callable[[], object] | None = None
    reader: Callable[[], Callable[[Any], Any]] = lambda: lambda position: position
    holds: Callable[[Any], bool] = lambda value: False
    current: Any = None

    def taken(self) -> Positions:
        """These, of which the pass yields positions from now on."""
        assert self.begin is not None
        self.begin()
        self.owner.untimed = True  # what it makes of positions is its work, and counts
        return self

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
