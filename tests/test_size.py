"""What torchpipe may cost to read: the figures of ``tools/size.tsv`` may fall, and rise by hand alone."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def _size() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size", TOOLS / "size.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_figure_rises_unseen() -> None:
    size = _size()
    now, known = size.measure(), size.read()
    risen = {name: (known.get(name, (0, ""))[0], count) for name, count in now.items()}
    risen = {name: counts for name, counts in risen.items() if counts[1] > counts[0]}
    assert not risen, (
        f'(before, now): {risen}\nMake it smaller (CONTRIBUTING.md, "What a change may cost"), or change its line in '
        "tools/size.tsv by hand, in this commit, with the reason"
    )


def test_code_lines_are_those_with_code() -> None:
    docstring = '"""A job.\n\nMore.\n"""\n\n# a comment\n'
    code = 'x = (\n    1,  # why\n)\n\n\ndef f():\n    """Text."""\n    return """a\nb"""\n'
    text = docstring + code
    assert _size().code_lines(text, ast.parse(text)) == 6
