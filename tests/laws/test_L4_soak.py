"""L4, recovery: a short piece of the soak run (``make soak`` is the long one)."""

from __future__ import annotations

import pytest

from tests.soak.soak import GRAPHS, Case, report, run_case


@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_L4_processes_killed_in_every_way(graph: str) -> None:
    outcome = run_case(Case(graph, "fork", kills=12), seed=7)
    figures = report([outcome])
    assert figures["not exact"] == []
    assert figures["survived"] == figures["kills"] == 12
