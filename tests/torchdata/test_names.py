"""Every public name of torchdata 0.9 is here, with form, arguments and defaults, or has its line in docs/migration.md.

``torchdata09.txt`` was written by tools/torchdata_names.py in an environment with torchdata 0.9.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.torchdata_names import arguments_of
from tools.torchdata_tests.rewriting import rewritten
from tools.torchdata_tests.softly import FOLLOWS
from torchpipe.node.functional import registered

ROOT = Path(__file__).parents[2]


def offered() -> dict[str, tuple[str, str]]:
    """``module name`` -> functional form (or ``-``), arguments."""
    found = {}
    for line in (Path(__file__).with_name("torchdata09.txt")).read_text().splitlines():
        module, name, form, arguments = (*line.split(" ", 3), "")[:4]
        found[f"{module} {name}"] = (form, arguments)
    return found


def told(heading: str, page: str = "docs/migration.md") -> set[str]:
    """What stands in backticks in the first column of the table under a heading of a page."""
    section = (ROOT / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def counterpart(module: str, name: str) -> Any:
    """A class or a function, or ``Class.method``; None if there is none."""
    name, _, method = name.partition(".")
    try:
        found = getattr(importlib.import_module(f"torchpipe.{module}"), name, None)
    except ModuleNotFoundError:
        return None
    return getattr(found, method, None) if method else found


def plain(arguments: str) -> list[str]:
    """Arguments to compare: the public ones without ``**kwargs``; of a default that is a function, that it is one."""
    texts = [] if arguments in ("", "-") else re.split(r", (?![^(]*\))", arguments)
    texts = [text for text in texts if not text.startswith(("_", "**", "*args"))]
    return [re.sub(r"=(?!None$|True$|False$)[A-Za-z_]\w*$", "=function", text) for text in texts]


def test_the_inventory_is_whole() -> None:
    modules = [key.split()[0] for key in offered() if "." not in key.split()[1]]
    assert modules.count("torchdata.datapipes.iter") == 87
    assert modules.count("torchdata.datapipes.map") == 10
    assert len(set(modules)) == 10
    assert sum(form != "-" for form, _ in offered().values()) == 90


def complaint(key: str, form: str, arguments: str, absent: set[str], changed: set[str]) -> str | None:
    """What is wrong with a name of torchdata's here, or None."""
    module, name = key.split()
    cls, dot, method = name.partition(".")
    here = counterpart(module, name)
    if here is None:
        told_of = absent & {name, cls, dot + method} and (form == "-" or form in absent)
        return None if told_of else "is nowhere, and docs/migration.md does not say so"
    if name in absent:
        return "is here, and docs/migration.md says that it is not"
    crossing = form in ("to_iter_datapipe", "to_map_datapipe")  # forms of the other style's nodes
    if form != "-" and registered("map" if module.endswith(".map") != crossing else "iter")[form] is not here:
        return f"is not what {form}() makes"
    theirs, ours = plain(arguments), plain(arguments_of(here))
    if ours[: len(theirs)] != theirs and not {f"{name}({arguments})", f"{method}({arguments})"} & changed:
        return f"has the arguments {ours} instead of {theirs}"
    return None


def test_every_name_is_here_with_its_arguments_or_has_its_line() -> None:
    absent, changed = told("Names that are not here"), told("What is different on purpose")
    complaints = {key: complaint(key, *given, absent, changed) for key, given in offered().items()}
    assert {key: text for key, text in complaints.items() if text} == {}


def test_forms_without_a_public_class_have_their_line() -> None:
    for form in ("memory_cell", "trace_as_dataframe", "_dataframes_*", "_to_dataframes_pipe"):
        assert form in told("Names that are not here")


def test_every_kind_of_difference_has_its_reason() -> None:
    lines = re.findall(
        r"^test_\w+\.py:\d+ (\w+)$", Path(__file__).with_name("torchdata09_differences.txt").read_text(), re.M
    )
    assert len(lines) > 200
    assert set(lines) <= told("torchdata's own tests", "tools/peer_suites.md")


def test_the_guarded_tests_note_each_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from torchdata.datapipes.iter import IterableWrapper, Nowhere
def test_it():
    node = IterableWrapper([1, 2])
    assert list(node) == [1]
    for item in node:
        assert item == 1
    absent = Nowhere()
    absent.used
    assert len(node) == 2
"""
    monkeypatch.setenv("SOFTLY_RECORD", str(tmp_path / "record"))
    namespace: dict[str, Any] = {}
    exec(rewritten("a.py", source), namespace)
    namespace["test_it"]()
    noted = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
    errors = {entry["place"]: (entry["error"] or "holds").split(":")[0] for entry in noted}
    assert errors == {
        "a.py:4": "holds",
        "a.py:5": "AssertionError",
        "a.py:7": "AssertionError",
        "a.py:8": "NameError",
        "a.py:9": FOLLOWS,
        "a.py:10": "holds",
    }
