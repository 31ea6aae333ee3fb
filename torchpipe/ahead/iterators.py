"""The passes that keep a cursor: of ``prefetch`` and ``to_device``, which run ahead, and over a main section.

Runs in any process that iterates a graph; the threads are in ``background``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from torchpipe.ahead.background import FeedStats, RunAhead
from torchpipe.ahead.feed import Snapshots
from torchpipe.ahead.stage import Stage
from torchpipe.errors import GraphError
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator, Positions, StreamOver, refusing_misfits
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.state import Cursor, encode

__all__ = ["Delivered", "RunAheadIterator", "exact_after_error"]

T_co = TypeVar("T_co", covariant=True)

_MARK = "shapes"  # beside the cursor: a stage without a gate, and a graph without the stage, leave it alone


class RunAheadIterator(NodeIterator[T_co]):
    """The pass of a node that hands its input's items on unchanged, earlier or elsewhere: the base of such nodes.

    Runs ahead as ``stage`` says; nothing is ahead if ``context.host.threads`` is False. State: either the input's own
    state or a cursor over it. Both load here and into the input itself, so a state saved with this stage loads without
    it, and the other way round.
    """

    exact_after_error = True
    untimed = True

    def __init__(self, node: DataPipe, context: Context, source: DataPipe, stage: Stage) -> None:
        if context.graph.reads_separately(node):
            raise GraphError(
                f"{node_name(node)} stands after some branches of a fork, demux or unzip, of which others are read "
                "elsewhere: it would run ahead of them in a thread of its own. Join the branches (zip, mux) before it"
            )
        super().__init__(node, context, source)
        self._stage = stage if context.host.threads else replace(stage, depth=0)
        self._ahead = RunAhead(self.source, self._stage, context.host.policy(), node_name(node))

    @property
    def by_position(self) -> Positions | None:
        # Also where a thread then runs ahead over positions alone: the state is the same with this stage and without.
        found = None if self._stage.mover is not None else self.source.by_position
        return None if found is None else replace(found, stride=None)

    def run(self) -> Iterator[T_co]:
        self._ahead.begin_at(self.source.state_later())
        # Not a generator of this object's own: it would keep an abandoned pass alive until the collector runs.
        return self._ahead.items()

    def state_dict(self) -> dict[str, Any]:
        return self.state_later()()

    def state_later(self) -> Callable[[], dict[str, Any]]:
        if not self.pass_engine.is_begun:
            self._ahead.begin_at(self.source.state_later())
        state, seen = self._ahead.state(), self._ahead.mark
        return state if seen is None else lambda: state() | {_MARK: seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pass_engine.check_unstarted()
        gate = self._stage.gate
        if gate is not None and isinstance(state, dict) and state.get(_MARK) is not None:
            with refusing_misfits(node_name(self.node)):
                gate.load(state[_MARK])
            self._ahead.mark = state[_MARK]
        self.source.load_state_dict(state)  # takes both forms; of a cursor, it drops the items that were handed out
        self._ahead.cursor = Cursor.from_state(state) or Cursor(encode(state))

    @property
    def moves(self) -> bool:
        """True if it moves items to a device."""
        return self._stage.mover is not None

    @property
    def threads(self) -> int:
        """The number of threads that move items."""
        return min(1, self._stage.depth) * self._stage.limits.threads

    def stats(self) -> FeedStats:
        """The pace of the two sides so far."""
        return self._ahead.stats()

    def interrupt(self) -> None:
        self._ahead.interrupt()

    def close(self) -> None:
        self.pass_engine.end_stream()
        self._ahead.close()


def exact_after_error(inner: NodeIterator[Any]) -> NodeIterator[Any]:
    """``inner`` such that its state stays true after any exception, Ctrl-C included."""
    return inner if inner.exact_after_error else Delivered(inner)


class Delivered(StreamOver):
    """Hands on the items of ``inner``. State: as that of ``inner``; after an exception, a cursor.

    A node that raises has pulled its input already, and perhaps changed its own buffers: nothing below the exception
    says any more where the last whole item was. Stages that count an item when they hand it out need none of this.
    """

    exact_after_error = True
    untimed = True

    def __init__(self, inner: NodeIterator[Any]) -> None:
        super().__init__(inner)
        self._snapshots = Snapshots(inner, self.context.host.policy(), node_name(self.node))
        self._cursor = Cursor()
        self._mark: Callable[[], dict[str, Any]] | None = None  # in the cursor's stead
        self._pulling = False  # stays True when a pull ended in an exception

    def run(self) -> Iterator[Any]:
        self._mark = self.source.state_later()
        stream = self.source.items()
        while True:
            self._pulling = True
            try:
                item = next(stream)
            except StopIteration:
                self._pulling = False
                return
            self._pulling = False
            yield item
            # Asked for the next one, so that one arrived.
            snapshot = self._snapshots.after_item()
            if callable(snapshot):
                self._mark = snapshot
            else:
                self._cursor = self._cursor.after(1, snapshot)

    def state_dict(self) -> dict[str, Any]:
        return self.state_before() if self._pulling else self.source.state_dict()

    def state_before(self) -> dict[str, Any]:
        """Before the item that was pulled last, or is being pulled."""
        return self._cursor.to_state() if self._mark is None else self._mark()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._cursor = Cursor.from_state(state) or Cursor(encode(state))
