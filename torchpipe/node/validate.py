"""Checks of arguments that nodes, loaders and services share: what was wrong, the value, the next step.

Runs in every process.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Iterable, Sequence
from typing import Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.node.traits import callable_name

__all__ = [
    "check_choice",
    "check_columns",
    "check_count",
    "check_error_types",
    "check_function",
    "check_input",
    "check_length",
    "check_map_input",
    "check_seconds",
    "columns_left",
]


def check_count(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """Return ``value`` as an int. Raises: TypeError if it is no integer, ValueError if it is out of bounds."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}") from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}")
    if at_most is not None and number > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {number}")
    return number


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises: ValueError unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_error_types(name: str, value: object) -> tuple[type[Exception], ...]:
    """``value``, an exception type or a tuple of them, as a tuple. Raises: TypeError."""
    types = value if isinstance(value, tuple) else (value,)
    if not types or not all(isinstance(item, type) and issubclass(item, Exception) for item in types):
        raise TypeError(f"{name} must be an exception type such as OSError, or a tuple of them, got {_shown(value)}")
    return types


def check_seconds(name: str, value: object) -> float:
    """``value``, a time. Raises: TypeError if it is no number, ValueError if it is negative or endless."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {_shown(value)}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be 0 s or more, got {value}")
    return float(value)


def check_length(value: object) -> int:
    """A nominal length: -1 for unknown, else 0 or more. Raises: TypeError, ValueError."""
    return check_count("length", value, at_least=-1)


def columns_left(length: int, skipped: Iterable[object] | None) -> tuple[int, ...]:
    """The columns of ``unzip()``, of items of ``length``, but for those ``skipped``. Raises: TypeError, ValueError."""
    skips = {check_count("each of columns_to_skip", item, at_least=0, at_most=length - 1) for item in skipped or ()}
    if len(skips) == length:
        raise ValueError(f"all {length} columns are in columns_to_skip: nothing is left of unzip()")
    return tuple(column for column in range(length) if column not in skips)


def check_input(name: str, value: object, role: str = "input") -> None:
    """Raises: TypeError, with the way out, unless ``value`` is an iterable node, torchpipe's or torch's."""
    if isinstance(value, TorchIterDataPipe):
        return
    if isinstance(value, TorchMapDataPipe):
        advice = "convert the map-style node with to_iter_datapipe()"
    elif hasattr(value, "__iter__") and not isinstance(value, type):
        advice = "wrap it in IterableWrapper(...)"
    else:
        advice = "begin the pipeline with a node such as IterableWrapper(...) or FileLister(...)"
    raise TypeError(f"{name} needs an IterDataPipe as its {role}, got {_shown(value)}: {advice}")


def check_map_input(name: str, value: object, role: str = "input") -> None:
    """Raises: TypeError, with the way out, unless ``value`` is a map-style node, torchpipe's or torch's."""
    if not isinstance(value, TorchMapDataPipe):
        advice = "wrap a sequence in SequenceWrapper(...)"
        raise TypeError(f"{name} needs a MapDataPipe as its {role}, got {_shown(value)}: {advice}")


def check_function(name: str, value: object) -> None:
    """Raises: TypeError unless ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {_shown(value)}")


def check_columns(name: str, fn: Any, input_col: object) -> None:
    """Check that ``fn`` takes the columns ``input_col`` of an item, or the item itself if that is None.

    Raises: TypeError if ``fn`` is no function; ValueError if ``input_col`` is empty or ``fn`` takes another number of
    arguments. Functions without a signature, such as many written in C, are trusted, and so are methods written in Rust
    whose signature counts their object, which is bound.
    """
    check_function(name, fn)
    count = len(input_col) if isinstance(input_col, list | tuple) else 1
    if count == 0:
        raise ValueError("input_col must name at least one column, got an empty list: leave it out to pass whole items")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    if _counts_its_object(fn):
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        given = "the item" if input_col is None else f"the columns {input_col!r} (input_col)"
        raise ValueError(
            f"{name} is called with {count} positional argument(s), {given}, which {callable_name(fn)}{signature} does "
            f"not take: {error}"
        ) from None


def _counts_its_object(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return isinstance(fn, types.BuiltinMethodType) and next(iter(inspect.signature(fn).parameters), "") == "self"


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
