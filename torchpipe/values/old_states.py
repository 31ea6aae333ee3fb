"""The values in states from before: [steps, kind, value] of each that differed, by attributes, indices and keys.

The reader of these; nobody writes them any more.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.randomness.generators import GENERATORS, MADE, generator_kind, put_generator
from torchpipe.state.flat import damaged, shown
from torchpipe.values.large_data import MOST_KEPT, is_larger, sample_of

__all__ = ["check", "is_older", "put"]

_nothing = object()


def is_older(saved: Any) -> bool:
    """``{"older": [...]}``: of each owner, in their order, what it kept, or None. A list is that of a dataset alone."""
    return (type(saved) is dict and type(saved.get("older")) is list) or (type(saved) is list and saved != [])


def check(owners: list[Any], saved: Any) -> None:
    """Raises: StateError for what is damaged, StateMismatchError for what other owners have kept."""
    for owner, kept in _pairs(owners, saved):
        if type(kept) is not list or any(type(item) is not list or len(item) != 3 for item in kept):
            raise damaged(f"what it keeps of a {type(owner).__name__} is {shown(kept)}")
        for steps, kind, value in kept:
            if type(steps) is not list or not steps or kind not in (*MADE, "value", "data", "gone"):
                raise damaged(f"what it keeps of a {type(owner).__name__} is {shown(kind)} at {shown(steps)}")
            holder = _found(owner, steps[:-1])
            if holder is _nothing or not _may_have(holder, steps[-1]):
                raise StateMismatchError(
                    f"the state has a value {type(owner).__name__}{steps!r:.200}, and there is no place for it"
                )
            if kind in MADE:
                try:
                    put_generator(MADE[kind](value), value)
                except Exception as error:
                    raise damaged(f"the state of a random generator cannot be used: {error!s:.200}") from None


def put(owners: list[Any], saved: Any) -> None:
    """Into owners that are as they were made."""
    for owner, kept in _pairs(owners, saved):
        for steps, kind, value in sorted(kept, key=lambda item: (item[1] != "gone", len(item[0]))):
            try:
                _put(owner, steps, kind, value)
            except Exception as error:
                raise StateError(
                    f"{type(owner).__name__}{steps!r:.200} cannot be put back to what it was ({error!r:.200})"
                ) from error


def _pairs(owners: list[Any], saved: Any) -> list[tuple[Any, Any]]:
    of_each = [saved] if type(saved) is list else saved["older"]
    return [(owner, kept) for owner, kept in zip(owners, of_each) if kept is not None]


def _put(owner: Any, steps: list[Any], kind: str, value: Any) -> None:
    holder, present = _found(owner, steps[:-1]), _found(owner, steps)
    if kind == "data":
        if is_larger(present, MOST_KEPT) and sample_of(present) != value:
            raise StateError("it has other data than when the state was saved")
        return
    if kind == "gone":
        if present is not _nothing and isinstance(holder, dict):
            del holder[steps[-1]]
        elif present is not _nothing and not isinstance(holder, list | tuple | deque):
            delattr(holder, steps[-1])
        return
    if kind in MADE:
        if isinstance(present, GENERATORS) and generator_kind(present) == kind:
            return put_generator(present, value)
        state, value = value, MADE[kind](value)
        put_generator(value, state)
    if type(present) is type(value) and isinstance(value, list | deque):
        present.clear(), present.extend(value)
    elif type(present) is type(value) and isinstance(value, dict | set):
        present.clear(), present.update(value)
    elif isinstance(holder, list | deque | dict):
        holder[steps[-1]] = value
    else:
        object.__setattr__(holder, steps[-1], value)


def _found(owner: Any, steps: list[Any]) -> Any:
    for step in steps:
        if isinstance(owner, list | tuple | deque | dict):
            try:
                owner = owner[step]
            except (LookupError, TypeError):
                return _nothing
        elif type(step) is not str or not (step.isidentifier() or step == "__self__") or not hasattr(owner, step):
            return _nothing
        else:
            owner = getattr(owner, step)
    return owner


def _may_have(holder: Any, step: Any) -> bool:
    if isinstance(holder, list | tuple | deque):
        return type(step) is int and 0 <= step < len(holder)
    if isinstance(holder, dict):
        return True
    plain = type(step) is str and step.isidentifier() and not step.startswith("__")
    return plain and not callable(getattr(type(holder), step, None))
