"""Immutable data of what processes say to each other, as keyword-only frozen dataclasses would hold it.

Runs in every process that exchanges messages. A dataclass costs up to a millisecond, for the methods that it compiles
as it is defined; there are many kinds of messages, and every worker process that is not forked defines them anew.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self, dataclass_transform

__all__ = ["Record"]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """Subclasses annotate their fields, with defaults or without; those of a base class come first.

    Raises: TypeError for a field that is missing or unknown.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        own = tuple(cls.__annotations__)
        cls._fields = tuple(dict.fromkeys((*cls._fields, *own)))
        cls._defaults = cls._defaults | {name: vars(cls)[name] for name in own if name in vars(cls)}

    def __init__(self, **values: Any) -> None:
        values = self._defaults | values
        if len(values) != len(self._fields) or not all(map(values.__contains__, self._fields)):
            wrong = sorted(set(self._fields) ^ set(values))
            raise TypeError(f"{type(self).__name__} has the fields {self._fields}: missing or unknown are {wrong}")
        self.__dict__.update(values)

    def replace(self, **changes: Any) -> Self:
        """The same with other values of some fields."""
        return type(self)(**(vars(self) | changes))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed: replace(...) makes another one")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(map(vars(self).get, self._fields)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={vars(self)[name]!r}' for name in self._fields)})"
