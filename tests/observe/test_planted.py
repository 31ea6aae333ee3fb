"""The advice names the planted bottleneck, and foretells what another number of workers does.

``python -m tests.observe.planted`` runs all of it for longer, and prints what was said.
"""

from __future__ import annotations

import pytest

from benchmarks.harness.measure import Meter
from tests.observe.planted import CASES, Case, foretold, run

SCALING = [case for case in CASES if case.name in ("one map", "collate", "in process")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_planted_bottleneck_is_named(case: Case) -> None:
    for seconds in (0.7, 3.0, 12.0):  # longer ones count only where others kept the cores busy: the loop waits for them
        meter = Meter()
        stats = run(case, case.workers, seconds)
        advice = stats.advice
        if advice.bottleneck == case.bottleneck or meter.read().others < 0.1:
            break
    node = next((item.name for item in stats.nodes if item.number == advice.node), None)
    assert advice.bottleneck == case.bottleneck, str(stats)
    assert (node is None) == (case.node is None)
    assert (node or "").startswith(case.node or "")
    assert str(stats).startswith(advice.sentence)


@pytest.mark.parametrize("case", SCALING, ids=lambda case: case.name)
def test_what_four_workers_do_is_foretold(case: Case) -> None:
    """All of them sleep, so that they do not wait for each other's cores."""
    for seconds in (1.5, 3.0, 12.0):  # as above
        meter = Meter()
        ratio = foretold(case, 4, seconds)
        if abs(ratio - 1) <= 0.2 or meter.read().others < 0.1:
            break
    assert ratio == pytest.approx(1, abs=0.2)
