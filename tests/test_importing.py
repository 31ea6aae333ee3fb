"""Importing torchpipe leaves the garbage collector as it was, also turned off and with objects frozen."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc
{before}
frozen = gc.get_freeze_count() > 0  # Python 3.12 has some from its start
import reading_services, torchpipe.iter
print(gc.isenabled(), (gc.get_freeze_count() > 0) == frozen)

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
    ("before", "enabled"),
    [("pass", True), ("gc.disable()", False), ("gc.freeze()", True)],
    ids=["as it is", "disabled", "frozen"],
)
def test_importing_leaves_the_garbage_collector_as_it_was(before: str, enabled: bool) -> None:
    command = [sys.executable, "-c", SCRIPT.format(before=before)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said == [str(enabled), "True", "True"]
