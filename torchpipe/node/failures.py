"""The failures of users' code: where in the pipeline an exception came from, and an exception as bytes, so that the
consumer gets the original type with the remote traceback.

Runs in every process: exceptions are dumped where they are raised, and loaded where they are to be raised again.
"""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress
from functools import partial
from types import MemberDescriptorType
from typing import Any

from torchpipe.errors import RemoteTraceback, WorkerError, add_note
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name
from torchpipe.state.pickling import cloud_dumps, dumps

__all__ = ["add_note", "add_position", "dump_error", "failing_node", "load_error", "safe_str"]


def failing_node(error: BaseException) -> str | None:
    """The name of the node whose code, or whose function, raised ``error``: the innermost one in its traceback.

    ``error`` is being handled, by who is no node.
    """
    trace = error.__traceback__
    entry = None if trace is None else trace.tb_next  # of a frame that is at work, f_locals would keep the error
    if isinstance(error.__cause__, StopIteration):  # out of a function: the generator around it made this error of it
        entry = error.__cause__.__traceback__
    name: str | None = None
    while entry is not None:
        owner = entry.tb_frame.f_locals.get("self")
        if isinstance(owner, NodeIterator):
            name = node_name(owner.node)
        entry = entry.tb_next
    return name


def _ended_by(error: BaseException) -> str:
    """The function whose StopIteration Python has made ``error`` of; or ""."""
    if not isinstance(error, RuntimeError) or not isinstance(error.__cause__, StopIteration):
        return ""
    return "".join(frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)[-1:])


def add_position(error: BaseException, item: str) -> None:
    """Add a note to ``error``: the node, and which item was being made."""
    function = _ended_by(error)
    if function:
        add_note(error, f"torchpipe: {function}() raised StopIteration, which is no end: next() without a default does")
    add_note(error, f"torchpipe: raised in {failing_node(error) or 'the pipeline'} for {item}")


def dump_error(error: BaseException) -> bytes:
    """The error, its notes and the text of its traceback as bytes. Never raises for what the error holds."""
    text = "".join(traceback.format_exception(error))
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    notes = _notes(error)
    return pickle.dumps((name, safe_str(error), notes, text, _whole(error), _parts(error)))


def load_error(data: bytes) -> BaseException:
    """The error again: same type, message and notes, with a :class:`RemoteTraceback` as its cause. Where the type
    cannot make the message here, it is a subclass of that type, of the same name, which shows it.

    An error whose type cannot be rebuilt here becomes a :class:`WorkerError` that names it.
    """
    name, message, notes, text, whole, parts = pickle.loads(data)
    error = _load_whole(whole, name)
    if error is None:
        error = _load_parts(parts, message)
    if error is not None:
        error = _readable(error, message, data)
    if error is None:
        error = WorkerError(f"{name}: {message} (this type cannot be rebuilt in the main process)")
    # Not by assignment: exceptions may be frozen dataclasses
    BaseException.__setattr__(error, "__notes__", notes)
    BaseException.__setattr__(error, "__cause__", RemoteTraceback(text))
    return error


def _readable(error: BaseException, message: str, data: bytes) -> BaseException | None:
    """``error``, if it has a text here; else, with ``message``, as a subclass of its class; None if there can be none.

    An HTTP client's error makes its text of the request, which does not come along.
    """
    try:
        str(error)
        return error
    except Exception:  # so the text that was seen where it was raised takes its place
        pass
    kind = type(error)
    shown = {"__slots__": (), "__str__": lambda self: message, "__reduce__": lambda self: (load_error, (data,))}
    try:
        error.__class__ = type(kind.__name__, (kind,), {**shown, "__module__": kind.__module__})
    except Exception:
        return None
    return error


def _notes(error: BaseException) -> list[str]:
    try:
        return [str(note) for note in getattr(error, "__notes__", [])]
    except Exception as broken:
        return [f"<its notes cannot be shown: {broken!r}>"]


def safe_str(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<its message cannot be shown: {broken!r}>{_parts_of(error)}"


def _parts_of(error: BaseException) -> str:
    """The parts of an error without a message that can be shown: a status and its arguments."""
    parts = []
    for name in ("status", "code", "args"):
        try:
            if (value := getattr(error, name, None)) is not None:
                parts.append(f" {name}={value!r:.200}")
        except Exception:
            continue
    return "".join(parts)


def _whole(error: BaseException) -> bytes | None:
    """The pickled error, if that gives back the same: errors whose constructor takes other arguments do not."""
    try:
        data = dumps(error)
        copy = pickle.loads(data)
        same = type(copy) is type(error) and safe_str(copy) == safe_str(error)
        return data if same and repr(_slots(copy)) == repr(_slots(error)) else None
    except Exception:
        return None


def _parts(error: BaseException) -> bytes | None:
    """Class, arguments and attributes, each as far as it can be sent, for rebuilding the error from them."""
    try:
        reduced: Any = error.__reduce__()  # OSError and others keep more than ``args``
        arguments = tuple(_picklable(value) for value in reduced[1])
        attributes = {str(key): _picklable(value) for key, value in vars(error).items()}
        slots: dict[str, Any] = {key: _picklable(value) for key, value in _slots(error).items() if value is not None}
        slots["args"] = tuple(_picklable(value) for value in error.args)
        return cloud_dumps((type(error), arguments, attributes, slots))
    except Exception:
        return None


def _slots(error: BaseException) -> dict[str, Any]:
    """The values that the classes keep outside ``vars()``: OSError its errno, others those of ``__slots__``."""
    members = {
        name: member
        for kind in type(error).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, MemberDescriptorType) and not name.startswith("__")
    }
    # ``obj`` of an AttributeError may be anything, a whole data set too
    return {name: getattr(error, name) for name in sorted(members) if name != "obj" and hasattr(error, name)}


def _picklable(value: Any) -> Any:
    try:
        pickle.loads(cloud_dumps(value))
        return value
    except Exception:
        pass
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"


def _load_whole(data: bytes | None, name: str) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except Exception:
        return None
    same = isinstance(error, BaseException) and f"{type(error).__module__}.{type(error).__qualname__}" == name
    return error if same else None


def _load_parts(data: bytes | None, message: str) -> BaseException | None:
    """The error from its parts: of the ways that give its type, the first that also gives its message."""
    if data is None:
        return None
    try:
        kind, arguments, attributes, slots = pickle.loads(data)
    except Exception:
        return None
    alike: BaseException | None = None
    # A constructor may want other arguments than the error has kept; then it is passed over.
    for make in (kind, partial(kind.__new__, kind), partial(BaseException.__new__, kind)):
        try:
            error = make(*arguments)
            vars(error).update(attributes)
        except Exception:
            continue
        for name, value in slots.items():
            with suppress(Exception):  # what cannot be set was given to the constructor
                BaseException.__setattr__(error, name, value)
        if type(error) is kind:
            if safe_str(error) == message:
                return error  # type: ignore[no-any-return]
            alike = error if alike is None else alike
    return alike
