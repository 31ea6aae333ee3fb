"""A docstring explains no argument that is gone: what a sentence begins with, "``name``: ...", stands in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_EXPLAINED = re.compile(r"(?:^|[.;]\s+|\n\s*)``([a-z_]+)``: ")


def _explained(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name of a class or function, what its docstring explains that is nowhere in its code)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
            explained = set(_EXPLAINED.findall(doc))
            if explained:
                code = ast.unparse(ast.Module(node.body[1:], []))
                if not isinstance(node, ast.ClassDef):
                    code += ast.unparse(node.args)
                yield from ((node.name, name) for name in explained - set(re.findall(r"\w+", code)))


def test_what_a_docstring_explains_is_there() -> None:
    assert list(_explained(ast.parse('def add(entries):\n    "Adds.\\n\\n    ``dealt``: of each."\n'))) == [
        ("add", "dealt")
    ]
    paths = [path for package in ("torchpipe", "reading_services") for path in (_ROOT / package).rglob("*.py")]
    assert len(paths) > 200
    found = [(path.relative_to(_ROOT), *of) for path in paths for of in _explained(ast.parse(path.read_text()))]
    assert not found, "the docstring explains what is not in the code: was it renamed?"
