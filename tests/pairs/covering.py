"""Covering arrays: few rows in which every pair (or triple) of levels of different factors occurs together.

Greedy, one row at a time, after D. M. Cohen et al., "The AETG System: An Approach to Testing Based on Combinatorial
Design", IEEE TSE 23 (1997). Deterministic for a seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Row", "covering_rows", "tuples_of"]

Row = dict[str, str]
_TRIES = 12  # rows that are made for each that is kept


def tuples_of(row: Mapping[str, str], strength: int) -> set[tuple[tuple[str, str], ...]]:
    """The combinations of ``strength`` levels that occur in a row."""
    return set(itertools.combinations(sorted(row.items()), strength))


def covering_rows(
    factors: Mapping[str, Sequence[str]],
    *,
    allowed: Callable[[Row], bool] = lambda row: True,
    strength: int = 2,
    seed: int = 0,
) -> tuple[list[Row], int]:
    """(rows, how many combinations they cover). ``allowed`` says whether a whole row makes sense.

    A combination that occurs in no allowed row is given up after some tries.
    """
    chance = random.Random(seed)
    names = list(factors)
    left = {
        tuple(sorted(zip(chosen, levels)))
        for chosen in itertools.combinations(names, strength)
        for levels in itertools.product(*(factors[name] for name in chosen))
    }
    rows: list[Row] = []
    covered = 0
    while left:
        aim = min(left) if chance.random() < 0.5 else chance.choice(sorted(left))
        best, gain = None, 0
        for _ in range(_TRIES):
            row = _row(factors, names, dict(aim), left, strength, chance)
            if not allowed(row):
                row = _repaired(factors, names, dict(aim), allowed, chance) or row
            if allowed(row):
                found = len(tuples_of(row, strength) & left)
                if found > gain:
                    best, gain = row, found
        if best is None:
            left.discard(aim)
            continue
        rows.append(best)
        covered += gain
        left -= tuples_of(best, strength)
    return rows, covered


def _row(
    factors: Mapping[str, Sequence[str]],
    names: Sequence[str],
    row: Row,
    left: set[tuple[tuple[str, str], ...]],
    strength: int,
    chance: random.Random,
) -> Row:
    """A row that has what ``row`` has, and for each other factor the level that covers most."""
    others = [name for name in names if name not in row]
    chance.shuffle(others)
    for name in others:
        levels = list(factors[name])
        chance.shuffle(levels)
        known = list(itertools.combinations(sorted(row.items()), strength - 1))
        gains = [sum(tuple(sorted((*some, (name, level)))) in left for some in known) for level in levels]
        row[name] = levels[gains.index(max(gains))]
    return row


def _repaired(
    factors: Mapping[str, Sequence[str]],
    names: Sequence[str],
    aim: Row,
    allowed: Callable[[Row], bool],
    chance: random.Random,
) -> Row | None:
    """An allowed row that has what ``aim`` has, by chance: more and more of the first, plainest, levels."""
    for share in (0.3, 0.5, 0.7, 0.9, 1.0):
        for _ in range(6):
            row = {
                name: aim.get(name) or (factors[name][0] if chance.random() < share else chance.choice(factors[name]))
                for name in names
            }
            if allowed(row):
                return row
    return None
