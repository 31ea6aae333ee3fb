"""Private names of other libraries stand in torchpipe/compat alone, a file for each library, with what they are for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("torchpipe", "reading_services")
# By their documentation, these are public all the same: of named tuples and enums, sys._is_gil_enabled(), _thread.
PUBLIC = {"_fields", "_field_defaults", "_make", "_replace", "_asdict", "_name_", "_value_", "_is_gil_enabled"}
PUBLIC |= {"_thread"}
_ASKING = ("getattr", "hasattr", "setattr", "delattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name not in PUBLIC


@cache
def trees() -> dict[str, ast.Module]:
    paths = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    yield
    trees.cache_clear()
    our_names.cache_clear()


@cache
def our_names() -> frozenset[str]:
    """The private names that our own code gives: to functions, classes, variables, arguments and attributes."""
    return frozenset(name for tree in trees().values() for node in ast.walk(tree) for name in _given(node))


def _given(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def foreign_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of the private names in ``tree`` that are none of ours."""
    foreign: set[str] = set()  # what other libraries' modules and names are called here
    for node in ast.walk(tree):
        names: list[ast.alias] = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        source = "" if not isinstance(node, ast.ImportFrom) else f"{node.module or ''}."
        if isinstance(node, ast.ImportFrom) and (node.level or source.startswith(("__future__.", *OURS))):
            continue
        for alias in names:
            full = source + alias.name
            if full.startswith(OURS):
                continue
            foreign.add(alias.asname or alias.name.partition(".")[0])
            if any(is_private(part) for part in full.split(".")):
                yield node.lineno, full  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root: ast.expr = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if node.attr not in our_names() or (isinstance(root, ast.Name) and root.id in foreign):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKING:
            name = node.args[1] if len(node.args) > 1 else None
            text = name.value if isinstance(name, ast.Constant) else None
            if isinstance(text, str) and is_private(text) and text not in our_names():
                yield node.lineno, ast.unparse(node)


def test_private_names_of_others_stand_in_one_place() -> None:
    wrong = [
        f"{path}:{line} {name}"
        for path, tree in trees().items()
        if not path.startswith("torchpipe/compat/")
        for line, name in foreign_names(tree)
    ]
    assert not wrong, "\n  ".join(
        ["use a public name, or put this into the file of its library in torchpipe/compat, with the reason:", *wrong]
    )


@pytest.mark.parametrize(
    "text",
    [
        "from torch._utils import ExceptionWrapper",
        "from torch.utils.data.dataloader import _DatasetKind",
        "import torch\ndef f():\n    return torch._C.something",
        "def f(loader):\n    return loader._a_name_of_nobody",
        "def f(loader):\n    return getattr(loader, '_a_name_of_nobody', None)",
        "import sys\nframe = sys._getframe()",
    ],
)
def test_a_private_name_is_found(text: str) -> None:
    assert list(foreign_names(ast.parse(text)))


def test_a_file_for_each_library_says_why() -> None:
    for path in (ROOT / "torchpipe" / "compat").glob("[!_]*.py"):
        tree = trees()[path.relative_to(ROOT).as_posix()]
        silent = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not ast.get_docstring(node)]
        assert not [name for name in silent if not is_private(name)], path
