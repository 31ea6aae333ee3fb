"""``retry``: call again what fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from torchpipe.iter._shared.bases import OnePerItem
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.retries import Retries
from torchpipe.node.validate import check_count, check_error_types, check_seconds

__all__ = ["Retrier"]

T_co = TypeVar("T_co", covariant=True)


@functional_datapipe("retry")
class Retrier(OnePerItem[T_co]):
    """Calls functions of the nodes before it again when they raise one of ``errors``: ``attempts`` times in all.

    Meant for what comes and goes: networks, file systems. It concerns the functions that you gave to nodes, items that
    are read by index, and the opening of files; up to another ``retry``. Between two attempts it waits ``backoff_s``
    seconds, twice as long each time, at most ``max_backoff_s``, less up to a half at random; a warning of the logger
    ``torchpipe`` tells. The last error is raised as it is, with a note. Under it the ``retries=`` of a
    reader do not count for opening a file: ``attempts`` do.

    Items stay the same: every attempt draws the random numbers that the first one would have drawn, for which the
    global random states are taken down before each call (0.1 ms), and further attempts are called with a copy of what
    the argument was, if that can be changed in place. A function that is given an open file or an iterator is called
    once, since it may have read from it: let one function open and read.

    State: that of its input. A state loads with and without this node.

    Raises: ValueError for ``attempts`` below 1 or negative times; TypeError for ``errors`` that are no exception types.
    """

    alters_stream = False
    one_to_one = True
    selects = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[T_co],
        attempts: int = 3,
        *,
        errors: type[Exception] | tuple[type[Exception], ...] = OSError,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
    ) -> None:
        super().__init__(source_datapipe)
        self.attempts = check_count("attempts", attempts, at_least=1)
        self.errors = check_error_types("errors", errors)
        self.backoff_s = check_seconds("backoff_s", backoff_s)
        self.max_backoff_s = check_seconds("max_backoff_s", max_backoff_s)

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        retries = Retries(self.attempts, self.errors, self.backoff_s, self.max_backoff_s)
        return replace(context, retries=retries).iterate(self.source)
