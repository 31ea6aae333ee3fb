"""Every form: it has an entry, does what plain Python does, resumes anywhere, and is refused where it is said to be."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterDataPipe, MapDataPipe

import torchpipe.iter
import torchpipe.map
from tests.pairs.form_chains import chain_of, chain_with
from tests.pairs.form_material import write_files
from tests.pairs.form_rules import LIMITS, REFUSALS, limit_of, refusal_of
from tests.pairs.form_runs import check, check_model
from tests.pairs.form_samples import check_each
from tests.pairs.forms import FORMS, LEFT_OUT, NUMBERS
from torchpipe.public_names import FORMS as FUNCTIONAL_FORMS
from torchpipe.rings import is_here


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_every_form_and_every_source_has_an_entry() -> None:
    classes = {
        found.__name__
        for package in (torchpipe.iter, torchpipe.map)
        for found in (getattr(package, name) for name in package.__all__)
        if isinstance(found, type) and issubclass(found, IterDataPipe | MapDataPipe)
    }
    here = {
        kind: {form: place for form, place in forms.items() if is_here(place.partition(":")[0])}
        for kind, forms in FUNCTIONAL_FORMS.items()
    }
    with_a_form = {place.partition(":")[2] for forms in here.values() for place in forms.values()}
    map_forms = {form if form == "to_iter_datapipe" else f"map-style {form}" for form in here["map"]}
    wanted = {*here["iter"], *map_forms, *(classes - with_a_form - {"IterDataPipe", "MapDataPipe"})}
    assert wanted - {form.name for form in FORMS.values()} - LEFT_OUT.keys() == set()


@pytest.mark.parametrize("part", range(4))
def test_each_form_does_what_plain_python_does(part: int) -> None:
    some = [chain_with(key, number) for key in sorted(FORMS) for number in NUMBERS]
    assert sum(check_each(some[part::4], check_model)) > 50


@pytest.mark.parametrize("part", range(8))
def test_L1_L2_each_form_is_exact_wherever_it_is_stopped(part: int) -> None:
    check_each([chain_with(key, 0) for key in sorted(FORMS)[part::8]], partial(check, thorough=True))


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.what)
def test_what_is_said_to_be_refused_is(refusal: Any) -> None:
    assert check(chain_of(refusal.example), thorough=True, workers=True) == f"refused: {refusal.what}"


def test_what_is_said_not_to_be_exact_can_be_built() -> None:
    assert [limit_of(chain_of(limit.example)) for limit in LIMITS] == LIMITS
    assert not any(refusal_of(chain_of(limit.example)) for limit in LIMITS)
