"""The handling of failures to make an item: the error is raised, or the item is left out and noted.

Runs in every process that executes a part of a graph. ``on_error`` puts this into the context of all nodes before it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torchpipe.errors import StateError, TorchpipeError, add_note
from torchpipe.node.traits import node_name
from torchpipe.state.left_out import MOST_NOTED, LeftOut, is_note

if TYPE_CHECKING:
    from torchpipe.node.iterator import NodeIterator

__all__ = ["Failures", "arrived", "as_note", "forget", "is_passed", "of_note", "refuse", "skip", "text_of", "tried"]

_LOGGED = 10  # items, and from then on one each time that their number has a digit more
_LONGEST = 300  # characters of a text that is noted
_END: Any = object()
_LEFT = "_torchpipe_left"  # set on an exception that stands for an item that is left out
_PASSED = "_torchpipe_passed"  # set on an exception that is not to be handled any more

_log = logging.getLogger("torchpipe")


@dataclass
class Failures:
    """The rule for items that raise, and those left out. One for each pass over an ``on_error`` node."""

    skips: bool
    budget: int | None
    errors: tuple[type[BaseException], ...]
    count: int = 0
    recorded: list[list[Any]] = field(default_factory=list)

    travels: ClassVar[bool] = False  # True if what is skipped takes with it what it would have been paired with

    def watch(self, iterator: NodeIterator[Any], run: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The stream of ``iterator``, which ``run`` begins, without the items for which making them raises."""
        while True:
            try:
                for item in run():
                    iterator.pass_engine.last = item
                    yield item
                return
            except Exception as error:
                if is_passed(error):  # the stream that it comes from is over
                    raise
                left = vars(error).get(_LEFT)
                if left is None:
                    left = self.judge(iterator, error, iterator.leave_out)
                elif not (_catch_up(iterator) and iterator.leave_out()):
                    refuse(error, _refusal(iterator))
                if is_passed(error):
                    raise
                self.note(left)
                forget(error)

    def of_branches(self) -> Failures:
        """For the inputs of a node that pairs their items."""
        return _OfBranches(self.skips, self.budget, self.errors, at_position=self.at_position)

    def of_group(self) -> Failures:
        """For the input of a node that groups items by their names, and is to be told of each that is left out."""
        return _OfGroup(self.skips, self.budget, self.errors, at_position=self.at_position)

    @property
    def at_position(self) -> Failures:
        """The failures that leave out an item where it is, whatever it would have been paired with."""
        return self

    def judge(self, iterator: NodeIterator[Any], error: Exception, leave_out: Callable[[], bool]) -> _Left:
        """The items that ``iterator`` leaves out for ``error`` of its own; or ``error`` is not handled any more."""
        item, items, path = "", 1, None
        if not self.skips or isinstance(error, TorchpipeError) or not isinstance(error, self.errors):
            refuse(error, "")
        elif self.budget is not None and self.count >= self.budget:
            first = ", ".join(" ".join(entry[:3]) for entry in self.recorded[:3])
            refuse(
                error, f"on_error() has left out {self.count} items already, which is its budget. The first: {first}"
            )
        else:
            value, items = iterator.current(), iterator.items_in_hand(of_input=False)
            item, path = _shown(value), _path_of(value, iterator.node)
            if self.budget is not None and self.count + items > self.budget:
                refuse(
                    error,
                    f"{self.count} items are left out, and the {items} that fail here together are more than "
                    f"its budget of {self.budget} allows",
                )
            elif not leave_out():
                refuse(error, _refusal(iterator))
        left = _Left(iterator, node_name(iterator.node), f"{type(error).__name__}: {text_of(error)}", item, path=path)
        return left.of(items)

    def note(self, left: _Left) -> None:
        iterator = left.iterator
        recorded = self._record(left)
        context = iterator.context
        context.shared.skipping.add(left.node)
        if context.host.trace is not None:
            for _ in range(left.items):
                context.host.trace.left_out(iterator.pass_engine.number_to_trace(iterator.untimed))
        # What a resume makes again was told when it happened
        if recorded is not None and context.host.on_left_out is not None and not context.shared.restoring:
            context.host.on_left_out(recorded)

    def _record(self, left: _Left) -> LeftOut | None:
        """Count ``left``, and note it unless there is too much already: the note."""
        self.count += left.items
        if len(self.recorded) < MOST_NOTED:
            self.recorded.append([left.node[:_LONGEST], left.error, left.item, left.items])
            of = "" if self.budget is None else f" of {self.budget}"
            what = "an item" if left.items == 1 else f"{left.items} items"
            if len(self.recorded) <= _LOGGED or len(str(self.count)) > len(str(self.count - left.items)):
                _log.warning("left out %s in %s: %s %s (%d%s)", what, left.node, left.error, left.item, self.count, of)
            return LeftOut(*self.recorded[-1][:3])
        return None

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "noted": [list(entry) for entry in self.recorded]}

    def load(self, state: Any) -> None:
        """Raises: StateError for what :meth:`state` does not make."""
        if not is_note(state):
            raise StateError(f"what was left out is a count and texts, the state says {state!r:.60}")
        self.count, self.recorded = state["count"], [list(entry) for entry in state["noted"]]


@dataclass(frozen=True)
class _Left:
    """One item that was left out: in which node, what was raised, and for what. ``iterator`` is where that is known."""

    iterator: NodeIterator[Any]
    node: str
    error: str
    item: str
    items: int = 1  # that went with it
    path: str | None = None  # of the item, or of the archive of which the rest went, where there is one

    def of(self, items: int) -> _Left:
        """The same, where so many items went."""
        return self if items <= self.items else replace(self, items=items)


class _OfBranches(Failures):
    """Failures in the inputs of a node that pairs their items: an exception goes on to that node, and each iterator in
    between, which it passes through, goes on behind the item that it stands for.
    """

    travels = True

    def __init__(
        self, skips: bool, budget: int | None, errors: tuple[type[BaseException], ...], *, at_position: Failures
    ) -> None:
        super().__init__(skips, budget, errors)
        self._at_position = at_position
        self.streams: weakref.WeakKeyDictionary[NodeIterator[Any], _Branch] = weakref.WeakKeyDictionary()

    @property
    def at_position(self) -> Failures:
        return self._at_position

    def watch(self, iterator: NodeIterator[Any], run: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        stream = self.streams[iterator] = _Branch(iterator, self, run)
        return stream

    def lost_by(self, iterator: NodeIterator[Any], *, of_input: bool) -> int | None:
        """The number of items lost, as from :meth:`NodeIterator.lost`."""
        return iterator.lost(of_input=of_input)

    def travels_on(self, iterator: NodeIterator[Any], error: Exception) -> bool:
        """``error`` has ended the stream of ``iterator``: is one item of that lost? Else none is, and it goes on."""
        lost: int | None = None
        if vars(error).get(_LEFT) is None:

            def leave_out() -> bool:
                nonlocal lost
                lost = self.lost_by(iterator, of_input=False)
                return lost is not None

            left = self.at_position.judge(iterator, error, leave_out)
            if lost == 0:
                self.at_position.note(left)
            elif lost:
                BaseException.__setattr__(error, _LEFT, left)
        else:
            lost = self.lost_by(iterator, of_input=True) if _catch_up(iterator) else None
            if lost is None:
                refuse(
                    error,
                    f"{_refusal(iterator)}, and what it is paired with is not known. Put an on_error() of its own "
                    "into that branch if its items need not stay with those of the others",
                )
            else:
                BaseException.__setattr__(error, _LEFT, vars(error)[_LEFT].of(iterator.items_in_hand(of_input=True)))
        return lost != 0


class _OfGroup(_OfBranches):
    """Failures in the input of a node that groups items by their names: the number of lost ones does not matter."""

    def lost_by(self, iterator: NodeIterator[Any], *, of_input: bool) -> int | None:
        lost = iterator.lost(of_input=of_input)
        return 1 if lost is None and iterator.leave_out() else lost


class _Branch(Iterator[Any]):
    """The stream of an iterator, which goes on after an exception that stands for one item of it."""

    def __init__(self, iterator: NodeIterator[Any], failures: _OfBranches, run: Callable[[], Iterator[Any]]) -> None:
        self.tried = 0  # items that were handed out, or lost
        self._iterator = iterator
        self._failures = failures
        self._run = run
        self._stream = run()

    def __next__(self) -> Any:
        while True:
            try:
                item = next(self._stream)
            except StopIteration:
                raise
            except Exception as error:
                if is_passed(error):
                    raise
                if self._failures.travels_on(self._iterator, error):
                    if not is_passed(error):
                        self.tried += 1
                        self._stream = self._run()
                    raise
                self._stream = self._run()
                continue
            self.tried += 1
            self._iterator.pass_engine.last = item
            return item

    def close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()


def _catch_up(iterator: NodeIterator[Any]) -> bool:
    """Pull what belongs to the same item of ``iterator``, which pairs those of its inputs, and forget it.

    False if an input cannot say where it stands.
    """
    failures = iterator.inputs[0].context.failures if len(iterator.inputs) > 1 else None
    if failures is iterator.context.failures or not isinstance(failures, _OfBranches):
        return True  # it pairs nothing
    for item in iterator.inputs:
        item.items()  # it may not have asked for one yet
    streams = [failures.streams.get(item) for item in iterator.inputs]
    furthest = max((stream.tried for stream in streams if stream is not None), default=0)
    for stream in streams:
        if stream is None:
            return False
        skip(stream, furthest - stream.tried)
    return True


def skip(stream: Iterator[Any], count: int) -> None:
    """Pull ``count`` items of ``stream``, of which some may be left out with another one, and forget them."""
    for _ in range(count):
        try:
            if next(stream, _END) is _END:
                return
        except Exception as error:
            if vars(error).get(_LEFT) is None or is_passed(error):
                raise


def tried(iterator: NodeIterator[Any]) -> int:
    """The items that ``iterator`` has handed out or lost in this pass; only where an exception passes through."""
    failures = iterator.context.failures
    stream = failures.streams.get(iterator) if isinstance(failures, _OfBranches) else None
    return 0 if stream is None else stream.tried


def as_note(error: Exception) -> dict[str, Any] | None:
    """The entry in a state for an exception that stands for items left out; None for another."""
    left = vars(error).get(_LEFT)
    if left is None:
        return None
    return {"count": left.items, "noted": [[left.node, left.error, left.item, left.items]], "path": left.path}


def of_note(note: Any, iterator: NodeIterator[Any]) -> Exception:
    """An exception that stands for the same, which ``iterator`` is to raise. Raises: StateError."""
    note = dict(note) if isinstance(note, dict) else {}
    path = note.pop("path", None)
    if not is_note(note) or len(note["noted"]) != 1 or not isinstance(path, str | None):
        raise StateError(f"what was left out is a number of items and three texts, not {note!r:.60}")
    node, raised, item, items = note["noted"][0]
    error = RuntimeError(raised)
    BaseException.__setattr__(error, _LEFT, _Left(iterator, node, raised, item, items, path))
    return error


def arrived(error: Exception) -> _Left | None:
    """The items left out for which ``error`` stands where it has come to; None if it is an error like others."""
    left: _Left | None = vars(error).get(_LEFT)
    return None if is_passed(error) else left


def forget(error: BaseException) -> None:
    """Nothing is known of ``error`` any more: a function may raise the same exception again, for another item."""
    vars(error).pop(_LEFT, None)
    vars(error).pop(_PASSED, None)


def refuse(error: Exception, why: str) -> None:
    """Nobody leaves out anything for ``error`` any more: the stream is over."""
    if why:
        add_note(error, f"torchpipe: {why}")
    BaseException.__setattr__(error, _PASSED, True)


def _refusal(iterator: NodeIterator[Any]) -> str:
    return (
        f"on_error() cannot leave out an item of {node_name(iterator.node)}: it does not go on after this. "
        "Its iterator would define leave_out(), the records of a reader skip() (docs/nodes/own.md)"
    )


def _path_of(value: Any, node: object) -> str | None:
    """That of a pair (path, content), or of an archive of which the rest is lost."""
    if isinstance(value, tuple | list) and len(value) == 2:
        value = value[0]
    elif isinstance(value, str) and hasattr(value, "rest"):  # where the reading of a file has failed
        lost = getattr(value, "rest", False) and getattr(type(node), "makes_members", False)
        value = getattr(value, "path", None) if lost else None
    return value.replace("\\", "/") if isinstance(value, str) else None


def is_passed(error: BaseException) -> bool:
    """True if nobody is to handle ``error`` any more."""
    return bool(vars(error).get(_PASSED))


def text_of(error: BaseException) -> str:
    """``str(error)``, cut; the class of what that raises."""
    try:
        return str(error)[:_LONGEST]
    except Exception as other:
        return f"<{type(other).__name__}>"


def _shown(value: object) -> str:
    if value is None:
        return ""
    try:
        return repr(value)[:_LONGEST]
    except Exception as other:
        return f"<{type(value).__name__}: {type(other).__name__}>"
