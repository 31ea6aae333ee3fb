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
from tests.pairs.loader_runs import check, name_of
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


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_L1_L2_L4_every_pair_is_exact_or_refused(row: Row) -> None:
    check(row)


def test_the_documentation_says_what_is_refused() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_table(page), "python -m tests.pairs.tables writes it anew"


def test_each_level_occurs() -> None:
    assert all(any(row[name] == level for row in ROWS) for name, levels in FACTORS.items() for level in levels)
    assert all(any(refusal_of(row) is refusal for row in ROWS) for refusal in REFUSALS)
