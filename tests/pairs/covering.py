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
    items = sorted((name, level) for name in names for level in factors[name])
    code = {item: number for number, item in enumerate(items)}
    left = {
        tuple(sorted(code[item] for item in zip(chosen, levels)))
        for chosen in itertools.combinations(names, strength)
        for levels in itertools.product(*(factors[name] for name in chosen))
    }
    partners: dict[tuple[int, ...], int] = {}  # of what is left: all but one of a combination -> the others, as bits

    def change(combination: tuple[int, ...]) -> None:
        for place, last in enumerate(combination):
            rest = combination[:place] + combination[place + 1 :]
            partners[rest] = partners.get(rest, 0) ^ (1 << last)

    for combination in left:
        change(combination)
    rows: list[Row] = []
    covered = 0
    while left:
        aimed = min(left) if chance.random() < 0.5 else chance.choice(sorted(left))
        aim = dict(items[number] for number in aimed)
        best, gain = None, set[tuple[int, ...]]()
        for _ in range(_TRIES):
            row = _row(factors, names, dict(aim), code, partners, strength, chance)
            if not allowed(row):
                row = _repaired(factors, names, dict(aim), allowed, chance) or row
            if allowed(row):
                found = left & set(itertools.combinations(sorted(code[item] for item in row.items()), strength))
                if len(found) > len(gain):
                    best, gain = row, found
        if best is None:
            gain = {aimed}
        else:
            rows.append(best)
            covered += len(gain)
        left -= gain
        for combination in gain:
            change(combination)
    return rows, covered


def _row(
    factors: Mapping[str, Sequence[str]],
    names: Sequence[str],
    row: Row,
    code: Mapping[tuple[str, str], int],
    partners: Mapping[tuple[int, ...], int],
    strength: int,
    chance: random.Random,
) -> Row:
    """A row that has what ``row`` has, and for each other factor the level that covers most."""
    others = [name for name in names if name not in row]
    chance.shuffle(others)
    for name in others:
        levels = list(factors[name])
        chance.shuffle(levels)
        known = itertools.combinations(sorted(code[item] for item in row.items()), strength - 1)
        wanted = [partners.get(some, 0) for some in known]
        gains = [sum(bits >> number & 1 for bits in wanted) for number in (code[name, level] for level in levels)]
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
