"""Changes the imports of a test file of torchdata, or of torch, to torchpipe's; lets each statement fail by itself."""

from __future__ import annotations

import ast
import importlib
import re

__all__ = ["rewritten", "with_imports"]

PLACES = {
    "torchpipe.iter": ["torchpipe.iter", "torchpipe"],
    "torchpipe.map": ["torchpipe.map", "torchpipe"],
    "torchdata.datapipes.utils": ["torchpipe.utils"],
    "torchdata.dataloader2": ["torchpipe", "reading_services"],
    "torchdata.dataloader2.adapter": ["torchpipe.torchdata.dataloader2.adapter"],
    "torchdata.dataloader2.graph": ["torchpipe.torchdata.dataloader2.graph"],
    "torchdata.dataloader2.graph.settings": ["torchpipe.torchdata.dataloader2.graph.settings"],
    "torchdata.dataloader2.linter": ["torchpipe.torchdata.dataloader2.linter"],
    "torchdata.dataloader2.random": ["torchpipe"],
}
RENAMED = {"PrefetchTimeoutError": "torchpipe.errors.RankError"}
TEXTS = [
    (r"\btorchdata\.datapipes\.(iter|map)\b(?!\.)", r"torchpipe.\1"),
    (r"^import torchdata$", "import torchpipe.iter\nimport torchpipe.map"),
    (r"^import torch\.utils\.data\.datapipes as dp$", "import torchpipe as dp, torchpipe.iter, torchpipe.map"),
]


def rewritten(name: str, source: str, *, torchs: bool = False) -> str:
    """The test file ``name`` with other imports, each statement of its tests under guard."""
    tree = ast.parse(source)
    _Guard(name).visit(tree)
    return with_imports(ast.unparse(ast.fix_missing_locations(tree)), torchs=torchs)


def with_imports(text: str, *, torchs: bool = False) -> str:
    """The text with imports of torchpipe's. ``torchs``: it takes torch's own classes of nodes, too."""
    for pattern, replacement in TEXTS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    tree = _Imports().visit(ast.parse(text))
    head = [*ast.parse("from tools.torchdata_tests import softly").body]
    if torchs:
        head += ast.parse("from torchpipe.node.datapipe import DataChunk, IterDataPipe, MapDataPipe").body
    at = next(i for i, node in enumerate(tree.body) if not _is_first(node))
    tree.body[at:at] = head[:1]
    if torchs:
        last = max(i for i, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom))
        tree.body[last + 1 : last + 1] = head[1:]
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_first(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


class _Imports(ast.NodeTransformer):
    """``from torchdata... import a, b``: each name from where it is."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt] | ast.stmt:
        module = node.module or ""
        if module not in PLACES and not module.startswith(("torchdata.dataloader2", "torchdata.datapipes")):
            return node
        statements: list[ast.stmt] = []
        for alias in node.names:
            called = alias.asname or alias.name
            found = RENAMED.get(alias.name) or next(
                (
                    f"{place}.{alias.name}"
                    for place in PLACES.get(module, ())
                    if getattr(importlib.import_module(place), alias.name, None) is not None
                ),
                None,
            )
            if found is None:
                text = f"{called} = softly.Missing('{module}.{alias.name}')"
            else:
                place, _, name = found.rpartition(".")
                text = f"from {place} import {name} as {called}"
            statements += ast.parse(text).body
        return statements


class _Guard(ast.NodeTransformer):
    """Puts each statement of a test into a ``try`` of its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if re.match(r"_?test", node.name):
            node.body = self._guarded(node.body)
        return node

    def _guarded(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [self._guard(statement) for statement in body]

    def _guard(self, node: ast.stmt) -> ast.stmt:
        compound = ast.For | ast.While | ast.If | ast.Try
        passed_by = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Return | ast.Break | ast.Continue
        if isinstance(node, passed_by | ast.Global | ast.Nonlocal | ast.Pass):
            return node
        inner = isinstance(node, compound) or (isinstance(node, ast.With) and not _expects(node))
        if inner and not isinstance(node, ast.Try):
            for field in ("body", "orelse"):
                if getattr(node, field, None):
                    setattr(node, field, self._guarded(getattr(node, field)))
        place = f"{self._name}:{node.lineno}"
        guard = ast.parse(f"try:\n    pass\nexcept Exception as _e:\n    softly.differs({place!r}, _e)").body[0]
        assert isinstance(guard, ast.Try)
        guard.body = [node]
        if not inner:
            guard.orelse = ast.parse(f"softly.holds({place!r})").body
        return guard


def _expects(node: ast.With) -> bool:
    """Does it say what its body raises, or warns of?"""
    return any(re.search(r"assert|catch_warnings|raises", ast.unparse(item.context_expr)) for item in node.items)
