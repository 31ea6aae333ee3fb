"""The user's hand: functions that change their argument, give numpy's numbers or raise StopIteration, in each form."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.pairs.form_chains import Chain, chain_with, finished, fits, name_of
from tests.pairs.form_material import HAND, write_files
from tests.pairs.form_rules import alone, may_be_refused
from tests.pairs.form_runs import check, check_in_workers, check_model, in_process, whole
from tests.pairs.form_samples import check_each
from tests.pairs.forms import FORMS, NUMBERS
from tests.pairs.parts import parts

_NEVER = 1 << 40
_LEADS: list[Chain] = [
    (("mutable", 0),),
    (("mutable", 1),),
    (("mutable", 2),),
    (("mutable", 3),),
    (("mutable", 1), ("batch", 1)),
    (("map/dict", 0),),
    (("map/dict", 0), ("batch", 2)),
    (("map/list of int", 0),),
    (("map/tensor", 0), ("batch", 1)),
]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


def spoiled_chains() -> list[Chain]:
    """Each form over each kind of items that can be changed, and something behind it that changes them in place."""
    found = set()
    for place, key in enumerate(sorted(FORMS)):
        for number in NUMBERS:
            for lead, steps in enumerate(_LEADS):
                spoils = ("spoils", (place + number + lead) % 4)
                chain = (("IterableWrapper", 0), *steps, (key, number), spoils)
                if fits(chain) and not alone(finished(chain)):
                    found.add(finished(chain))
    return sorted(found)


SPOILED = spoiled_chains()
_PARTS = 96
_FEW = 9


@pytest.mark.parametrize("part", parts(_PARTS, 2))
def test_L2_what_a_function_behind_a_form_changes_in_place_is_the_same_after_a_resume(part: int) -> None:
    check_each(SPOILED[part::_PARTS], partial(check, thorough=True))


@pytest.mark.parametrize("part", parts(_PARTS, 4))
def test_what_a_function_behind_a_form_changes_in_place_is_what_plain_python_changes(part: int) -> None:
    check_each(SPOILED[part::_PARTS], check_model)


@pytest.mark.parametrize("part", parts(16, 2))
def test_L1_L4_what_a_function_changes_in_place_is_the_same_in_workers_of_which_one_is_killed(part: int) -> None:
    check_each(SPOILED[part * 7 :: 16 * 28], check_in_workers)


def _stream(chain: Chain) -> Any:
    """Its items, or the error."""
    try:
        return whole(chain, in_process(chain, _NEVER))
    except Exception as error:
        return error


def check_numbers(does: str, chain: Chain) -> bool:
    """Sizes, keys and answers of numpy or torch give the stream that Python's give, and states that load."""
    expected = _stream(chain)
    if isinstance(expected, Exception):
        assert may_be_refused(chain, expected) is not None
        return False
    with HAND.of(does):
        found = _stream(chain)
        if not HAND.strikes:
            return False
        assert found == expected, f"{found!r:.300}"
        check(chain, thorough=True)
    return True


# Their functions give items, which stay what they are
_GIVES_ITEMS = {"map", "map/code", "flatmap", "interleave", "shuffled_flatmap", "zip_with_iter", "batch/wrapped"} | {
    "own node that remembers",
    "own node in the main section",
}


@pytest.mark.parametrize("part", parts(_FEW, 1))
@pytest.mark.parametrize("does", ["numpy", "torch"])
def test_L1_L2_numbers_of_other_libraries_are_numbers(does: str, part: int) -> None:
    some = [chain_with(key, number) for key in sorted(FORMS) if key not in _GIVES_ITEMS for number in NUMBERS]
    assert sum(check_each(some[part::_FEW], partial(check_numbers, does))) > 1


def check_stops(chain: Chain) -> bool:
    """StopIteration out of a function is an error, and ends nothing in silence."""
    with HAND.of("stops"):
        found = _stream(chain)
        if not HAND.strikes:
            return False
        assert isinstance(found, Exception), f"{name_of(chain)} ended after {len(found)} items"
        assert not isinstance(found, StopIteration)
    return True


@pytest.mark.parametrize("part", parts(_FEW, 1))
def test_L7_a_function_that_raises_stop_iteration_ends_no_stream(part: int) -> None:
    some = [chain_with(key, number) for key in sorted(FORMS) for number in NUMBERS]
    assert sum(check_each(some[part::_FEW], check_stops)) > 5
