"""The graph as processes get it: pickled once; its large arrays and tensors lie in a file that each of them maps.

Made in the main process, loaded in workers and the dispatcher. What nobody writes to is in memory once, however many
processes there are and however they were started: see ``torchpipe/state/mapped.py``.
"""

from __future__ import annotations

import multiprocessing.reduction
import os
import pickle
import sys
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from reading_services.processes.passed_on import PassingPickler, passed_on
from torchpipe.state.mapped import Spans, dump_with_buffers, load_mapped, write_file

__all__ = ["GraphImage"]

_SHARED_BYTES = 64 << 10  # what is smaller is pickled with the rest


class GraphImage:
    """The image of the parts given to :meth:`of`: each :meth:`load` makes new objects. Passed on as an argument."""

    def __init__(
        self, body: bytes, positions: Spans = (), fd: int = -1, inherited: Any = None, passing: Sequence[Any] = ()
    ) -> None:
        self._body = body  # the pickle, if there is no file
        self._inherited = inherited
        self._passing = passing  # what only a process that is being started can be given
        self._positions = positions
        self._fd = fd
        self._finalizer = weakref.finalize(self, os.close, fd) if fd >= 0 else None

    @property
    def sent_bytes(self) -> int | None:
        """The bytes that each process has for itself, without those that it maps; None if nothing is sent."""
        if self._inherited is not None:
            return None
        return self._positions[0][1] if self._positions else len(self._body)

    @classmethod
    def of(cls, *parts: Any) -> GraphImage:
        """The image of ``parts``. Raises: whatever pickling them raises."""
        passing: list[Any] = []
        body, buffers = dump_with_buffers(partial(PassingPickler, passing), parts, _SHARED_BYTES)
        if buffers:
            try:
                fd, positions = write_file("torchpipe-graph", [body, *buffers])
                return cls(b"", positions, fd, passing=passing)
            except OSError:  # no room for them: in every process's own memory then
                passing.clear()
                body, _ = dump_with_buffers(partial(PassingPickler, passing), parts, sys.maxsize)
        return cls(bytes(body), passing=passing)

    @classmethod
    def inherited(cls, *parts: Any) -> GraphImage:
        """``parts`` themselves, for processes that are forked: each has them as they are when it is."""
        return cls(b"", inherited=parts)

    def load(self) -> Any:
        """The parts, new ones. Arrays and tensors can be written to if they could be before; nobody else sees it."""
        if self._inherited is not None:
            return self._inherited
        with passed_on(self._passing):
            return load_mapped(self._fd, self._positions) if self._positions else pickle.loads(self._body)

    def close(self) -> None:
        """Let go of the file; what was loaded stays good. Idempotent."""
        self._inherited, self._passing = None, ()
        if self._finalizer is not None:
            self._finalizer()

    def __reduce__(self) -> Any:
        if not self._positions:
            return GraphImage, (self._body, (), -1, None, self._passing)
        return _from_duplicate, (self._positions, multiprocessing.reduction.DupFd(self._fd), self._passing)


def _from_duplicate(positions: Spans, duplicate: Any, passing: Sequence[Any]) -> GraphImage:
    return GraphImage(b"", positions, duplicate.detach(), passing=passing)
