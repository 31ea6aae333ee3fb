"""The pages of the reference: a heading and a directive for every public name, found without importing anything.

A name is public if the ``__all__`` of one of the modules in ``MODULES`` has it. Runs while the site is built, and in
the tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["MODULES", "Name", "body_of", "definition_of", "exported", "module_names", "node_rooms", "pages"]

ROOT = Path(__file__).resolve().parents[2]

# What users import from, in the order of the navigation; the first that has a name documents it.
_FIRST = (
    "torchpipe",
    "reading_services",
    "torchpipe.iter",
    "torchpipe.map",
    "torchpipe.data",
    "torchpipe.errors",
    "torchpipe.state",
    "torchpipe.state.shared_list",
    "torchpipe.stats",
    "torchpipe.export",
    "torchpipe.observe",
    "torchpipe.graph",
    "torchpipe.device",
    "torchpipe.xla.drop_in",
    "torchpipe.xla.several_devices",
    "torchpipe.xla.spawn",
    "torchpipe.integrations.lightning",
    "torchpipe.integrations.accelerate",
    "torchpipe.integrations.transformers",
    "torchpipe.integrations.dcp",
    "torchpipe.integrations.torchtitan",
    "torchpipe.integrations.attention",
    "torchpipe.integrations.torch_loaders",
    "torchpipe.integrations.torchdata_nodes",
    "torchpipe.readers",
    "torchpipe.testing",
    "torchpipe.formats.storage.content",
    "torchpipe.formats.tfrecord",
    "torchpipe.utils",
    "torchpipe.torchdata",
    "torchpipe.torchdata.stateful_dataloader",
)
LEADING = ("DataLoader", "DataLoader2", "MultiProcessingReadingService", "RayReadingService")
"""What a page begins with; the rest follows by name."""

NODES = "torchpipe.iter"  # so many that each of its rooms has a page


@dataclass(frozen=True)
class Name:
    """``name`` of the public ``module``, defined in ``source``; ``form`` is how a node is called on another one."""

    module: str
    name: str
    source: str
    form: str = ""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def definition(self) -> str:
        return f"{self.source}.{self.name}"


def file_of(module: str) -> Path | None:
    """Where a module is written, or None if there is no such module."""
    stem = ROOT.joinpath(*module.split("."))
    return next((path for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.exists()), None)


@cache
def tree_of(module: str) -> ast.Module:
    path = file_of(module)
    if path is None:
        raise ValueError(f"there is no module {module}: take it out of MODULES in {Path(__file__).name}")
    return ast.parse(path.read_text())


def exported(module: str) -> list[str]:
    for node in tree_of(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(
        f"{module} has no __all__, so nothing in it is public: take it out of MODULES in {Path(__file__).name}"
    )


def _other_packages() -> Iterator[str]:
    """Packages that export something, and that nobody has put in their place in the navigation."""
    for top in ("torchpipe", "reading_services"):
        for path in sorted((ROOT / top).rglob("__init__.py")):
            package = ".".join(path.parent.relative_to(ROOT).parts)
            if package not in _FIRST and "._" not in package and any(exported(package)):
                yield package


MODULES = (*_FIRST, *_other_packages())
"""The public modules. All other ones are internal."""


def _sources(module: str) -> dict[str, str]:
    """For each name that a module imports from another one of these packages, the module that defines it."""
    imports = (node for node in ast.walk(tree_of(module)) if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.asname or alias.name: node.module for node in imports for alias in node.names}


def _source(module: str, name: str) -> str:
    """The module in which a name is written that another one hands on; one of another package is not looked into."""
    source = _sources(module).get(name)
    if source is None:
        return module
    return source if file_of(source) is None else _source(source, name)


def definition_of(module: str, name: str) -> str:
    """The full name, where it is written, of what a module has under ``name``."""
    return f"{_source(module, name)}.{name}"


def body_of(source: str) -> list[ast.stmt]:
    return [] if file_of(source) is None else tree_of(source).body


def _form(source: str, name: str) -> str:
    for node in body_of(source):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("functional_datapipe"):
                    return str(ast.literal_eval(call.args[0]))
    return ""


@cache
def module_names(module: str) -> tuple[Name, ...]:
    """The public names of a module, modules among them left out: those have pages of their own."""
    names = []
    for name in exported(module):
        if file_of(f"{_sources(module).get(name, module)}.{name}") is not None:
            continue  # a function may have the name of the module that it is imported from, and is none
        source = _source(module, name)
        names.append(Name(module, name, source, _form(source, name)))
    return tuple(sorted(names, key=lambda name: LEADING.index(name.name) if name.name in LEADING else len(LEADING)))


def _documented() -> dict[str, Name]:
    """By where it is defined: the public name that documents it."""
    home: dict[str, Name] = {}
    for module in MODULES:
        for name in module_names(module):
            home.setdefault(name.definition, name)
    return home


def node_rooms() -> dict[str, list[Name]]:
    """The nodes by the room in which they are written; what is written elsewhere is with the sources."""
    rooms: dict[str, list[Name]] = {}
    for name in module_names(NODES):
        room = name.source.removeprefix(f"{NODES}.").partition(".")
        inside = name.source.startswith(f"{NODES}.") and room[2] and not room[0].startswith("_")
        rooms.setdefault(room[0] if inside else "sources", []).append(name)
    return dict(sorted(rooms.items()))


def _summary(name: Name) -> str:
    """The first sentence of a docstring, or nothing."""
    for node in body_of(name.source):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name.name:
            first = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            sentence, stop, _ = first.partition(". ")
            return sentence + stop.strip()
    return ""


def _entries(names: list[Name] | tuple[Name, ...], level: int) -> Iterator[str]:
    home = _documented()
    for name in names:
        other = home[name.definition]
        heading = f"{'#' * level} `{name.name}` {{#{name.path}}}"
        if file_of(name.source) is None:
            yield f"{heading}\n\n`{name.definition}`, as it is.\n"
        elif other == name:
            hidden = file_of(name.path) is not None  # by a module of that name, which its own path would lead to
            anchor = f"[](){{#{name.path}}}\n\n" if hidden else ""
            path = name.definition if hidden else name.path
            yield f"{anchor}::: {path}\n    options:\n      heading_level: {level}\n"
        else:
            yield f"{heading}\n\nThe same as [`{other.path}`][{other.path}].\n"


def _about(module: str, title: str) -> str:
    return f"# {title}\n\n::: {module}\n    options:\n      members: false\n      show_root_heading: false\n"


def _nodes_table(names: list[Name]) -> str:
    rows = []
    for name in names:
        form = f"`.{name.form}(...)`" if name.form else ""
        rows.append(f"| [`{name.name}`][{name.path}] | {form} | {_summary(name).replace('|', chr(92) + '|')} |")
    lines = ['<div class="nodes" markdown>', "", "| node | on another node | what it does |", "|---|---|---|", *rows]
    return "\n".join([*lines, "", "</div>", ""])


def _room_title(room: str) -> tuple[str, str]:
    text = ast.get_docstring(tree_of(f"{NODES}.{room}")) or room
    return room.capitalize(), text.removesuffix(" A file for each node.")


def pages() -> dict[str, str]:
    """The reference, as Markdown by path within the site. What is in it is written by mkdocstrings."""
    made: dict[str, str] = {}
    for module in MODULES:
        names = module_names(module)
        if module == NODES:
            tables = []
            for room, nodes in node_rooms().items():
                title, text = _room_title(room)
                tables.append(f"## [{title}](iter/{room}.md)\n\n{text}\n\n{_nodes_table(nodes)}")
                made[f"reference/iter/{room}.md"] = "\n".join([f"# {title}\n\n{text}\n", *_entries(nodes, 2)])
            made[f"reference/{module}.md"] = "\n".join([_about(module, f"`{module}`"), *tables])
        else:
            made[f"reference/{module}.md"] = "\n".join([_about(module, f"`{module}`"), *_entries(names, 2)])
    lines = []
    for module in MODULES:
        about = (ast.get_docstring(tree_of(module)) or "").partition("\n\n")[0]
        lines.append(f"| [`{module}`]({module}.md) | {' '.join(about.replace('``', '`').split())} |")
    made["reference/index.md"] = (
        "# Reference\n\nEvery public name, from its docstring: what these modules export. All other modules are "
        "internal, and may change with any version.\n\n| module | what it has |\n|---|---|\n" + "\n".join(lines) + "\n"
    )
    return made
