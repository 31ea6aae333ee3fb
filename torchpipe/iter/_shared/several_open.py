"""The base of nodes that have several items of their input open at once.

A function makes something iterable of each item. The state has the items that are open, and where each stands; a resume
calls the function again for them.

The result of a function for one item, as a list or as an iterator that knows its position.
"""

from __future__ import annotations

import collections
import io
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, MappingView, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from torchpipe.errors import GraphError, StateError
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.formats.text import Lines
from torchpipe.node.context import Context
from torchpipe.node.iterator import MayReplay, is_stateful, refusing_misfits, stored_count, stored_items
from torchpipe.node.pass_copy import has_state
from torchpipe.node.stop_iteration import stream_of
from torchpipe.node.traits import DataPipe, callable_name, is_node, node_name
from torchpipe.randomness.global_random import GlobalRandom, RandomStates, may_change_states
from torchpipe.state.copying import copy_item, separated

__all__ = ["END", "Opened", "SeveralOpenIterator", "check_called_again", "positioned"]

# Containers that have all their items at hand. Sequences of other types may load each item when it is asked for.
_HELD = (list, tuple, str, bytes, range, dict, collections.deque, MappingView, np.ndarray, torch.Tensor, set, frozenset)
# Open files of just these types: readline() gives what iterating gives, and they can tell where they stand meanwhile.
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO, io.StringIO, io.BytesIO)


def check_called_again(form: str, fn: Any) -> None:
    """Raises: TypeError for a function with a state: it is called again for what is open."""
    if has_state(fn):
        raise TypeError(
            f"fn, {callable_name(fn)}, has a state of its own, and is called again for what is open when a state is "
            f"loaded: give {form}() a function that depends on the item alone"
        )


def positioned(node: str, result: Any, fn: object) -> Any:
    """``result``, which ``fn`` returned to ``node``: a list if it is a container, else an iterator, with a state if
    there is a position to go to. Raises: TypeError for a result that is not iterable.
    """
    if isinstance(result, _HELD):
        return list(result)  # type: ignore[arg-type]
    if not (hasattr(result, "__iter__") or hasattr(result, "__getitem__")):
        raise TypeError(
            f"{node} needs something iterable, {callable_name(fn)} returned {result!r} of type "
            f"{type(result).__name__}: return an empty list for an item that gives nothing"
        )
    file = result.file_obj if isinstance(result, StreamWrapper) else result
    if type(file) in _FILES and file.seekable():
        return Lines(Content(str(getattr(result, "name", "the file")), None, opened=result))
    own_iter = getattr(type(result), "__iter__", None)
    if own_iter is None or own_iter is Sequence.__iter__:
        return _Indexed(result)
    return stream_of(result)


class _Indexed(Iterator[Any]):
    """The items of what is read by index: as many as ``len()`` says, or without it until an IndexError, as Python
    itself does. State: the index.
    """

    def __init__(self, items: Any) -> None:
        self._items = items
        self._index = 0
        self._length = len(items) if hasattr(type(items), "__len__") else None

    def __next__(self) -> Any:
        if self._index == self._length:
            raise StopIteration
        try:
            item = self._items[self._index]
        except IndexError as error:
            if self._length is None:
                raise StopIteration from None
            kind = type(self._items).__name__
            error.add_note(f"{kind} has {self._length} items, as its len() says, and item {self._index} raised this")
            raise
        except StopIteration as error:
            kind = type(self._items).__name__
            raise RuntimeError(f"item {self._index} of {kind} raised StopIteration, which is no end") from error
        self._index += 1
        return item

    def state_dict(self) -> dict[str, int]:
        return {"index": self._index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._index = stored_count(state, "index")


R = TypeVar("R")

END: Any = object()
_SCRATCH = (0x1E4F,)  # any key: what is drawn from it is thrown away


@dataclass(repr=False)
class Opened:
    """An item of the input that is open, or about to be opened again."""

    item: Any
    number: int  # of the item in the input
    handed_out: int = 0
    parts: Any = None  # an iterator, once opened
    left: list[Any] | None = None  # what is left of a container
    loaded: Any = None  # the iterator's state, until it is opened
    again: bool = False  # out of a state, and not opened yet

    def __repr__(self) -> str:
        return repr(self.item)

    def state(self, kept: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
        if self.left is not None:
            return {"left": kept(self.left[self.handed_out :])}
        item = kept([self.item])[0]
        if self.parts is None and not self.again:
            return {"item": item, "number": self.number}
        state = {"item": item, "number": self.number, "handed_out": self.handed_out}
        reached = self.loaded
        if self.parts is not None and is_stateful(self.parts):
            reached = copy_item(self.parts.state_dict())
        return state if reached is None else {**state, "iterator": reached}

    def close(self) -> None:
        close = getattr(self.parts, "close", None)
        if close is not None:
            close()

    @staticmethod
    def stored(saved: dict[str, Any]) -> Opened:
        """Out of a state. Raises: StateError, KeyError."""
        if "left" in saved:
            return Opened(None, 0, left=stored_items(saved, "left"))
        made = Opened(copy_item(saved["item"]), stored_count(saved, "number"))
        if "handed_out" not in saved:
            return made
        made.handed_out = stored_count(saved, "handed_out")
        made.again = True
        made.loaded = copy_item(saved.get("iterator"))
        return made


class SeveralOpenIterator(MayReplay[R]):
    """Base of their passes: say what is open in :meth:`those_open`, pull by :meth:`next_of`."""

    keeps_items = True

    def __init__(
        self, node: DataPipe, context: Context, datapipe: DataPipe, form: str, fn: Callable[[Any], Iterable[R]]
    ) -> None:
        super().__init__(node, context, datapipe)
        self.form = form
        self.fn = self.with_retries(fn)
        self.opened = 0  # items of the input

    @abstractmethod
    def those_open(self) -> Iterable[Opened]:
        """All that is open."""

    def to_replay(self) -> tuple[str, int]:
        replayed = (
            item.handed_out
            for item in self.those_open()
            if item.left is None and item.loaded is None and not is_stateful(item.parts)
        )
        return f"the iterators in {node_name(self.node)}", sum(replayed)

    def next_of(self, opened: Opened) -> Any:
        """The next part, or the mark of the end. Opens what is not open yet."""
        if opened.again:
            self._open_again(opened)
        elif opened.parts is None and opened.left is None:
            self._open(opened, RandomStates.now())
        if opened.left is not None:
            if opened.handed_out == len(opened.left):
                return END
            part = opened.left[opened.handed_out]
        else:
            first = opened.handed_out == 0 and not is_stateful(opened.parts)
            before = RandomStates.now() if first else None
            part = next(opened.parts, END)
            if part is not END:
                part = copy_item(part)  # a generator may go on with what it has handed out
            if before is not None:
                self._check_draws(before, opened.item)
        opened.handed_out += 1
        return part

    def _open(self, opened: Opened, before: RandomStates) -> None:
        result: Any = self.fn(copy_item(opened.item))  # a resume calls it again with the item as it came
        if is_node(result):
            opened.parts = self.context.for_opened(self.node, result, opened.number).iterate(result)
            return
        parts = positioned(self.form, result, self.fn)
        self._check_draws(before, opened.item)
        if isinstance(parts, list):
            opened.left = separated(parts)
        else:
            opened.parts = parts

    def _open_again(self, opened: Opened) -> None:
        """Go to where it stood. What is drawn meanwhile from the global random states is thrown away, and refused."""
        opened.again = False
        scratch = GlobalRandom(_SCRATCH)
        with scratch:
            before = RandomStates.now()
            self._open(opened, before)
            if opened.left is not None:
                raise StateError(
                    f"{callable_name(self.fn)} made an iterator of {opened.item!r:.80} when the state was saved, and "
                    "makes a container now: is it the same function?"
                )
            parts, loaded, opened.loaded = opened.parts, opened.loaded, None
            if loaded is not None:
                if not is_stateful(parts):
                    raise StateError(
                        f"the state holds that of an iterator over {opened.item!r:.80}, and {callable_name(self.fn)} "
                        f"made a {type(parts).__name__} of it, without load_state_dict(): is it the same function?"
                    )
                with refusing_misfits(f"the iterator in {node_name(self.node)}"):
                    parts.load_state_dict(loaded)
                return
            for done in range(0 if is_stateful(parts) else opened.handed_out):
                if next(parts, END) is END:
                    raise StateError(
                        f"{opened.item!r:.80} gave only {done} items, and had given {opened.handed_out} when the state "
                        "was saved: is the data the same?"
                    )
            self._check_draws(before, opened.item)

    def _check_draws(self, before: RandomStates, item: Any) -> None:
        """Raises: GraphError if it has drawn. Where other threads draw from the same states, it cannot be told."""
        if may_change_states() and RandomStates.now().to_dict() != before.to_dict():
            raise GraphError(
                f"{callable_name(self.fn)} draws from the global random states for {item!r:.80}, and all that is open "
                "at once shares them: after a resume it could not draw the same. Use shuffle() and random_map() behind "
                f"{self.form}(), or let it return a node, or an iterator with state_dict()"
            )

    def close(self) -> None:
        with ExitStack() as stack:
            for item in self.those_open():
                stack.callback(item.close)
            stack.callback(super().close)
