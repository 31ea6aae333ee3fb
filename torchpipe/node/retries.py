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
from torchpipe.node.pass_copy import with_state
from torchpipe.node.tolerance import text_of
from torchpipe.node.traits import callable_name
from torchpipe.randomness.global_random import RandomStates
from torchpipe.state.copying import copy_item, holds_mutable, used_up_in

__all__ = ["Retries", "try_again"]

T = TypeVar("T")

_log = logging.getLogger("torchpipe")
_jitter = random.SystemRandom()  # in the waiting alone: no stream depends on it
_retried_by_caller: ContextVar[tuple[type[BaseException], ...]] = ContextVar("torchpipe_retried", default=())


def try_again(
    do: Callable[[int], T],
    attempts: int,
    is_retried: Callable[[BaseException], bool],
    *,
    what: str,
    note: str,
    wait_s: Callable[[int], float],
    failed: Callable[[], None] = lambda: None,
    only_here: bool = False,
) -> T:
    """``do(1)``, or ``do(2)`` ... up to ``attempts``: the first that does not raise what ``is_retried``.

    Between two it calls ``failed`` and waits ``wait_s(number)``. ``what`` failed is told in a warning; the last error
    is raised with ``note``, in which ``{}`` is the number of attempts. ``only_here``: True for a step that nobody
    outside can repeat alone.
    """
    for number in itertools.count(1):
        try:
            return do(number)
        except Exception as error:
            if not is_retried(error) or (not only_here and isinstance(error, _retried_by_caller.get())):
                raise
            if number >= attempts:
                if attempts > 1:
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

    The first attempt is called with the argument itself; if that can be changed in place, each further one with a copy
    of what it was. What cannot be copied, and may be used up (an open file, an iterator), is given once.
    """

    attempts: int
    errors: tuple[type[BaseException], ...]
    backoff_s: float
    max_backoff_s: float

    def around(self, fn: Callable[..., Any], *, in_threads: bool = False) -> Callable[..., Any]:
        """``fn``, called again. Each attempt draws the same numbers as the first: from the global random states, from
        numpy's generators among its arguments, and from its own state if it has one. ``in_threads`` there is no
        drawing from global states.
        """

        stateful = list(with_state(fn))
        name = callable_name(fn)

        @functools.wraps(fn, updated=())
        def call(*args: Any) -> Any:
            drawn = None if in_threads else RandomStates.now()
            generators = [(item, item.bit_generator.state) for item in args if isinstance(item, np.random.Generator)]
            again = _copied(args) if self.attempts > 1 and holds_mutable(args) else args
            used_up = None if again is args else used_up_in(args, again)
            own = [copy_item(held.state_dict()) for held in stateful]

            def attempt(number: int) -> Any:
                outside = _retried_by_caller.set((*_retried_by_caller.get(), *self.errors))
                try:
                    if number == 1:
                        return fn(*args)
                    return fn(*(again if number == self.attempts else _copied(again)))
                finally:
                    _retried_by_caller.reset(outside)

            def is_retried(error: BaseException) -> bool:
                if not isinstance(error, self.errors):
                    return False
                if used_up is not None:
                    add_note(
                        error,
                        f"torchpipe: {name} is not tried again: it was given a {type(used_up).__name__}, which it may "
                        "have read from already. Let one function open and read it, and retry() tries both again",
                    )
                return used_up is None

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
                is_retried,
                what=name,
                note=f"torchpipe: {name} failed {{}} times for this item",
                wait_s=self._wait_s,
                failed=put_back,
            )

        call.__qualname__ = name  # a partial has none that wraps() could take over
        return call

    def _wait_s(self, number: int) -> float:
        return min(self.max_backoff_s, self.backoff_s * 2.0 ** (number - 1)) * _jitter.uniform(0.5, 1.0)


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([item if isinstance(item, np.random.Generator) else copy_item(item) for item in args])
