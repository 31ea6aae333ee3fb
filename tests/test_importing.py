"""Importing torchpipe leaves the garbage collector as it was, also turned off and with objects frozen."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc
{before}
import reading_services, torchpipe.iter
print(gc.isenabled(), gc.get_freeze_count() > 0)

class Cycle:
    pass

one = Cycle()
one.itself = one
import weakref
gone = weakref.ref(one)
del one
gc.collect()
print(gone() is None)
"""


@pytest.mark.parametrize(
    ("before", "enabled", "frozen"),
    [("pass", True, False), ("gc.disable()", False, False), ("gc.freeze()", True, True)],
    ids=["as it is", "disabled", "frozen"],
)
def test_importing_leaves_the_garbage_collector_as_it_was(before: str, enabled: bool, frozen: bool) -> None:
    command = [sys.executable, "-c", SCRIPT.format(before=before)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said == [str(enabled), str(frozen), "True"]
