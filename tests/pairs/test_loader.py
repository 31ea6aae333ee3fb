"""All pairs of a ``DataLoader``'s options, and of what may happen to a run: exact, or refused by name.

What would have shown most combinations of features that gave wrong data silently. ``make pairs`` looks on with other
seeds, for as long as one likes.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from tests.pairs.covering import Row, covering_rows
from tests.pairs.loader_features import FACTORS, REFUSALS, allowed, refusals_of
from tests.pairs.loader_runs import check, name_of
from tests.pairs.parts import parts

PARTS = 192


@cache
def rows() -> list[Row]:
    """All pairs; and a row for each refusal that no row of those has alone: some take three features."""
    found, _ = covering_rows(FACTORS, allowed=allowed, seed=1)
    chance = random.Random(1)
    exact = [row for row in found if not refusals_of(row)]
    for refusal in REFUSALS:
        while not any(refusals_of(row) == [refusal] for row in found):
            row = dict(chance.choice(exact))  # another one refuses most rows that are drawn at random
            while refusals_of(row) != [refusal] and chance.random() < 0.8:
                name = chance.choice(list(FACTORS))
                row[name] = chance.choice(FACTORS[name])
            if allowed(row) and refusals_of(row) == [refusal]:
                found.append(row)
    return found


@pytest.mark.parametrize("part", parts(PARTS, 2))
def test_L1_L2_L4_every_pair_is_exact_or_refused(part: int) -> None:
    failures = []
    for row in rows()[part::PARTS]:
        try:
            check(row)
        except Exception as error:
            failures.append(f'python -m tests.pairs.hunt --row "{name_of(row)}"\n  {type(error).__name__}: {error}')
    assert not failures, "\n".join(failures)


def test_each_level_occurs() -> None:
    assert all(any(row[name] == level for row in rows()) for name, levels in FACTORS.items() for level in levels)
    assert all(any(refusals_of(row) == [refusal] for row in rows()) for refusal in REFUSALS)
