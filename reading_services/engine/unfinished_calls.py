"""Knows whether a call of the supervisor was cut short. Runs in the main process.

Ctrl-C, or a signal handler that raises, may leave the supervisor between two halves of a message: nobody can say then
what has been received and what was sent. Its workers are not used again.
"""

from __future__ import annotations

import threading

__all__ = ["UnfinishedCalls"]


class UnfinishedCalls:
    """``with calls: ...`` around each call, which does not call another one.

    Any exception counts, this class's own instructions included: a handler's may be a TimeoutError as well as a
    KeyboardInterrupt. What a call has to say when nothing is half done, it raises outside of the ``with``.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()  # threads

    @property
    def broken(self) -> bool:
        """True if a call was left in its midst, and while one goes on in another thread."""
        return bool(self._inside)

    def __enter__(self) -> None:
        self._inside.add(threading.get_ident())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._inside.discard(threading.get_ident())
