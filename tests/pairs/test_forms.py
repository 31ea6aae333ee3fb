"""All pairs of forms, one behind the other: exact in process, in workers and through a cache, or refused by name.

``make pairs`` looks on with other seeds, and with every form where one counts for its family here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterDataPipe, MapDataPipe

import torchpipe.iter
import torchpipe.map
from tests.pairs.form_cached import check_changed, check_rewritten, names_files
from tests.pairs.form_chains import Chain, chain_of, chain_with, covering_chains, name_of, pairs, pairs_in
from tests.pairs.form_material import write_files
from tests.pairs.form_rules import LIMITS, REFUSALS, alone, limit_of, refusal_of
from tests.pairs.form_runs import check, check_in_workers, check_model
from tests.pairs.forms import FORMS, LEFT_OUT, NUMBERS
from torchpipe.places import FORMS as FUNCTIONAL_FORMS

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


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


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


def test_every_form_and_every_source_has_an_entry() -> None:
    classes = {
        found.__name__
        for package in (torchpipe.iter, torchpipe.map)
        for found in (getattr(package, name) for name in package.__all__)
        if isinstance(found, type) and issubclass(found, IterDataPipe | MapDataPipe)
    }
    with_a_form = {place.partition(":")[2] for forms in FUNCTIONAL_FORMS.values() for place in forms.values()}
    map_forms = {form if form == "to_iter_datapipe" else f"map-style {form}" for form in FUNCTIONAL_FORMS["map"]}
    wanted = {*FUNCTIONAL_FORMS["iter"], *map_forms, *(classes - with_a_form - {"IterDataPipe", "MapDataPipe"})}
    assert wanted - {form.name for form in FORMS.values()} - LEFT_OUT.keys() == set()


def test_every_pair_occurs() -> None:
    assert pairs() == set().union(*map(pairs_in, chains()))


@pytest.mark.parametrize("part", range(2))
def test_forms_do_what_plain_python_does(part: int) -> None:
    some = [*(chain_with(key, number) for key in sorted(FORMS) for number in NUMBERS), *chains()]
    assert sum(check_each(some[part::2], check_model)) > 100


@pytest.mark.parametrize("part", range(4))
def test_a_cache_never_gives_items_of_other_arguments(part: int) -> None:
    """Of each form alone, each argument; of some pairs, one."""
    alone_ones = [*map(chain_with, sorted(FORMS))][part::4]
    found = check_each(alone_ones, partial(check_changed, last=True))
    assert found.count("changed") > len(found) / 3
    assert check_each(chains()[part * 6 :: PARTS], check_changed).count("changed") > 20


@pytest.mark.parametrize("part", range(2))
def test_a_cache_never_gives_items_of_other_files(part: int) -> None:
    assert check_each(rewritable_chains()[part::2], check_rewritten).count("changed") > 5


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.what)
def test_what_is_said_to_be_refused_is(refusal: Any) -> None:
    assert check(chain_of(refusal.example), thorough=True, workers=True) == f"refused: {refusal.what}"


def test_what_is_said_not_to_be_exact_can_be_built() -> None:
    assert [limit_of(chain_of(limit.example)) for limit in LIMITS] == LIMITS
    assert not any(refusal_of(chain_of(limit.example)) for limit in LIMITS)


@pytest.mark.parametrize("part", range(PARTS))
def test_L1_L2_every_pair_is_exact_in_process_or_refused(part: int) -> None:
    check_each(chains()[part::PARTS], check)


@pytest.mark.parametrize("part", range(PARTS))
def test_L1_L2_L4_forms_are_exact_in_workers_of_which_one_is_killed(part: int) -> None:
    check_each(few_chains()[part::PARTS], check_in_workers)
