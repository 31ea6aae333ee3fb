"""Figures and findings as plain values and as JSON, there and back: frozen dataclasses that hold nothing else. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from torchpipe.stats.model import LoaderStats

__all__ = ["PlainData", "stats_from_json", "stats_to_dict", "stats_to_json"]


class PlainData:
    """To plain values and back."""

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists and plain values: what JSON has."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The object that :meth:`to_json` gave. Raises: TypeError or KeyError if ``text`` is something else."""
        return _read(cls, json.loads(text))  # type: ignore[no-any-return]


def stats_to_dict(stats: LoaderStats) -> dict[str, Any]:
    """The advice and the figures of a loader."""
    return {"advice": stats.advice.to_dict(), **asdict(stats)}


def stats_to_json(stats: LoaderStats, indent: int | None = None) -> str:
    return json.dumps(stats_to_dict(stats), indent=indent)


def stats_from_json(text: str) -> LoaderStats:
    """The figures in ``text``, without a later version's fields. Raises: TypeError or KeyError for something else."""
    return _read(LoaderStats, json.loads(text))  # type: ignore[no-any-return]


def _read(kind: Any, value: Any) -> Any:
    """``value``, out of JSON, as a ``kind``."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return None if value is None else _read(next(item for item in get_args(kind) if item is not type(None)), value)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], item) for item in value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        names = {item.name for item in fields(kind)}
        return kind(**{name: _read(hints[name], item) for name, item in value.items() if name in names})  # type: ignore[operator]
    return value
