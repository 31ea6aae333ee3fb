"""The loader under audit, whatever it is: made by the user's function, with a state if it has one.

Runs in the audited process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.data.loader import DataLoader
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.node.traits import is_node

__all__ = ["Made"]

_PAIRS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class Made:
    """A loader: iterated once for each epoch, and saved by what it has, or else by what its iterator has."""

    def __init__(self, loader: Any) -> None:
        self.loader = DataLoader2(loader) if is_node(loader) else loader
        self._iterator: Iterator[Any] | None = None
        self._pending: list[Any] = []
        if not hasattr(type(self.loader), "__iter__") and not hasattr(type(self.loader), "__getitem__"):
            raise TypeError(f"a loader should be iterable, and {type(self.loader).__name__} is not")

    @property
    def name(self) -> str:
        kind = type(self.loader)
        return f"{kind.__module__}.{kind.__qualname__}"

    @property
    def is_ours(self) -> bool:
        return isinstance(self.loader, DataLoader | DataLoader2)

    @property
    def has_state(self) -> bool:
        """True if it can be saved and loaded. Known of an iterator only once there is one."""
        return _methods(self.loader) is not None or _methods(self._iterator) is not None

    def save(self) -> Any:
        """The state, or None if there is none."""
        methods = _methods(self.loader) or _methods(self._iterator)
        return None if methods is None else methods[0]()

    def load(self, state: Any) -> None:
        """Before an epoch. Without a state it begins anew."""
        methods = _methods(self.loader)
        if methods is not None:
            methods[1](state)
        else:
            self._pending = [state]

    def epoch(self) -> Iterator[Any]:
        """One loop over it."""
        self._iterator = iter(self.loader)
        if self._pending and (methods := _methods(self._iterator)) is not None:
            methods[1](self._pending[0])
        self._pending = []
        yield from self._iterator


def _methods(holder: Any) -> tuple[Any, Any] | None:
    for save, load in _PAIRS:
        if callable(getattr(holder, save, None)) and callable(getattr(holder, load, None)):
            return getattr(holder, save), getattr(holder, load)
    return None
