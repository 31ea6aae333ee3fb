"""Every exception and warning of torchpipe: when it is raised and what to do about it.

Runs in every process.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

__all__ = [
    "MISFITS",
    "GraphError",
    "ItemChangedError",
    "IteratorInvalidated",
    "LargeGraphWarning",
    "LargeStateWarning",
    "NotSerializableError",
    "OpaqueStateWarning",
    "RankError",
    "RemoteTraceback",
    "ReplayWarning",
    "ReplicatedSourceWarning",
    "SharedShardsWarning",
    "StateError",
    "StateMismatchError",
    "TorchpipeError",
    "UnevenWarning",
    "UnsafeStateError",
    "WorkerDiedError",
    "WorkerError",
    "add_note",
    "raise_error_of",
]


MISFITS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What code raises that is given what does not fit; RuntimeError is torch's, and too deep a recursion. Where that code
is ours, nothing else is taken for its failure: what a signal's handler raises in its midst arrives as itself.
"""


class TorchpipeError(Exception):
    """Base of the errors that torchpipe itself finds; errors of user code arrive as their own type."""


class GraphError(TorchpipeError, ValueError):
    """The graph cannot run as it was described. Raised when the loader is built; mend the named node."""


class NotSerializableError(TorchpipeError, TypeError):
    """An object in the graph cannot be sent to a worker process. Raised when the loader is built; names the node."""


class StateError(TorchpipeError, ValueError):
    """A state cannot be read or written: damaged bytes, an unknown version, a load after the first item."""


class StateMismatchError(StateError):
    """A well-formed state belongs to another graph, shard count, rank or version. The message shows both sides."""


class UnsafeStateError(StateError):
    """The state holds items that only pickle can rebuild. Load with ``allow_pickle=True`` if you trust its source."""


class ItemChangedError(TorchpipeError, RuntimeError):
    """Strict mode: an item that a node keeps was changed in place meanwhile. The message names the node."""


class IteratorInvalidated(TorchpipeError, RuntimeError):
    """This iterator was replaced by a newer ``iter()``, by ``load_state_dict`` or by ``shutdown``. Use the new one."""


class RankError(TorchpipeError, RuntimeError):
    """The ranks of a distributed run do not go together: one failed, does not answer, or is somewhere else."""


class WorkerDiedError(TorchpipeError, RuntimeError):
    """A process died at one position more often than the restart budget allows.

    The message names the process, its exit code or signal, the shard, the item index and, where known, the node.
    ``pid`` and ``exitcode`` (negative: the signal) are those of the process that died last, if there was one.
    ``making``: it is known to have been at an item then.
    """

    pid: int | None = None
    exitcode: int | None = None
    making: bool = False


class WorkerError(TorchpipeError, RuntimeError):
    """Stands in for a remote exception whose own type cannot be rebuilt here; the message names that type."""


class RemoteTraceback(Exception):
    """Carries the text of a traceback from another process, as the ``__cause__`` of the exception raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class ReplicatedSourceWarning(UserWarning):
    """Every shard reads a whole source: one that is not divided, while others are, or large files of which each keeps a
    part of the items. Given when a loader is built.
    """


class SharedShardsWarning(UserWarning):
    """The ranks do not divide the shards, and several run the same ones. Rank 0 gives it when a loader is built."""


class LargeGraphWarning(UserWarning):
    """Each worker is sent more than 100 MB, or comes to have a copy of a list of a million objects. Given when what
    workers run is pickled, or about to be forked.
    """


class LargeStateWarning(UserWarning):
    """A state has more than 100 MB, since a node holds large items. Given once, when the state is saved."""


class UnevenWarning(UserWarning):
    """An epoch of several ranks or shards has ended with the first that had no more, and left out items of others."""


class OpaqueStateWarning(UserWarning):
    """A saved state holds items that only pickle can rebuild: it will load with ``allow_pickle=True`` alone."""


class ReplayWarning(UserWarning):
    """A node or function without state has to be replayed from its start; the message says how many items."""


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note(note)``, also for exceptions that do not let their attributes be set: frozen dataclasses."""
    try:
        error.add_note(note)
    except Exception:
        BaseException.__setattr__(error, "__notes__", [*getattr(error, "__notes__", ()), note])


class _Holder(Protocol):
    error: Any  # an exception, or None


def raise_error_of(holder: _Holder) -> NoReturn:
    """Raise ``holder.error``, which nobody has then but whoever catches it.

    Its traceback leads to the frames that it has passed and to those that called them, the user's iterator among them.
    If one of these led back to it, all would stay until the collector runs, and an iterator that is dropped would not
    end. So a failure that waits has one holder: who passes it on to another has it no more.
    """
    error, holder.error = holder.error, None
    assert error is not None
    try:
        raise error
    finally:
        del error
