"""Docstrings as the site shows them: roles become links, what a paragraph is about stands out, fields have theirs.

An extension of griffe, which reads the sources; named in mkdocs.yml.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import griffe
import reference

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`(~?)([\w.]+)`")
_LEAD = re.compile(r"^(State|Raises|Returns|Yields|Length|Costs|Ends): ", re.MULTILINE)
_LITERAL = re.compile(r"(?<=\S)::$", re.MULTILINE)
_PACKAGES = ("torchpipe.", "reading_services.")
_NAMES = [name for module in reversed(reference.MODULES) for name in reference.module_names(module)]
_HOMES = {name.definition: name.path for name in _NAMES}  # of several modules, the first
_CALLED = {name.name: _HOMES[name.definition] for name in _NAMES}
_PATHS = {name.path for name in _NAMES}
_FORMS = {name.definition: name.form for name in _NAMES}


def _public(path: str) -> str:
    """The public path of what is defined, reached or looked for at ``path``."""
    owner, _, name = path.rpartition(".")
    if owner in _HOMES:
        return f"{_HOMES[owner]}.{name}"
    return _HOMES.get(path) or (path if path in _PATHS else _CALLED.get(name, path))


class Docstrings(griffe.Extension):
    """Rewrites each docstring of a package, once all of it is read and names in it can be looked up."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        self._rewrite(pkg)

    def _rewrite(self, obj: griffe.Object) -> None:
        if obj.docstring is None and (comment := _comment(obj)):
            obj.docstring = griffe.Docstring(comment, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = _rewritten(obj, obj.docstring.value)
        for member in obj.members.values():
            if isinstance(member, griffe.Object):  # what is imported is rewritten where it stands
                self._rewrite(member)


def _comment(obj: griffe.Object) -> str:
    """What stands behind a field of a dataclass, in its line: such fields have no docstrings."""
    if not isinstance(obj, griffe.Attribute) or obj.parent is None or "dataclass" not in obj.parent.labels:
        return ""
    _, _, comment = obj.source.partition("  # ")
    return "" if comment.startswith("type:") else comment[:1].upper() + comment[1:]


def _rewritten(obj: griffe.Object, text: str) -> str:
    def link(match: re.Match[str]) -> str:
        target = match[2]
        shown = target.rpartition(".")[2] if match[1] else target
        try:
            path = target if target.startswith(_PACKAGES) else obj.resolve(target)
        except griffe.NameResolutionError:
            path = target
        return f'<autoref optional identifier="{_public(path)}"><code>{shown}</code></autoref>'

    text = _LITERAL.sub(":", _LEAD.sub(r"**\1**: ", _ROLE.sub(link, text)))
    form = _FORMS.get(obj.path)
    return f"{text}\n\n**On another node**: `.{form}(...)`" if form else text
