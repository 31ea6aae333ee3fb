"""The chains of forms that the tests run, from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tests.pairs.form_cached import names_files
from tests.pairs.form_chains import Chain, covering_chains, name_of
from tests.pairs.form_rules import alone

__all__ = ["PARTS", "chains", "check_each", "few_chains", "rewritable_chains"]

SEED = 1
PARTS = 24  # of the chains, so that several processes share them


@cache
def chains() -> list[Chain]:
    return list(covering_chains(SEED, alone=alone))


@cache
def few_chains() -> list[Chain]:
    """Of those that are not refused, few in which each form of ``chains()`` occurs."""
    usual = [chain for chain in chains() if not alone(chain)]
    found: list[Chain] = []
    left = {key for chain in usual for key, _ in chain}
    while left:
        found.append(max(usual, key=lambda chain: len({key for key, _ in chain} & left)))
        left -= {key for key, _ in found[-1]}
    return found


@cache
def rewritable_chains() -> list[Chain]:
    """One for each form that may stand in such a chain."""
    found: dict[str, Chain] = {}
    for chain in filter(names_files, chains()):
        if not alone(chain):
            for key, _ in chain:
                found.setdefault(key, chain)
    return sorted(set(found.values()))


def check_each(some: list[Chain], does: Callable[[Chain], Any]) -> list[Any]:
    """What it says of each. Fails with the names of all chains that fail."""
    found, failures = [], []
    for chain in some:
        try:
            found.append(does(chain))
        except Exception as error:
            failures.append(f'python -m tests.pairs.hunt --chain "{name_of(chain)}"\n  {type(error).__name__}: {error}')
    assert not failures, "\n".join(failures)
    return found
