"""How large torchpipe is, and whether a change makes it larger: the figures of ``tools/size.tsv`` may only fall.

``make size`` prints each figure beside the one that the file has, and lowers those that fell. It raises none: where one
must rise, its line is changed by hand, in the same commit, with the reason in the last column. ``tests/test_size.py``
compares. Needs Python alone.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".tsv")
PACKAGES = ("torchpipe", "reading_services")
# Those that hold public names, and the classes whose arguments users meet.
PUBLIC = {
    "torchpipe": "torchpipe/__init__.py",
    "torchpipe.iter, .map": "torchpipe/iter/__init__.py torchpipe/map/__init__.py",
    "torchpipe.graph, .stats, .state, .errors, .device, .testing": " ".join(
        f"torchpipe/{name}" for name in ("graph/__init__.py", "stats/__init__.py", "state/__init__.py", "errors.py",
        "device/__init__.py", "testing/__init__.py")
    ),
    "reading_services": "reading_services/__init__.py",
}  # fmt: skip
ARGUMENTS = {
    "DataLoader": "torchpipe/data/loader.py",
    "DataLoader2": "torchpipe/loader/dataloader2.py",
    "InProcessReadingService": "torchpipe/execution/reading_service.py",
    "MultiProcessingReadingService": "reading_services/multiprocessing.py",
    "DistributedReadingService": "reading_services/distributed.py",
    "RayReadingService": "reading_services/ray.py",
}
_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def code_lines(text: str, tree: ast.Module) -> int:
    """The number of lines that hold code: no docstring, no comment, not blank."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                if (
                    isinstance(part, ast.Expr)
                    and isinstance(part.value, ast.Constant)
                    and isinstance(part.value.value, str)
                ):
                    lines.difference_update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return len(lines)


def imported(tree: ast.Module) -> Iterator[str]:
    """What each import names, in functions and for types too; ``from a import b, c`` gives ``a.b`` and ``a.c``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _rings() -> dict[str, tuple[str, ...]]:
    tree = ast.parse((ROOT / "torchpipe" / "rings.py").read_text())
    assigned = next(node for node in tree.body if isinstance(node, ast.AnnAssign))
    rings: dict[str, tuple[str, ...]] = ast.literal_eval(assigned.value)  # type: ignore[arg-type]
    return rings


def _public_names(files: str) -> int:
    count = 0
    for name in files.split():
        for node in ast.parse((ROOT / name).read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                count += len(ast.literal_eval(node.value))
    return count


def _members(tree: ast.Module, name: str) -> list[ast.stmt]:
    return next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _arguments(name: str, file: str) -> int:
    members = _members(ast.parse((ROOT / file).read_text()), name)
    made = next(node for node in members if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return len(made.args.posonlyargs) + len(made.args.args) + len(made.args.kwonlyargs) - 1


def measure() -> dict[str, int]:
    """Every figure by its name."""
    rings = _rings()

    def ring_of(module: str) -> str | None:
        return next(
            (ring for ring, parts in rings.items() for part in parts if f"{module}.".startswith(f"{part}.")), None
        )

    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    to_rings = to_services = 0
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            inner = path.relative_to(ROOT).with_suffix("").parts
            module, text = ".".join(inner).removesuffix(".__init__"), path.read_text()
            tree = ast.parse(text)
            ring = ring_of(module)
            room = f"ring {ring}" if ring else "core " + "/".join(inner[:2] if len(inner) > 2 else inner[:1])
            for name in (room, "core" if ring is None else "rings"):
                lines[name] += code_lines(text, tree)
                files[name] += 1
            if ring is None and module not in PACKAGES:  # those two gather everybody's public names
                to_rings += sum(ring_of(name) is not None for name in imported(tree))
                to_services += package == "torchpipe" and sum(
                    name.startswith("reading_services") for name in imported(tree)
                )
    figures = {f"code lines: {name}": lines[name] for name in ("core", "rings")}
    figures |= {f"files: {name}": files[name] for name in ("core", "rings")}
    figures |= {f"code lines: {name}": count for name, count in sorted(lines.items()) if " " in name}
    figures["imports of rings by the core"] = to_rings
    figures["imports of reading_services by torchpipe's core"] = to_services
    figures |= {f"public names: {name}": _public_names(names) for name, names in PUBLIC.items()}
    figures |= {
        f"arguments: {name}": _arguments(name, file) for name, file in ARGUMENTS.items() if (ROOT / file).exists()
    }
    iterator = _members(ast.parse((ROOT / "torchpipe" / "node" / "iterator.py").read_text()), "NodeIterator")
    figures["methods of NodeIterator"] = sum(isinstance(node, ast.FunctionDef) for node in iterator)
    figures["code lines: tests"] = sum(
        code_lines(text, ast.parse(text)) for text in (path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    )
    pages = (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    figures["words: docs, README, CONTRIBUTING"] = sum(len(path.read_text().split()) for path in pages)
    return figures


def read() -> dict[str, tuple[int, str]]:
    """The figures of the file, each with the reason why it last rose."""
    rows = (line.split("\t") for line in TABLE.read_text().splitlines()[1:])
    return {name: (int(count), reason) for name, count, reason in rows}


def write(figures: dict[str, tuple[int, str]]) -> None:
    """The file anew."""
    rows = ["figure\tnow\twhy it last rose", *(f"{name}\t{count}\t{why}" for name, (count, why) in figures.items())]
    TABLE.write_text("\n".join(rows) + "\n")


def main() -> int:
    """Prints the table and lowers what fell. Exits with 1 where a figure rose."""
    now, known = measure(), read() if TABLE.exists() else {}
    rose = False
    for name in [*now, *(name for name in known if name not in now)]:
        before, after = known.get(name, (None,))[0], now.get(name)
        if before is None or after is None:
            sign = "new" if before is None else "gone"
        else:
            rose |= after > before
            sign = "ROSE" if after > before else "fell" if after < before else ""
        print(f"{name:74} {'-' if before is None else before:>7} {'-' if after is None else after:>7}  {sign}".rstrip())
    kept = {name: known.get(name, (count, "")) for name, count in now.items()}
    write({name: (min(count, kept[name][0]), kept[name][1]) for name, count in now.items()})
    return int(rose)


if __name__ == "__main__":
    sys.exit(main())
