"""A plugin of pytest: writes what becomes of each test into a file at once, a line of JSON each.

A run that is ended at its time limit has then told all that it knew.
"""

from __future__ import annotations

import json
import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _write(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(report)


def _write(report: pytest.TestReport | pytest.CollectReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # the process that it reports to writes
        return
    line = {"test": report.nodeid, "outcome": report.outcome}
    if report.outcome == "failed":
        line["message"] = report.longreprtext[-1500:]
    with open(os.environ["GPU_CHECK_REPORTS"], "a") as file:
        file.write(json.dumps(line) + "\n")
