"""Trying again what fails for a moment: calls of users' functions under ``retry``, and files that are read elsewhere.

Runs in every process that executes a part of a graph. Here is the one loop that counts attempts and waits. What is
tried again outside is not tried again inside: ``retry(attempts=3)`` around a reader means three attempts in all.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from torchpipe.errors import add_note
from torchpipe.node.private import with_state
from torchpipe.node.tolerance import is_passed, text_of
from torchpipe.node.traits import callable_name
from torchpipe.randomness.global_random import RandomStates
from torchpipe.state.copying import copy_item, holds_mutable

__all__ = ["Retries", "try_again"]

T = TypeVar("T")

_log = logging.getLogger("torchpipe")
_jitter = random.SystemRandom()  # in the waiting alone: no stream depends on it
_outside: ContextVar[tuple[type[BaseException], ...]] = ContextVar("torchpipe_retried", default=())


def try_again(
    do: Callable[[int], T],
    attempts: int,
    is_retried: Callable[[BaseException], bool],
    *,
    what: str,
    note: str,
    wait_s: Callable[[int], float],
    failed: Callable[[], None] = lambda: None,
    in_midst: bool = False,
) -> T:
    """``do(1)``, or ``do(2)`` ... up to ``attempts``: the first that does not raise what ``is_retried``.

    Between two it calls ``failed`` and waits ``wait_s(number)``. ``what`` failed is told in a warning; the last error
    is raised with ``note``, in which ``{}`` is the number of attempts. ``in_midst``: True for a step that nobody
    outside can try again, since that would begin with what came before it.
    """
    for number in itertools.count(1):
        try:
            return do(number)
        except Exception as error:
            if not is_retried(error) or (not in_midst and isinstance(error, _outside.get())):
                raise
            if number >= attempts:
                add_note(error, note.format(number))
                raise
            wait = wait_s(number)
            _log.warning(
                "%s raised %s: %s; trying again in %.2f s (attempt %d of %d)",
                *(what, type(error).__name__, text_of(error), wait, number + 1, attempts),
            )
            failed()
            time.sleep(wait)
    raise AssertionError("count() has no end")


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

        stateful = list(with_state(fn))
        name = callable_name(fn)

        @functools.wraps(fn, updated=())
        def call(*args: Any) -> Any:
            drawn = None if in_threads else RandomStates.now()
            generators = [(item, item.bit_generator.state) for item in args if isinstance(item, np.random.Generator)]
            mutable = self.attempts > 1 and holds_mutable(args)
            own = [copy_item(held.state_dict()) for held in stateful]

            def attempt(number: int) -> Any:
                outside = _outside.set((*_outside.get(), *self.errors))
                try:
                    return fn(*(_copied(args) if mutable and number < self.attempts else args))
                finally:
                    _outside.reset(outside)

            def put_back() -> None:
                if drawn is not None:
                    drawn.put()
                for generator, state in generators:
                    generator.bit_generator.state = state
                for held, state in zip(stateful, own):
                    held.load_state_dict(copy_item(state))

            return try_again(
                attempt,
                self.attempts,
                lambda error: isinstance(error, self.errors) and not is_passed(error),
                what=name,
                note=f"torchpipe: {name} failed {{}} times for this item",
                wait_s=self._wait_s,
                failed=put_back,
            )

        call.__qualname__ = name  # a partial has none that wraps() could take over
        return call

    def _wait_s(self, number: int) -> float:
        return min(self.max_backoff_s, self.backoff_s * 2.0 ** (number - 1)) * _jitter.uniform(0.5, 1.0)


def _copied(args: tuple[Any, ...]) -> list[Any]:
    return [item if isinstance(item, np.random.Generator) else copy_item(item) for item in args]
