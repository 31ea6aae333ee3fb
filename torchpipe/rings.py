"""The rings around the core: packages that only use a loader, and without which the core runs.

Runs in every process. No module of the core imports a ring, in a function or for a type either: a loader's method for
one (``loader.watch()``) is a line that asks :func:`from_ring`. ``tests/test_layers.py`` holds that, and
``tools/core_alone.sh`` runs the core's tests in a copy from which every ring is deleted.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["RINGS", "from_ring", "is_here", "is_installed", "ring_of"]

# The packages and modules of each ring. A ring may import the core, and the rings that come before it here.
RINGS: dict[str, tuple[str, ...]] = {
    "claims": ("torchpipe.claims",),
    "xla": ("torchpipe.xla",),
    "ray": ("reading_services.actors", "reading_services.ray", "torchpipe.compat.ray_private"),
    "writing": ("torchpipe.writing",),
    "torchdata": ("torchpipe.torchdata", "torchpipe.utils"),
    "observe": ("torchpipe.observe", "torchpipe.export", "torchpipe.__main__"),
    "audit": ("torchpipe.testing.audit",),
    "integrations": ("torchpipe.integrations",),
}


def ring_of(module: str) -> str | None:
    """The ring that ``module`` belongs to; None: the core's."""
    for ring, parts in RINGS.items():
        if any(module == part or module.startswith(part + ".") for part in parts):
            return ring
    return None


def is_installed(ring: str) -> bool:
    """True if ``ring`` is here: a copy of the core may be without it."""
    return find_spec(RINGS[ring][0]) is not None


def is_here(module: str) -> bool:
    """True but for a module of a ring that is not installed."""
    ring = ring_of(module)
    return ring is None or is_installed(ring)


def from_ring(path: str) -> Any:
    """The object ``path`` (``"module:name"``) of a ring, imported now.

    Raises: ModuleNotFoundError, which names the ring, where that is not installed.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        ring = ring_of(module)
        if ring is None or error.name is None or ring_of(error.name) != ring:
            raise
        raise ModuleNotFoundError(
            f"this is in the ring {ring!r} ({RINGS[ring][0]}), which is missing from this copy of torchpipe: install "
            "torchpipe-data anew",
            name=error.name,
        ) from None
