"""The pass that ``prefetch`` and ``to_device`` share: a node iterator over ``background``, which has the thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from torchpipe.ahead.background import ONE_QUEUE, FeedStats, Pacer, RunAhead
from torchpipe.ahead.feed import Gate, Mover
from torchpipe.ahead.staged import Limits
from torchpipe.errors import StateError
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator, Positions, refusing_misfits
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.state import Cursor, encode

__all__ = ["RestorableGate", "RunAheadIterator"]

T_co = TypeVar("T_co", covariant=True)


_MARK = "shapes"  # beside the cursor: a stage without a gate, and a graph without the stage, leave it alone


class RestorableGate(Gate, Protocol):
    """A gate whose marks are a part of the state."""

    def load(self, mark: Any, /) -> None:
        """Go on from what an :class:`~torchpipe.ahead.feed.Admitted` item of an earlier pass was marked with."""


class RunAheadIterator(NodeIterator[T_co]):
    """The pass of a node that hands its input's items on unchanged, earlier or elsewhere: the base of such nodes.

    Runs ahead by ``depth`` items in a thread; in the consumer's thread if ``context.threads`` is False or ``depth`` is
    0. State: either the input's own state or a cursor over it. Both load here and into the input itself, so a state
    saved with this stage loads without it, and the other way round.
    """

    def __init__(
        self,
        node: DataPipe,
        context: Context,
        source: DataPipe,
        *,
        depth: int,
        mover: Mover | None = None,
        gate: RestorableGate | None = None,
        pacer: Pacer | None = None,
        limits: Limits = ONE_QUEUE,
    ) -> None:
        super().__init__(node, context, source)
        self._name = node_name(node)
        self._ahead = RunAhead(
            self.source,
            depth=depth if context.threads else 0,
            policy=context.policy(),
            mover=mover,
            name=self._name,
            gate=gate,
            pacer=pacer,
            limits=limits,
        )
        self._gate = gate
        self._hands_on = mover is None
        self._transparent = mover is None and (depth == 0 or not context.threads)

    @property
    def exact_after_error(self) -> bool:  # type: ignore[override]
        return self.source.exact_after_error if self._transparent else True

    @property
    def positional(self) -> bool:
        # Also where a thread then runs ahead over positions alone: the state is the same with this stage and without.
        return self._hands_on and self.source.positional

    def by_position(self) -> Positions:
        return self.source.by_position()

    @property
    def runs_ahead(self) -> bool:
        """Is there anything to count: a thread, or a device to move to?"""
        return not self._transparent

    def run(self) -> Iterator[T_co]:
        # Not a generator of this object's own: it would keep an abandoned pass alive until the collector runs.
        return self.source.items() if self._transparent else self._ahead.items()

    def state_dict(self) -> dict[str, Any]:
        if self._transparent:
            return self.source.state_dict()
        state = self._ahead.cursor.to_state()
        return state if self._ahead.mark is None else state | {_MARK: self._ahead.mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._stream is not None or self._closed:
            raise StateError(
                f"{type(self).__name__} has already started: load a state into a new iterator, before its first item"
            )
        if self._gate is not None and isinstance(state, dict) and state.get(_MARK) is not None:
            with refusing_misfits(self._name):
                self._gate.load(state[_MARK])
            self._ahead.mark = state[_MARK]
        self.source.load_state_dict(state)  # takes both forms; of a cursor, it drops the items that were handed out
        if not self._transparent:
            self._ahead.cursor = Cursor.from_state(state) or Cursor(encode(state))

    def stats(self) -> FeedStats:
        """How the two sides kept pace so far."""
        return self._ahead.stats()

    def interrupt(self) -> None:
        self._ahead.interrupt()

    def close(self) -> None:
        self._closed = True
        self._stream = iter(())
        self._ahead.close()
