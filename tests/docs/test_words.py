"""The word list of docs/architecture.md, and names of public things that keep to it."""

from __future__ import annotations

import ast
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

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "architecture.md"
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
    *("place", "places", "standing", "lag", "premise", "premises", "owed", "apart", "leaves", "told", "said"),
    *("known", "adopt", "dealt", "noted", "accounts", "lane", "lanes", "careful", "suspect", "whole"),
)
# the same for names that only we read: those of files, and of what modules and classes define
_RETIRED_INSIDE = (
    *("place", "places", "standing", "lag", "premise", "premises", "owed", "apart", "alone", "leaves", "told"),
    *("said", "known", "adopt", "adopted", "dealt", "noted", "accounts"),
)
# a docstring names its subject: it begins with none of these
_WITHOUT_SUBJECT = ("What", "How", "Where", "Of", "As", "Those", "Which", "Whether")
_PLAIN_ENGLISH = ("in_place", "alone_per_s")  # "changed in place"; a key of profile()'s data


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower()))


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
    found = {name for name in names if _words(re.split(r"[.(]", name)[-1]) & {*_RETIRED}}
    assert not found


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a module defines, and those of its classes' methods and fields."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_no_file_defines_a_name_of_retired_words() -> None:
    files = [path for package in ("torchpipe", "reading_services") for path in (_ROOT / package).rglob("*.py")]
    assert len(files) > 200
    found = {
        f"{path.relative_to(_ROOT)}: {name}"
        for path in files
        for name in (path.stem, *_defined(ast.parse(path.read_text()).body))
        if _words(name) & {*_RETIRED_INSIDE} and not name.endswith(_PLAIN_ENGLISH)
    }
    assert not found


def test_docstrings_name_their_subject() -> None:
    files = [path for package in ("torchpipe", "reading_services") for path in (_ROOT / package).rglob("*.py")]
    assert len(files) > 200
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    without_subject = [
        f"{path.relative_to(_ROOT)}: {doc.splitlines()[0]}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented) and (doc := ast.get_docstring(node))
        if re.split(r"\W", doc, maxsplit=1)[0] in _WITHOUT_SUBJECT
    ]
    assert not without_subject


def test_each_word_has_one_row() -> None:
    rows = _PAGE.read_text().partition("## Words")[2].partition("\n## ")[0]
    words = re.findall(r"^\| ([a-z ]+) \| .+ \| .+ \|$", rows, flags=re.MULTILINE)[1:]
    assert len(words) >= 30
    assert len(set(words)) == len(words)
    assert not set(words) & {*_RETIRED} - {"lane"}  # the engine's own
