"""Which interpreter measures which peer. Runs in the runner; imports the standard library only."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "interpreter"]

ROOT = Path(__file__).resolve().parents[2]

_FOLDERS = {"bench": ".venv-bench", "bench09": ".venv-bench09", "xla": ".venv"}


def interpreter(environment: str) -> Path | None:
    """The python of an environment, or None if it is not there.

    ``BENCH_PYTHON``, ``BENCH09_PYTHON`` and ``XLA_PYTHON`` name others than those that ``make bench`` sets up.
    """
    named = os.environ.get(f"{environment.upper()}_PYTHON")
    python = Path(named) if named else ROOT / _FOLDERS[environment] / "bin" / "python"
    return python if python.exists() else None
