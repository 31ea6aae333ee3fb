"""Calls of ``torch_xla.sync()`` that PT_XLA_DEBUG reports as those of a loader, and not of the training loop.

Runs in the consumer's thread. It imports nothing: torch_xla looks through the call stack for functions named ``sync``
or ``mark_step``, below one that is named ``next`` in a file whose name ends in ``parallel_loader.py``.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["mark_step", "next"]


def next(sync: Callable[[], None]) -> None:
    sync()


def mark_step(sync: Callable[[], None]) -> None:
    """For a ``sync`` that is no Python function."""
    sync()
