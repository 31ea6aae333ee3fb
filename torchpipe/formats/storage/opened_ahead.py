"""``OpenedAhead``: the files that a reader comes to next, opened and begun while it reads the one before.

Files are opened in the threads of ``request_threads``, for the thread that reads. What is opened ahead is an open file
and its first bytes: no part of a position, nor of a state.

Who owns what
    an OpenedAhead   belongs to a reader's pass, which closes it; it owns the files until they are taken
    a file taken     belongs to whoever opens that URL within ``offered()``: in the reader's own thread

How each wait ends
    taking waits for a file   its opening ends, as the server's answer or timeout does; one that no thread has begun to
                              open is not waited for. What could not be opened is opened anew, by the one who needs it
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from torchpipe.formats.storage.ahead import AheadFile
from torchpipe.formats.storage.request_threads import request_threads
from torchpipe.formats.storage.sources import RemoteSource

__all__ = ["FILES", "Beginning", "OpenedAhead", "taken_ahead"]

FILES = 4

Beginning = tuple[str, int, "int | None"]
"""A URL, the byte at which reading it begins (a negative number: so many before its end), and where it may stop."""

_offers: ContextVar[OpenedAhead | None] = ContextVar("torchpipe_opened_ahead", default=None)


class _Opening:
    """A file that is being opened. ``run`` is called in a thread, all else in the reader's."""

    def __init__(self, source: RemoteSource, beginning: Beginning) -> None:
        self._source = source
        self._beginning = beginning
        self._lock = threading.Lock()  # of the two below
        self._begun = self._dropped = False
        self._file: AheadFile | None = None
        self._done = threading.Event()

    def run(self) -> None:
        with self._lock:
            if self._dropped:
                return
            self._begun = True
        try:
            with suppress(Exception):  # raised, if it is, where the file is needed
                self._open()
        finally:
            self._done.set()

    def _open(self) -> None:
        with ExitStack() as closing:
            file = closing.enter_context(self._source.opened())
            if not isinstance(file, AheadFile):
                return
            file.begin_at(*self._beginning[1:])
            with self._lock:
                if not self._dropped:
                    self._file = file
                    closing.pop_all()

    def taken(self) -> AheadFile | None:
        with self._lock:
            if not self._begun:
                self._dropped = True
                return None
        self._done.wait()
        file, self._file = self._file, None
        return file

    def drop(self) -> None:
        """Does not wait."""
        with self._lock:
            self._dropped = True
            file, self._file = self._file, None
        if file is not None:
            file.close()


class OpenedAhead:
    """Files of one reader, at most ``FILES``, reached with ``options``. Not thread-safe."""

    def __init__(self, options: Mapping[str, Any] | None) -> None:
        self.options = options
        self._pid = os.getpid()
        self._openings: dict[Beginning, _Opening] = {}

    def prepare(self, beginnings: Sequence[Beginning]) -> None:
        """Have these opened, and those before that are not among them closed."""
        self._leave_parent()
        for beginning in set(self._openings).difference(beginnings):
            self._openings.pop(beginning).drop()
        for beginning in beginnings[:FILES]:
            if beginning in self._openings:
                continue
            try:
                source = RemoteSource(beginning[0], self.options)
            except Exception:  # raised, if it is, where the file is needed
                continue
            if source.reading.ahead_bytes and source.can_be_ahead():
                opening = self._openings[beginning] = _Opening(source, beginning)
                request_threads().submit(opening)

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Who opens a URL within this, with the same options, is given the file that was opened ahead."""
        token = _offers.set(self)
        try:
            yield
        finally:
            _offers.reset(token)

    def take(self, url: str) -> AheadFile | None:
        self._leave_parent()
        beginning = next((beginning for beginning in self._openings if beginning[0] == url), None)
        return None if beginning is None else self._openings.pop(beginning).taken()

    def _leave_parent(self) -> None:
        """In a forked child, what the parent opens will never come."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._openings = {}

    def close(self) -> None:
        """Idempotent; does not wait."""
        self.prepare(())


def taken_ahead(url: str, options: Mapping[str, Any] | None) -> AheadFile | None:
    """The file at ``url``, if it was opened ahead for who calls this."""
    offers = _offers.get()
    return None if offers is None or (offers.options or {}) != (options or {}) else offers.take(url)
