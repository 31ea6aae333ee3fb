"""The script that processes import as they start."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from reading_services.processes.start_method import check_main_module


def test_a_frozen_programs_script_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes have it without importing it: multiprocessing leaves it be."""
    main = SimpleNamespace(__spec__=None, __file__="/gone/script.py")
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="/gone/script.py is no file"):
        check_main_module("worker 0")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    check_main_module("worker 0")
