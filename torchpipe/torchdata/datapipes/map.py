"""``torchdata.datapipes.map``: the map-style nodes."""

from typing import Any

from torchpipe import map as nodes

__all__ = nodes.__all__


def __getattr__(name: str) -> Any:
    return getattr(nodes, name)


def __dir__() -> list[str]:
    return __all__
