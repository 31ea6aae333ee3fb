"""The word list of docs/architecture.md, and names of public things that keep to it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import reading_services
import torchpipe
import torchpipe.iter
import torchpipe.map
import torchpipe.state
import torchpipe.stats
import torchpipe.testing

_PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
_ROOMS = (
    torchpipe,
    torchpipe.iter,
    torchpipe.map,
    torchpipe.state,
    torchpipe.stats,
    torchpipe.testing,
    reading_services,
)
# words with a private or a second meaning: "position", "worker", "shard", "skip" and "pending" say it plainly
_RETIRED = (
    *("place", "places", "standing", "ring", "lag", "premise", "premises", "owed", "apart", "leaves", "told", "said"),
    *("known", "adopt", "dealt", "noted", "accounts", "lane", "lanes", "careful", "suspect", "whole"),
)


def _public() -> Iterator[str]:
    """The names that a user may write: of classes, functions, their arguments, and the methods of classes."""
    for room in _ROOMS:
        for name in room.__all__:
            value = getattr(room, name)
            yield name
            if inspect.isclass(value):
                for member, held in inspect.getmembers(value):
                    own = str(getattr(held, "__module__", "")).startswith(("torchpipe", "reading_services"))
                    if own and not member.startswith("_"):
                        yield f"{name}.{member}"
            if callable(value):
                try:
                    yield from (f"{name}({argument})" for argument in inspect.signature(value).parameters)
                except (TypeError, ValueError):  # an enum, say
                    pass


def test_public_names_use_no_retired_word() -> None:
    names = set(_public())
    assert len(names) > 500
    found = {
        name
        for name in names
        if set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", re.split(r"[.(]", name)[-1]).lower())) & {*_RETIRED}
    }
    assert not found


def test_each_word_has_one_row() -> None:
    rows = _PAGE.read_text().partition("## Words")[2].partition("\n## ")[0]
    words = re.findall(r"^\| ([a-z ]+) \| .+ \| .+ \|$", rows, flags=re.MULTILINE)[1:]
    assert len(words) >= 30
    assert len(set(words)) == len(words)
    assert not set(words) & {*_RETIRED} - {"lane"}  # the engine's own
