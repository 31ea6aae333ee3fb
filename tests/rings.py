"""What tests of the core take from the rings that are installed: what a ring's folder adds to the core's tables."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from torchpipe.rings import RINGS, is_installed

__all__ = ["FOLDERS", "added_by_rings"]

FOLDERS = {"ray": "actors"} | {ring: ring for ring in RINGS if ring != "ray"}
"""ring -> the folder of its tests"""


def added_by_rings(table: str) -> Iterator[ModuleType]:
    """The module ``table`` of each ring's folder that has one: core's tables are longer by what stands there."""
    for ring, folder in FOLDERS.items():
        name = f"tests.{folder}.{table}"
        if is_installed(ring) and find_spec(f"tests.{folder}") and find_spec(name):
            yield import_module(name)
