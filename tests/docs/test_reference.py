"""The site's reference has every public name, and what the documentation shows is made of public names.

The pages themselves, links and anchors are checked by `make docs`, which builds them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.site import reference
from torchpipe.node.functional import registered

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", reference.MODULES)
def test_every_name_has_a_place_and_says_what_it_is(module: str) -> None:
    pages = "\n".join(reference.pages().values())
    assert reference.module_names(module)
    for name in reference.module_names(module):
        assert f"::: {name.path}\n" in pages or f"{{#{name.path}}}" in pages
        defined = [node for node in reference.body_of(name.source) if getattr(node, "name", "") == name.name]
        for node in defined:
            assert ast.get_docstring(node), f"{name.definition} has no docstring"


def test_every_functional_form_is_found_without_importing() -> None:
    modules = ("torchpipe.iter", "torchpipe.map", "torchpipe.torchdata")
    public = {(name.form, name.name) for module in modules for name in reference.module_names(module)}
    registry = {**registered("iter"), **registered("map")}.items()
    ours = {(form, cls.__name__) for form, cls in registry if cls.__module__.startswith("torchpipe.")}
    assert ours == {(form, name) for form, name in public if form}


def test_what_the_documentation_imports_is_in_the_reference() -> None:
    public = {name.definition for module in reference.MODULES for name in reference.module_names(module)}
    for page in [ROOT / "README.md", ROOT / "skills/torchpipe/SKILL.md", *(ROOT / "docs").rglob("*.md")]:
        for module, names in re.findall(
            r"^from ((?:torchpipe|reading_services)\S*) import (.*)$", page.read_text(), re.M
        ):
            for name in re.findall(r"\w+", names.partition("#")[0]):
                assert reference.definition_of(module, name) in public, f"{page.name}: {name} of {module} is internal"
