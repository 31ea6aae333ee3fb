"""torch_xla's loaders beside torchpipe's on 4 real XLA devices (PJRT on the CPU); docs/xla.md says a part of it.

Two child processes run ``side_by_side.py``, once for the whole file. Should the torch_xla half of a test fail one day,
torch_xla has changed: mend the page.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

import pytest

from tests.warm import Warm

pytestmark = [pytest.mark.xla, pytest.mark.timeout(1200)]

LIBRARIES = ("torch_xla", "torchpipe")


@pytest.fixture(scope="module")
def facts(warm_xla: Warm, pytestconfig: pytest.Config) -> dict[str, Any]:
    """Facts by library, then by case."""
    commands = [["-m", "tests.xla.side_by_side", library] for library in LIBRARIES]
    started: list[int] = []
    try:
        ended = warm_xla.run_together(
            commands, cwd=pytestconfig.rootpath, meanwhile=lambda pids, _: started.extend(pids)
        )
    finally:
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    for library, done in zip(LIBRARIES, ended):
        assert done.returncode == 0, f"{library}:\n{done.stderr}"
    found = {library: json.loads(done.stdout.splitlines()[-1]) for library, done in zip(LIBRARIES, ended)}
    for library in LIBRARIES:
        for case, fact in found[library].items():
            assert "failed" not in fact, f"{library}, {case}:\n{fact['failed']}"
    return found


def both(facts: dict[str, Any], case: str) -> tuple[Any, Any]:
    return facts["torch_xla"][case], facts["torchpipe"][case]


def test_a_loader_that_raises(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "a_loader_that_raises")
    assert theirs == {"got": [0, 1, 2, 3], "raised": None}
    assert ours == {"got": [0, 1, 2, 3], "raised": "OSError"}


def test_an_iter_that_raises(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "an_iter_that_raises")
    assert theirs == {"hangs": True}
    assert ours == {"hangs": False, "raised": "RuntimeError"}


def test_draining_one_device_of_two(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "draining_one_device")
    assert theirs == {"hangs": True}
    assert ours == {"hangs": False, "value": 100}


def test_a_last_group_that_is_too_small(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "a_last_group_that_is_too_small")
    assert theirs == ours == {"got": [[0, 4], [1, 5], [2, 6], [3, 7]], "samples": 2}


def test_several_transfer_threads(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "several_transfer_threads")
    assert theirs["out_of_place"] > 0
    assert ours == {"out_of_place": 0, "count": 600}


def test_none_as_a_batch(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "none_as_a_batch")
    every = list(range(12))
    assert theirs["at 3"] == [item for item in every if item != 3]
    assert theirs["at 8"] == every[:8]
    assert ours == {f"at {position}": [None if item == position else item for item in every] for position in (3, 8)}


def test_a_loop_left_by_break(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "a_loop_left_by_break")
    assert theirs == {"threads": 2, "read": 33}
    assert ours["threads"] == 0
    assert ours["read"] <= 1 + 16 + 8


def test_closing_while_the_loader_blocks(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "closing_while_the_loader_blocks")
    assert theirs == {"hangs": True}
    assert ours == {"hangs": False, "value": None}


def test_types_of_batches(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "types_of_batches")
    assert theirs == {
        "namedtuple": ["list", "xla"],
        "OrderedDict": ["dict", "xla"],
        "dataclass with slots": ["Slotted", "cpu"],
        "subclass": ["Subclass", "cpu"],
        "Parameter": ["Parameter", "cpu"],
        "list": ["list", "xla"],
        "dict": ["dict", "xla"],
    }
    kept = {"namedtuple": "Pair", "OrderedDict": "OrderedDict", "dataclass with slots": "Slotted"}
    kept |= {"list": "list", "dict": "dict"}
    assert {name: ours[name] for name in kept} == {name: [kind, "xla"] for name, kind in kept.items()}
    for name in ("subclass", "Parameter"):  # never left behind in silence
        assert ours[name][0] == "TypeError" or ours[name][1] == "xla"


def test_uint16(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "uint16")
    assert theirs == {"value": [[1, 40000 - 65536]], "raised": None}
    assert ours == {"value": None, "raised": "TypeError"}


def test_a_batch_that_cannot_be_moved(facts: dict[str, Any]) -> None:
    """Batch 10 of 20: torch_xla moves chunks of 8."""
    theirs, ours = both(facts, "sparse")
    assert theirs == {"got": list(range(8)), "raised": "RuntimeError"}
    assert ours == {"got": list(range(10)), "raised": "TypeError"}


def test_read_ahead_at_the_defaults(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "read_ahead")
    assert theirs["before the first next"] == 33
    assert ours["before the first next"] == 0
    assert ours["after it"] == 1 + 16 + 8


def test_the_first_batch(facts: dict[str, Any]) -> None:
    """Is it handed out when only so many have been read? torch_xla waits for a chunk of 8."""
    theirs, ours = both(facts, "the_first_batch")
    assert set(theirs.values()) == {False}
    assert set(ours.values()) == {True}
    assert ours.keys() == theirs.keys() == {"with 1 read", "with 7 read"}


def test_batches_per_execution(facts: dict[str, Any]) -> None:
    """16 steps in groups of 4."""
    theirs, ours = both(facts, "batches_per_execution")
    assert theirs["sum"] == ours["sum"] == [121.0, 121.0]
    assert (ours["ExecuteTime"], ours["CompileTime"]) == (4, 1)
    assert (theirs["ExecuteTime"], theirs["CompileTime"]) == (5, 3)  # groups of 3, 4, 4, 4 and 1


DEPTHS = {"1/1": 4, "16/8": 31, "128/1": 131}


def test_L2_a_checkpoint_of_a_stateful_dataloader(facts: dict[str, Any]) -> None:
    """At each depth, with 0 and 2 workers, at each cut; torch_xla loses what was read ahead."""
    theirs, ours = both(facts, "checkpoints")
    assert len(ours) == 18
    assert set(ours.values()) == {0}
    assert theirs.keys() == ours.keys()
    for name, lost in theirs.items():
        assert lost >= DEPTHS[name.split(",")[0]], name


def test_L2_a_checkpoint_of_a_shuffled_loader(facts: dict[str, Any]) -> None:
    theirs, ours = both(facts, "a_checkpoint_of_a_shuffled_loader")
    assert theirs["missing"] > 0
    assert ours == {"missing": 0, "exact": True}
