"""All pairs of a ``DataLoader``'s options, and of what may happen to a run: exact, or refused by name.

What would have shown most combinations of features that gave wrong data silently. ``make pairs`` looks on with other
seeds, for as long as one likes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.pairs.covering import Row, covering_rows
from tests.pairs.loader_features import FACTORS, REFUSALS, allowed, refusal_of
from tests.pairs.loader_runs import expected_of, got_of, group, unchanged_process
from tests.pairs.tables import PAGE, with_table

ROWS, COVERED = covering_rows(FACTORS, allowed=allowed, seed=1)


def _refused_rows() -> Iterator[Row]:
    """One for each refusal that no row of those has: some take three features."""
    chance = random.Random(1)
    for refusal in REFUSALS:
        while not any(refusal_of(row) is refusal for row in ROWS):
            row = {name: chance.choice(levels) for name, levels in FACTORS.items()}
            if allowed(row) and refusal_of(row) is refusal:
                yield row


ROWS.extend(_refused_rows())


def name_of(row: Row) -> str:
    """What differs from the plainest."""
    return "; ".join(f"{name}={level}" for name, level in row.items() if level != FACTORS[name][0]) or "plain"


def check(row: Row) -> None:
    refusal = refusal_of(row)
    with unchanged_process(), group(row):
        if refusal is not None:
            with pytest.raises(refusal.error, match=refusal.text):
                got_of(row, expected_of(row)[0])
            return
        batches, drawn = expected_of(row)
        found, drawn_then = got_of(row, batches)
    if row["in_order"] == "no":
        batches, found = sorted(batches), sorted(found)
    assert found == batches
    if "resume" in row["happens"] and "yes" in (row["generator"], row["distributed"]):
        drawn, drawn_then = drawn[:2], drawn_then[:2]  # torch's default generator is nothing to such a loader
    if row["happens"] == "thread":
        drawn, drawn_then = drawn[2:], drawn_then[2:]  # the main thread drew from the others meanwhile
    assert drawn_then == drawn


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_L1_L2_L4_every_pair_is_exact_or_refused(row: Row) -> None:
    check(row)


def test_the_documentation_says_what_is_refused() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_table(page), "python -m tests.pairs.tables writes it anew"


def test_each_level_occurs() -> None:
    assert all(any(row[name] == level for row in ROWS) for name, levels in FACTORS.items() for level in levels)
    assert all(any(refusal_of(row) is refusal for row in ROWS) for refusal in REFUSALS)
