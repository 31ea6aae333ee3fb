"""``torchdata.datapipes.map``: the map-style nodes."""

from typing import Any

from torchpipe import map as nodes

__all__ = nodes.__all__


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what a package says of itself: by its path, files would be imported a second time
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(nodes, name)


def __dir__() -> list[str]:
    return __all__
