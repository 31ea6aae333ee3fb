"""Files of formats that torchdata's other nodes alone read, for ``tests/pairs``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.torchdata.test_rar_loader import write_rar

__all__ = ["WRITERS"]


def _write(path: Path, number: int) -> None:
    write_rar(path, "abc"[: number + 1])


WRITERS: dict[str, Callable[[Path, int], None]] = {"rar": _write}
