"""``torchdata.datapipes.iter``: all iterable nodes, of ``torchpipe.iter`` and ``torchpipe.torchdata``."""

from typing import Any

from torchpipe import iter as nodes
from torchpipe.public_names import NAMES

__all__ = nodes.__all__ + list(NAMES["torchpipe.torchdata"])


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what a package says of itself: by its path, files would be imported a second time
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(nodes, name)


def __dir__() -> list[str]:
    return __all__
