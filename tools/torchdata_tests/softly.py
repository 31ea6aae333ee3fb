"""What the rewritten tests of torchdata call: each statement is counted, and a failing one is noted instead of ending
its test, so that those behind it run too. Runs in pytest's process, as a plugin too, and those that the tests start."""

from __future__ import annotations

import json
import os
import unittest
from typing import Any

__all__ = ["FOLLOWS", "Missing", "differs", "holds", "pytest_runtest_logreport"]


FOLLOWS = "needs what an earlier one should have made"


def _note(**record: Any) -> None:
    with open(os.environ["SOFTLY_RECORD"], "a") as file:
        file.write(json.dumps(record) + "\n")


def holds(place: str) -> None:
    _note(place=place, error=None)


def differs(place: str, error: BaseException) -> None:
    """Notes a failing statement; a test that skips itself goes on doing so."""
    if isinstance(error, unittest.SkipTest) or type(error).__name__ == "Skipped":
        raise error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, NameError) and "cannot access" in text:
        text = FOLLOWS  # a variable that an earlier statement should have made
    _note(place=place, error=text[:400])


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        _note(test=report.nodeid, outcome=report.outcome)


class Missing:
    """Stands for a name that torchpipe does not have: any use of it fails."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NameError(f"{self.name} is not in torchpipe")

    def __getattr__(self, attribute: str) -> Any:
        raise NameError(f"{self.__dict__['name']} is not in torchpipe")
