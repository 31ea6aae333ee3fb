"""Figures travel as JSON, the advice with them, and as text they begin with its sentence."""

from __future__ import annotations

import json

from tests.stats.test_model import WHOLE
from torchpipe.stats import LoaderStats


def test_figures_travel_as_json() -> None:
    text = WHOLE.to_json()
    assert LoaderStats.from_json(text) == WHOLE
    assert json.loads(text)["nodes"][0]["name"] == "Mapper(f)"
    assert json.loads(text)["advice"]["sentence"] == WHOLE.advice.sentence
    assert LoaderStats.from_json(json.dumps({**json.loads(text), "of a later version": 1})) == WHOLE


def test_as_text_they_begin_with_the_sentence() -> None:
    lines = str(WHOLE).splitlines()
    assert WHOLE.advice.sentence
    assert lines[0].startswith(WHOLE.advice.sentence)
    assert any("Mapper(f)" in line and "100 %" in line for line in lines)
