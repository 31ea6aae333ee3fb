"""What users call wrongly is refused at once, as in ``tests/wrong_arguments``: loaders' looks, profile, exporters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.wrong_arguments.of_others import source
from tests.wrong_arguments.rows import Row, calls
from tests.wrong_arguments.test_wrong_arguments import test_a_wrong_argument_is_refused_by_its_name as check
from torchpipe import DataLoader, DataLoader2, profile
from torchpipe.export import PrometheusExporter


def loader() -> DataLoader2[Any]:
    return DataLoader2(source())


def exporter(**options: Any) -> Any:
    return PrometheusExporter(loader(), **options)


ROWS: list[Row] = [
    ("explain: format", lambda: loader().explain("png"), ValueError, "format"),  # type: ignore[arg-type]
    ("watch: every_s", lambda: loader().watch(0), ValueError, "every_s"),
    ("watch: every_s", lambda: loader().watch(float("nan")), ValueError, "every_s"),
    *(("watch: every_s", partial(loader().watch, value), TypeError, "every_s") for value in ("1", True)),
    ("trace: every_s", lambda: loader().trace("trace.json", every_s=0), ValueError, "every_s"),
    ("profile: a list", lambda: profile([1]), TypeError, "datapipe"),
    ("profile: a DataLoader", lambda: profile(DataLoader([1])), TypeError, "DataLoader"),  # type: ignore[arg-type]
    *calls(
        "profile",
        partial(profile, source()),
        *(({"seconds": value}, ValueError, "seconds") for value in (0, float("nan"), "1")),
        ({"workers": (0,)}, ValueError, "workers"),
        ({"workers": (1.5,)}, TypeError, "workers"),
        ({"step": 3}, TypeError, "step"),
    ),
    *calls(
        "PrometheusExporter",
        exporter,
        ({}, ValueError, "port"),
        *(({"port": value}, ValueError, "port") for value in (-1, 65536)),
        *(({"port": value}, TypeError, "port") for value in (True, "9100")),
    ),
]


@pytest.mark.parametrize(("name", "call", "error", "parameter"), [pytest.param(*row, id=row[0]) for row in ROWS])
def test_refused_by_its_name(name: str, call: Callable[[], Any], error: type[Exception], parameter: str) -> None:
    check(name, call, error, parameter)
