"""Nodes that define ``__iter__`` as torch's do: run on a private copy, resumed by state of their own or by replay.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.errors import GraphError, StateError
from torchpipe.node.functional import lookup
from torchpipe.node.iterator import MayReplay, NodeIterator, is_stateful, stored_count
from torchpipe.node.mutation_check import MutationCheck
from torchpipe.node.protocol import NodeProtocol
from torchpipe.node.stop_iteration import stream_of
from torchpipe.node.traits import DataPipe, node_name, with_inputs

if TYPE_CHECKING:
    from torchpipe.node.context import Context

__all__ = ["BOUND", "BoundInput", "ReplayIterator"]

BOUND = "_torchpipe_context"  # in the __dict__ of private copies: their __iter__ is the user's own


class BoundInput(TorchIterDataPipe[Any]):
    """Stands for an input of a user's node: iterating it iterates the input in the surrounding context."""

    def __init__(self, node: DataPipe, owner: DataPipe, context: Context) -> None:
        # __dict__ directly: ``node`` must not count as an input, or traversal would walk past the boundary
        self.__dict__["wrapped"] = _Hidden(node)
        self.owner_ref = _Hidden(owner)
        self.context = context
        self.opened: list[NodeIterator[Any]] = []
        self._loaded: NodeIterator[Any] | None = None

    @property
    def owner(self) -> DataPipe:
        return cast("DataPipe", self.owner_ref.value)

    def iterate(self, _context: Context) -> NodeIterator[Any]:
        iterator = self._loaded or self.context.iterate(self.wrapped.value)
        self._loaded = None
        self.opened.append(iterator)
        return iterator

    def begin_at(self, state: dict[str, Any] | None) -> None:
        """Let the next pass begin there. It is loaded at once: others may read from what it shares with them."""
        if state is not None:
            self._loaded = self.context.iterate(self.wrapped.value)
            self._loaded.load_state_dict(state)

    @property
    def begun(self) -> list[NodeIterator[Any]]:
        return self.opened if self._loaded is None else [*self.opened, self._loaded]

    def __iter__(self) -> Iterator[Any]:
        return self.iterate(self.context).items()

    def __len__(self) -> int:
        return len(self.wrapped.value)

    def __getattr__(self, name: str) -> Any:
        if name in ("wrapped", "owner_ref") or name.startswith("__"):
            raise AttributeError(name)
        form = lookup("iter", name, self)
        if form is not None:
            return form
        value = getattr(self.wrapped.value, name)
        if isinstance(value, TorchIterDataPipe):
            raise GraphError(
                f"{node_name(self.owner)} asks its input {node_name(self.wrapped.value)} for {node_name(value)}, which "
                "is no input of its own: a pass over it would have another seed and yield every item in every shard. "
                f"Hold {name} in an attribute of the node, too"
            )
        return value


class _Hidden:
    """Holds a node where traversal does not look."""

    def __init__(self, value: Any) -> None:
        self.value = value


class ReplayIterator(MayReplay[Any]):
    """One pass over a node that defines ``__iter__``.

    If the user's iterator, or the node itself, has ``state_dict``/``load_state_dict``, that state is used. Otherwise
    the pass is resumed by running it again from its start and dropping what was handed out, which a
    :class:`~torchpipe.errors.ReplayWarning` announces once, with the number of items.
    """

    def __init__(self, node: DataPipe, context: Context) -> None:
        super().__init__(node, context)
        self.pass_engine.saves_functions = lambda state: "user" in state  # else they see again all that they have seen
        self.count = 0
        self._ended = False
        self._is_restored = False  # the copy's own state has been loaded, so that its reset() would undo that
        self._loaded: dict[str, Any] = {"count": 0}
        self._bound: list[BoundInput] = []
        self._iterator: Iterator[Any] | None = None
        self._copy = with_inputs(node, self._bind, private=True)
        # Those of torch's, and others that are told a seed, begin each epoch anew by that
        takes_seed = type(node).__module__.startswith(("torch.", "torchdata.")) or hasattr(node, "set_seed")
        self._kept = (
            None
            if takes_seed
            else MutationCheck(self._copy, node, except_types=(TorchIterDataPipe, TorchMapDataPipe), at_most=8)
        )
        self._copy.__dict__[BOUND] = self._with_copy(context)

    def _with_copy(self, context: Context) -> Context:
        """A context in which the copy stands in the node's place, for ``super().__iter__()``."""
        return replace(context, graph=context.graph.with_copy(self._copy, self.node))

    def _bind(self, item: DataPipe) -> DataPipe:
        if isinstance(item, TorchMapDataPipe):
            return item
        for bound in self._bound:
            if bound.wrapped.value is item:
                return bound
        bound = BoundInput(item, self.node, self.context.for_inputs_of(self.node))
        self._bound.append(bound)
        return bound

    def _open(self) -> Iterator[Any]:
        if self._iterator is None:
            # Of a class of torch's own base, torch calls it; there it does nothing unless the class says what
            if isinstance(self.node, NodeProtocol) and not self._is_restored and _takes_nothing(self._copy.reset):
                self._copy.reset()
            self._iterator = stream_of(self._copy)
        return self._iterator

    def _stateful(self) -> Any:
        """The object whose state is saved: the user's open iterator, else the node's copy, else None."""
        if is_stateful(self._iterator):
            return self._iterator
        return self._copy if is_stateful(self._copy) else None

    @property
    def replayed(self) -> bool:  # type: ignore[override]
        """True if this node has no state and is resumed by replay.

        One that is not open yet stands where it was loaded. It is not opened for this question, nor for a state: that
        runs code of the user's, which may draw random numbers and must not depend on when a snapshot is taken.
        """
        if self._iterator is None:
            return self.count > 0 and not self._ended and "user" not in self._loaded
        return self._stateful() is None

    def to_replay(self) -> tuple[str, int]:
        return node_name(self.node), self.count if self.replayed and not self._ended else 0

    def run(self) -> Iterator[Any]:
        if self._ended:
            return
        again = self.count > 0 and "user" not in self._loaded
        with self.context.making_again() if again else nullcontext():  # it may read its input as it is opened
            iterator = self._open()
        if again:
            self.context.make_again(iterator, self.count, self._has_ended)
        while (item := next(iterator, self)) is not self:  # not for: iter() of a class-style node may set it back
            self.count += 1
            yield item
        self._ended = True
        if self._kept is not None:
            self._kept.warn_of_changes(node_name(self.node))

    def _has_ended(self, done: int) -> StateError:
        return StateError(
            f"{node_name(self.node)} ended after {done} of {self.count} items to replay: has the data become shorter, "
            "or does the node not depend on its input alone?"
        )

    def get_state(self) -> dict[str, Any]:
        if not self.pass_engine.is_begun or self._iterator is None:
            return copy.deepcopy(self._loaded)
        if self._ended:  # of itself: a node may begin anew in its own state
            return {"count": self.count, "ended": True}
        target = self._stateful()
        if target is None:
            return {"count": self.count}
        handed = [bound.begun[-1].state_dict() if bound.begun else None for bound in self._bound]
        of_node = target is self._copy and target is not self._iterator
        return {
            "count": self.count,
            "user": copy.deepcopy(target.state_dict()),
            "of": "node" if of_node else "iterator",
            "handed": handed,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = stored_count(state, "count")
        self._loaded = copy.deepcopy(state)
        self._ended = bool(state.get("ended", False))
        if "user" in state:
            for bound, value in zip(self._bound, state["handed"], strict=True):
                bound.begin_at(value)
            self._is_restored = state["of"] == "node"
            target: Any = self._copy if self._is_restored else self._open()
            target.load_state_dict(copy.deepcopy(state["user"]))

    def close(self) -> None:
        if self.pass_engine.is_closed:
            return
        with ExitStack() as stack:
            for bound in reversed(self._bound):
                for iterator in reversed(bound.begun):
                    stack.callback(iterator.close)
            close = getattr(self._iterator, "close", None)
            if close is not None:
                stack.callback(close)
            stack.callback(super().close)


def _takes_nothing(method: Any) -> bool:
    """False for a method of the user's own that has torch's name alone."""
    try:
        inspect.signature(method).bind()
    except TypeError:
        return False
    return True
