"""An exception <-> bytes, so that the consumer gets the original type with the remote traceback. Imports ``errors``.

Runs in workers (dump) and in the main process (load).
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import cloudpickle

from torchpipe.errors import RemoteTraceback, WorkerError

__all__ = ["dump_error", "load_error"]


def dump_error(error: BaseException) -> bytes:
    """The error, its notes and the text of its traceback as bytes. Never raises for what the error holds."""
    text = "".join(traceback.format_exception(error))
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    notes = [str(note) for note in getattr(error, "__notes__", [])]
    return pickle.dumps((name, _safe_str(error), notes, text, _whole(error), _parts(error)))


def load_error(data: bytes) -> BaseException:
    """The error again: same type, message and notes, with a :class:`RemoteTraceback` as its cause.

    An error whose type cannot be rebuilt here becomes a :class:`WorkerError` that names it.
    """
    name, message, notes, text, whole, parts = pickle.loads(data)
    error = _load_whole(whole, name) or _load_parts(parts)
    if error is None:
        error = WorkerError(f"{name}: {message} (this type cannot be rebuilt in the main process)")
    if getattr(error, "__notes__", None) != notes:
        error.__notes__ = notes
    error.__cause__ = RemoteTraceback(text)
    error.__suppress_context__ = True
    return error


def _safe_str(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<its message cannot be shown: {broken!r}>"


def _whole(error: BaseException) -> bytes | None:
    """The pickled error, if that gives back the same: errors whose constructor takes other arguments do not."""
    try:
        data: bytes = cloudpickle.dumps(error)
        copy = pickle.loads(data)
        return data if type(copy) is type(error) and _safe_str(copy) == _safe_str(error) else None
    except Exception:
        return None


def _parts(error: BaseException) -> bytes | None:
    """Class, arguments and attributes, for rebuilding the error without calling its constructor."""
    try:
        arguments = tuple(_picklable(value) for value in error.args)
        attributes = {key: _picklable(value) for key, value in vars(error).items()}
        data: bytes = cloudpickle.dumps((type(error), arguments, attributes))
        return data
    except Exception:
        return None


def _picklable(value: Any) -> Any:
    try:
        pickle.loads(cloudpickle.dumps(value))
        return value
    except Exception:
        return repr(value)


def _load_whole(data: bytes | None, name: str) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except Exception:
        return None
    same = isinstance(error, BaseException) and f"{type(error).__module__}.{type(error).__qualname__}" == name
    return error if same else None


def _load_parts(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        kind, arguments, attributes = pickle.loads(data)
        error: BaseException = kind.__new__(kind, *arguments)
        error.args = arguments
        vars(error).update(attributes)
    except Exception:
        return None
    return error
