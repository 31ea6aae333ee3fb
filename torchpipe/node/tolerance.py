"""What happens when a user's function fails for an item: it is tried again, or the item is left out and noted.

Runs in every process that executes a part of a graph. ``retry`` and ``on_error`` put these into the context of all
nodes before them.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchpipe.errors import StateError, TorchpipeError, add_note
from torchpipe.node.traits import callable_name, node_name
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.state.copying import copy_item, holds_mutable
from torchpipe.state.left_out import MOST_NOTED, LeftOut, is_note

if TYPE_CHECKING:
    from torchpipe.node.iterator import NodeIterator

__all__ = ["Failures", "Retries"]

_LONGEST = 300  # characters of a text that is noted
_PASSED = "_torchpipe_passed"  # set on an exception that is not to be handled any more

_log = logging.getLogger("torchpipe")
_jitter = random.SystemRandom()  # in the waiting alone: no stream depends on it


@dataclass(frozen=True)
class Retries:
    """Call again what raised one of ``errors``, at most ``attempts`` times in all, and wait longer each time.

    Each attempt is called with the same argument: with a copy, if that can be changed in place.
    """

    attempts: int
    errors: tuple[type[BaseException], ...]
    backoff_s: float
    max_backoff_s: float

    def around(self, fn: Callable[..., Any], *, in_threads: bool = False) -> Callable[..., Any]:
        """``fn``, called again. Each call draws what the first would have drawn: from the global random states, from
        numpy's generators among its arguments, and from its own state if it has one. ``in_threads`` there is no
        drawing from global states.
        """

        @functools.wraps(fn, updated=())
        def call(*args: Any) -> Any:
            drawn = None if in_threads else GlobalRandom.present()
            generators = [(item, item.bit_generator.state) for item in args if isinstance(item, np.random.Generator)]
            mutable = self.attempts > 1 and holds_mutable(args)
            state_dict = None if isinstance(fn, type) else getattr(fn, "state_dict", None)
            own = copy_item(state_dict()) if callable(state_dict) else None
            for attempt in itertools.count(1):
                try:
                    return fn(*(_copied(args) if mutable and attempt < self.attempts else args))
                except self.errors as error:
                    if attempt >= self.attempts or getattr(error, _PASSED, False):
                        add_note(error, f"torchpipe: {callable_name(fn)} failed {attempt} times for this item")
                        raise
                    self._wait(attempt, fn, error)
                if drawn is not None:
                    drawn.restore()
                for generator, state in generators:
                    generator.bit_generator.state = state
                if own is not None:
                    fn.load_state_dict(copy_item(own))  # type: ignore[attr-defined]

        call.__qualname__ = callable_name(fn)  # a partial has none that wraps() could take over
        return call

    def _wait(self, attempt: int, fn: Callable[..., Any], error: BaseException) -> None:
        delay_s = min(self.max_backoff_s, self.backoff_s * 2 ** (attempt - 1)) * _jitter.uniform(0.5, 1.0)
        _log.warning(
            "%s raised %s: %s; trying again in %.2f s (attempt %d of %d)",
            callable_name(fn),
            type(error).__name__,
            _short(error),
            delay_s,
            attempt + 1,
            self.attempts,
        )
        time.sleep(delay_s)


def _copied(args: tuple[Any, ...]) -> list[Any]:
    return [item if isinstance(item, np.random.Generator) else copy_item(item) for item in args]


@dataclass
class Failures:
    """Whether items that raise are left out, and which were. One for each pass over an ``on_error`` node."""

    skips: bool
    budget: int | None
    errors: tuple[type[BaseException], ...]
    count: int = 0
    noted: list[list[str]] = field(default_factory=list)

    def watch(self, iterator: NodeIterator[Any]) -> Iterator[Any]:
        """The stream of ``iterator`` without the items for which its own code raises."""
        while True:
            try:
                for item in iterator.run():
                    iterator.last_item = item
                    yield item
                return
            except Exception as error:
                if not self._leaves_out(iterator, error):
                    raise

    def _leaves_out(self, iterator: NodeIterator[Any], error: Exception) -> bool:
        if getattr(error, _PASSED, False):  # the stream that it comes from is over
            return False
        refusal = None
        if not self.skips or isinstance(error, TorchpipeError) or not isinstance(error, self.errors):
            refusal = ""
        elif self.budget is not None and self.count >= self.budget:
            first = ", ".join(" ".join(entry) for entry in self.noted[:3])
            refusal = f"on_error() has left out {self.count} items already, which is its budget. The first: {first}"
        else:
            item = _shown(iterator.current())
            if not iterator.leave_out():
                refusal = (
                    f"on_error() cannot leave out an item of {node_name(iterator.node)}: it does not go on after this"
                )
        if refusal is None:
            noted = self._note(node_name(iterator.node), error, item)
            context = iterator.context
            if context.host.trace is not None:
                context.host.trace.left_out(iterator.number_to_trace)
            # What a resume makes again was told when it happened
            if noted is not None and context.host.on_left_out is not None and not context.shared.restoring:
                context.host.on_left_out(noted)
            return True
        if refusal:
            add_note(error, f"torchpipe: {refusal}")
        BaseException.__setattr__(error, _PASSED, True)
        return False

    def _note(self, node: str, error: Exception, item: str) -> LeftOut | None:
        """What was noted, unless there is too much already."""
        self.count += 1
        if len(self.noted) < MOST_NOTED:
            self.noted.append([node[:_LONGEST], f"{type(error).__name__}: {_short(error)}", item])
            of = "" if self.budget is None else f" of {self.budget}"
            _log.warning("left out an item in %s: %s (%d%s)", node, " ".join(self.noted[-1][1:]), self.count, of)
            return LeftOut(*self.noted[-1])
        return None

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "noted": [list(entry) for entry in self.noted]}

    def load(self, state: Any) -> None:
        """Raises: StateError for what :meth:`state` does not make."""
        if not is_note(state):
            raise StateError(f"what was left out is a count and texts, the state says {state!r:.60}")
        self.count, self.noted = state["count"], [list(entry) for entry in state["noted"]]


def _short(error: BaseException) -> str:
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
