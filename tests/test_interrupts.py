from __future__ import annotations

import subprocess
import sys

FIRST = """
from tests.laws.interrupts import Interrupt, Interrupter

def outer():
    for _ in range(2):
        inner()

def inner():
    abs(-1)

struck = []
while True:
    exec("def fresh():\\n abs(-1)\\n inner()\\n")
    interrupter = Interrupter(len(struck) + 1, ("__main__",))
    try:
        with interrupter:
            fresh()
            outer()
    except Interrupt:
        struck.append(interrupter.hit)
    else:
        break
print(len(struck))
"""


def test_places_of_functions_that_never_ran_before_are_seen() -> None:
    """By the first in a process too: Python 3.12 and 3.13 tell of them only if asked in a certain order."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) >= 10  # without that order: 0 on 3.12, 3 on 3.13


GARBAGE = """
import gc
import weakref
from tests.laws.interrupts import Interrupter

class Held:
    pass

def leave_garbage(of):
    held = Held()
    held.itself = held
    weakref.finalize(held, of["end"])

others = {"__name__": "others"}
exec("def end():\\n print(abs(-1))", others)
gc.disable()
leave_garbage(others)
gc.enable()
interrupter = Interrupter(1, ("others",))
with interrupter:
    many = [Held() for _ in range(9999)]
assert interrupter.hit is None and gc.isenabled()
gc.collect()
"""


def test_no_place_is_within_what_is_called_for_others_garbage() -> None:
    """Python prints what is raised there, and goes on."""
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
