"""All pairs of forms, one behind the other: exact in process, in workers and through a cache, or refused by name.

``make pairs`` looks on with other seeds, and with every form where one counts for its family here.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.pairs.form_cached import check_changed, check_rewritten
from tests.pairs.form_chains import chain_with, pairs, pairs_in
from tests.pairs.form_material import write_files
from tests.pairs.form_runs import check, check_in_workers, check_model
from tests.pairs.form_samples import PARTS, chains, check_each, few_chains, rewritable_chains
from tests.pairs.forms import FORMS
from tests.pairs.parts import parts


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_every_pair_occurs() -> None:
    assert pairs() == set().union(*map(pairs_in, chains()))


def test_pairs_of_forms_do_what_plain_python_does() -> None:
    assert sum(check_each(chains(), check_model)) > 100


@pytest.mark.parametrize("part", range(16))
def test_a_cache_never_gives_items_of_other_arguments(part: int) -> None:
    """Of each form alone, each argument; of some pairs, one."""
    alone_ones = [*map(chain_with, sorted(FORMS))][part::16]
    found = check_each(alone_ones, partial(check_changed, last=True))
    assert found.count("changed") > len(found) / 3
    assert check_each(chains()[part :: 4 * PARTS], check_changed).count("changed") > 3


@pytest.mark.parametrize("part", range(8))
def test_a_cache_never_gives_items_of_other_files(part: int) -> None:
    assert check_each(rewritable_chains()[part::8], check_rewritten).count("changed") > 1


@pytest.mark.parametrize("part", parts(10 * PARTS, 4))
def test_L1_L2_every_pair_is_exact_in_process_or_refused(part: int) -> None:
    check_each(chains()[part :: 10 * PARTS], check)


@pytest.mark.parametrize("part", range(PARTS))
def test_L1_L2_L4_forms_are_exact_in_workers_of_which_one_is_killed(part: int) -> None:
    check_each(few_chains()[part::PARTS], check_in_workers)
