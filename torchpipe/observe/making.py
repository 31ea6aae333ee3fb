"""The object that a function named on a command line makes, told what it takes of workers, ranks and epochs.

Runs in the process that the loader is for.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torchpipe.observe.named import object_named

__all__ = ["Maker"]

WORKERS = ("num_workers", "workers")


class Maker:
    """Calls the function that ``target`` names; ``takes`` has those of its parameters that are known.

    These are ``workers`` (its own name is num_workers or workers), ``rank``, ``world_size`` and ``epoch``.
    """

    def __init__(self, target: str) -> None:
        self._made = object_named(target)
        self._target = target
        self.is_function = callable(self._made) and (
            not hasattr(type(self._made), "__iter__") or isinstance(self._made, type)
        )
        self._names: dict[str, str] = {}
        if self.is_function:
            names = inspect.signature(self._made).parameters
            known = {**dict.fromkeys(WORKERS, "workers"), "rank": "rank", "world_size": "world_size", "epoch": "epoch"}
            self._names = {known[name]: name for name in names if name in known}

    @property
    def takes(self) -> list[str]:
        return sorted(self._names)

    def value(self, wanted: Mapping[str, int | None]) -> Any:
        """The object that ``target`` names, or that the function there makes. Raises: TypeError for a function that
        needs more arguments; any error of the function's.
        """
        if not self.is_function:
            return self._made
        arguments = {
            self._names[name]: value for name, value in wanted.items() if name in self._names and value is not None
        }
        try:
            inspect.signature(self._made).bind(**arguments)
        except TypeError as error:
            told = ", ".join("num_workers" if name == "workers" else name for name in wanted) or "nothing"
            raise TypeError(f"{self._target} {error}: it is told {told}; give the others defaults") from None
        return self._made(**arguments)
