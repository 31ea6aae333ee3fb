"""``input_col`` and ``output_col``: call a function with parts of an item and put its result back into it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torchpipe.node.plain import plain_key

__all__ = ["apply_to_columns", "single_output", "with_columns"]


def with_columns(fn: Callable[..., Any], input_col: Any) -> Callable[[Any], Any]:
    """A function of a whole item that calls ``fn`` with the item's columns; ``fn`` itself if ``input_col`` is None."""
    if input_col is None:
        return fn
    columns = _listed(input_col)
    if isinstance(input_col, list | tuple):
        return lambda item: fn(*[item[column] for column in columns])
    column = columns[0]
    return lambda item: fn(item[column])


def single_output(input_col: Any, output_col: Any) -> Any:
    """``output_col`` without a list around it. Raises: ValueError if it names several, or stands alone, and where it is
    missing while ``input_col`` names a part twice."""
    if input_col is None and output_col is not None:
        raise ValueError(
            f"output_col={output_col!r} needs an input_col: which part of the item does the function take?"
        )
    if input_col is not None and output_col is None and len(set(_listed(input_col))) < len(_listed(input_col)):
        raise ValueError(
            f"input_col={input_col!r} names a part twice, and the result is to take the place of the first while the "
            "others are removed: say where it goes, by output_col="
        )
    if isinstance(output_col, list | tuple):
        if len(output_col) != 1:
            raise ValueError(f"output_col must name one column, got {output_col!r}: the function has one result")
        output_col = output_col[0]
    return plain_key(output_col)


def _listed(columns: Any) -> list[Any]:
    return list(map(plain_key, columns)) if isinstance(columns, list | tuple) else [plain_key(columns)]


def apply_to_columns(fn: Callable[..., Any], input_col: Any, output_col: Any) -> Callable[[Any], Any]:
    """A function of a whole item that returns a copy of it with the result of ``fn`` in its place.

    Without ``output_col`` the result replaces the first input column and the other input columns are removed;
    ``output_col=-1`` appends it. Tuples come back as tuples. The item itself is never changed: others may hold it too.
    """
    if input_col is None:
        return fn
    call = with_columns(fn, input_col)
    first, *rest = _listed(input_col)
    target = first if output_col is None else output_col
    removed = sorted(rest, reverse=True) if output_col is None else []
    append = output_col is not None and output_col == -1

    def apply(item: Any) -> Any:
        result = call(item)
        changed = list(item) if isinstance(item, tuple) else copy.copy(item)
        if append:
            changed.append(result)
        else:
            changed[target] = result
        for column in removed:
            del changed[column]
        return tuple(changed) if isinstance(item, tuple) else changed

    return apply
