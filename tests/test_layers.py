"""The shape of the code: imports go one way, modules say what is public, files are short and open with their job."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.rings import FOLDERS, OF_EVERYTHING, folders
from torchpipe.rings import RINGS, from_ring, is_installed, ring_of

ROOT = Path(__file__).resolve().parent.parent

# The core: each line may import from the lines above it, and a package from itself: modules and packages of torchpipe.
# Around it stand the rings, in the order of torchpipe/rings.py; torchpipe itself gathers the public names of all.
LAYERS = (
    ("errors", "compat", "rings"),
    ("public_names",),
    ("on_demand",),
    ("machine",),
    ("state", "randomness", "stats"),
    ("values",),
    ("node",),
    ("indexed", "ahead"),
    ("formats",),
    ("device",),
    ("iter", "map", "graph"),
    ("execution", "readers"),
    ("loader",),
    ("data",),
    ("testing",),
)
# The same of reading_services, by rooms: the services themselves stand above all of them.
SERVICE_ROOMS = (
    "reading_services.engine",
    "reading_services.hosting",
    "reading_services.processes",
    "reading_services.actors",
)
# What decides and what hosts shards are the same wherever shards run: these say nothing of how.
OF_PROCESSES = ("os", "multiprocessing", "subprocess", "socket", "selectors", "select", "signal", "mmap")
# Packages whose modules hold a room of nodes each: they know neither each other nor the graph. What several share
# stands in a module of the package that begins with an underscore.
NODE_PACKAGES = ("torchpipe.iter", "torchpipe.map")
# Those with torchdata's names may build on these, and on what these share, but not on each other.
TORCHDATAS_NODES = "torchpipe.torchdata.nodes"
# Only the named place may import these, and torch_xla only inside functions: it takes seconds and exists for one torch.
KEPT_IN = {
    "torch_xla": (
        "torchpipe.compat.xla_private",
        "torchpipe.device.xla",
        "torchpipe.xla.drop_in",
        "torchpipe.xla.spawn",
    ),
    "multiprocessing": ("torchpipe.testing", "reading_services", "torchpipe.compat.multiprocessing_private"),
    "subprocess": ("torchpipe.testing", "reading_services"),
    "reading_services": ("reading_services",),
    "ray": ("reading_services.actors", "reading_services.ray", "torchpipe.compat.ray_private"),
    "pytorch_lightning": ("torchpipe.integrations.lightning",),
    "accelerate": ("torchpipe.integrations.accelerate",),
    "transformers": ("torchpipe.integrations.transformers",),
    "torchtitan": ("torchpipe.integrations.torchtitan",),
}
# Modules that need a package which is in an environment of its own (`make test-trainers`): not imported here.
NEEDING = ("pytorch_lightning", "accelerate", "transformers", "torchtitan")


@dataclass(frozen=True)
class Import:
    """``importer`` imports ``target`` at run time; both are full module names."""

    importer: str
    target: str
    line: int
    in_function: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every source file of the two packages, by module name."""
    paths = sorted(path for package in ("torchpipe", "reading_services") for path in (ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    """They are 120 MB, which every process that later tests fork would have to map."""
    yield
    tree_of.cache_clear()


# Those gather the public names of everybody, for users: for type checkers they name rings, and import none.
FACADES = ("torchpipe", "reading_services")


def _imports_in(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            on_demand = any("__getattr__" in ast.unparse(other) for other in child.orelse)
            for other in child.orelse + (child.body if on_demand else []):
                yield from _imports_in(other, in_function or on_demand)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield child, in_function
        else:
            yield from _imports_in(child, in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def _targets(node: ast.Import | ast.ImportFrom, importer: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    source = node.module or ""
    if node.level:
        package = importer.split(".") if modules()[importer].name == "__init__.py" else importer.split(".")[:-1]
        base = package[: len(package) - node.level + 1]
        source = ".".join([*base, source] if source else base)
    for alias in node.names:  # ``from package import module`` imports the module
        inner = f"{source}.{alias.name}"
        yield inner if inner in modules() else source


@cache
def all_imports() -> tuple[Import, ...]:
    """Every import that is carried out at run time; those for type checkers alone do not count."""
    return tuple(
        Import(importer, target, node.lineno, in_function)
        for importer in modules()
        for node, in_function in _imports_in(tree_of(importer))
        for target in _targets(node, importer)
    )


@cache
def all_mentions() -> tuple[Import, ...]:
    """Every import there is: in functions and for type checkers too."""
    return tuple(
        Import(importer, target, node.lineno, False)
        for importer in modules()
        for node in ast.walk(tree_of(importer))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in _targets(node, importer)
    )


def layer_of(module: str) -> int:
    ring = ring_of(module)
    if module == "torchpipe" or ring is not None:
        return len(LAYERS) + (len(RINGS) if ring is None else list(RINGS).index(ring))
    part = top_of(module).removeprefix("torchpipe").removeprefix(".")
    found = [index for index, names in enumerate(LAYERS) if part in names]
    assert found, f"{module} is in no layer: put it in the table in {Path(__file__).name}, as low as its imports allow"
    return found[0]


def top_of(module: str) -> str:
    """The ring, or else the module or package directly below torchpipe."""
    return ring_of(module) or ".".join(module.split(".")[:2])


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _map() -> str:
    return (ROOT / "docs" / "architecture.md").read_text().partition("## The map")[2].partition("\n## ")[0]


def test_the_drawing_of_layers_is_true() -> None:
    rings, core = (drawn.partition("```")[0].splitlines() for drawn in _map().split("```text\n")[1:])
    assert [set(line.split()) for line in reversed(core)] == [set(names) for names in LAYERS]
    assert [line.split() for line in reversed(rings)] == [[ring, *parts] for ring, parts in RINGS.items()]


def _module(path: str) -> str:
    return path.removesuffix(".py").strip("/").replace("/", ".")


def test_the_map_has_every_package() -> None:
    rows = re.findall(r"^\| (`(?:torchpipe|reading_services)/.*?`) \| (.*) \|$", _map(), re.MULTILINE)
    told = [name for names, _ in rows for name in re.findall(r"`(.*?)`", names)]
    there = {path.relative_to(ROOT).parts[:2] for path in modules().values()}
    packages = {f"{top}/{name}" for top, name in there if name.endswith(".py") and top == "torchpipe"}
    packages |= {f"{top}/{name}/" for top, name in there if not name.endswith(".py")} | {"reading_services/"}
    packages |= {name for name in told if (ring := ring_of(_module(name))) and not is_installed(ring)}
    assert sorted(told) == sorted(packages - {"torchpipe/__init__.py"})


def test_imports_go_one_way() -> None:
    wrong = [
        str(item)
        for item in all_imports()
        if is_within(item.importer, ("torchpipe",)) and is_within(item.target, ("torchpipe",))
        if top_of(item.importer) != top_of(item.target) and layer_of(item.target) >= layer_of(item.importer)
    ]
    assert not wrong, "against the table of layers:\n  " + "\n  ".join(wrong)


def test_the_core_knows_no_ring() -> None:
    wrong = [
        str(item)
        for item in all_mentions()
        if ring_of(item.target) is not None and ring_of(item.importer) is None and item.importer not in FACADES
    ]
    assert not wrong, "\n  ".join(["the core reaches a ring by torchpipe.rings.from_ring alone:", *wrong])


def _asked_of_rings() -> list[str]:
    """Every ``"module:name"`` that the core gives to ``from_ring``."""
    return [
        argument.value
        for module in modules()
        if ring_of(module) is None
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "from_ring"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    ]


@pytest.mark.parametrize("path", sorted(set(_asked_of_rings())))
def test_what_the_core_asks_of_a_ring_is_there(path: str) -> None:
    module, _, name = path.partition(":")
    ring = ring_of(module)
    assert ring is not None
    if is_installed(ring):
        assert hasattr(importlib.import_module(module), name)
    else:
        with pytest.raises(ModuleNotFoundError, match=f"ring '{ring}'"):
            from_ring(path)


def test_facades_name_rings_for_type_checkers_alone() -> None:
    wrong = [
        str(item)
        for item in all_imports()
        if item.importer in FACADES and not item.in_function and ring_of(item.target) is not None
    ]
    assert not wrong, "\n  ".join(wrong)


def test_a_ring_imports_those_before_it_alone() -> None:
    order = list(RINGS)
    wrong = [
        str(item)
        for item in all_mentions()
        if (ring := ring_of(item.importer)) is not None and (other := ring_of(item.target)) is not None
        if order.index(other) > order.index(ring)
    ]
    assert not wrong, "\n  ".join([f"the order of the rings is {order}:", *wrong])


def test_the_cores_tests_import_no_ring() -> None:
    others = {*OF_EVERYTHING, *folders()}
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        parts = path.relative_to(ROOT / "tests").parts
        if parts[0] in others:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            of_tests = [f"tests.{folder}" for folder in others]
            if any(ring_of(name) is not None or is_within(name, tuple(of_tests)) for name in names):
                wrong.append(f"{'/'.join(parts)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n  ".join(["a ring's tests stand in a folder of its own (tests/rings.py):", *wrong])


def test_every_ring_has_tests() -> None:
    assert set(FOLDERS) == set(RINGS)
    present = [folder for ring, of_ring in FOLDERS.items() if is_installed(ring) for folder in of_ring]
    assert all((ROOT / "tests" / folder).is_dir() for folder in present)


def test_views_read_figures_and_nothing_else() -> None:
    views = tuple(f"torchpipe.observe.{name}" for name in ("views", "export", "advice", "outlook", "text"))
    wrong = [
        str(item)
        for item in all_imports()
        if is_within(item.importer, views) and is_within(item.target, ("torchpipe", "reading_services"))
        if not is_within(item.target, ("torchpipe.observe", "torchpipe.stats", "torchpipe.compat", "torchpipe.machine"))
    ]
    assert not wrong, "what observes takes LoaderStats alone:\n  " + "\n  ".join(wrong)


def test_services_import_one_way() -> None:
    def floor(module: str) -> int:
        return next((floor for floor, room in enumerate(SERVICE_ROOMS) if is_within(module, (room,))), 9)

    within = [item for item in all_imports() if is_within(item.importer, SERVICE_ROOMS)]
    wrong = [
        str(item)
        for item in within
        if is_within(item.target, ("reading_services",)) and floor(item.target) > floor(item.importer)
    ]
    assert within
    assert not wrong, "against the order of the rooms:\n  " + "\n  ".join(wrong)


def test_decisions_know_nothing_of_processes() -> None:
    wrong = [
        str(item)
        for item in all_imports()
        if is_within(item.importer, SERVICE_ROOMS[:2]) and is_within(item.target, OF_PROCESSES)
    ]
    assert not wrong, "\n  ".join(["what runs shards is behind reading_services.engine.workers:", *wrong])


def test_nodes_know_neither_each_other_nor_the_graph() -> None:
    wrong = [
        str(item)
        for item in all_imports()
        if is_within(item.importer, (TORCHDATAS_NODES,))
        if is_within(item.target, ("torchpipe.torchdata", "torchpipe.graph"))
    ]
    for item in all_imports():
        if item.importer in NODE_PACKAGES or not is_within(item.importer, NODE_PACKAGES):
            continue
        shared = top_of(item.importer) == top_of(item.target) and "._" in item.target
        if is_within(item.target, (*NODE_PACKAGES, "torchpipe.graph")) and not shared:
            wrong.append(str(item))
    assert not wrong, "\n  ".join(["nodes that import others:", *wrong])


@pytest.mark.parametrize("package", KEPT_IN)
def test_some_imports_are_kept_in_one_place(package: str) -> None:
    wrong = [
        str(item)
        for item in all_imports()
        if is_within(item.target, (package,)) and not is_within(item.importer, KEPT_IN[package])
        if package != "reading_services" or ring_of(item.importer) is None  # a ring may use the services
    ]
    assert not wrong, f"only {KEPT_IN[package]} may import {package}:\n  " + "\n  ".join(wrong)


def test_torch_xla_is_imported_only_when_needed() -> None:
    wrong = [str(item) for item in all_imports() if is_within(item.target, ("torch_xla",)) and not item.in_function]
    assert not wrong, "import torch_xla inside the function that needs it:\n  " + "\n  ".join(wrong)


def test_packages_and_sub_packages_form_no_circle() -> None:
    """A package is its own modules here, without its sub-packages; torchpipe's loose modules stand each for itself."""
    gathering = {module for module, path in modules().items() if path.name == "__init__.py"}  # public names, for users

    def room(module: str) -> str:
        package = module if module in gathering else module.rpartition(".")[0]
        return module if package in ("torchpipe", "reading_services") else package

    edges: dict[str, dict[str, Import]] = {}
    for item in all_imports():
        if item.target in modules() and item.importer not in gathering:
            importer, target = room(item.importer), room(item.target)
            if importer != target:
                edges.setdefault(importer, {})[target] = item
    assert _circle(edges) == []


def _circle(edges: dict[str, dict[str, Import]]) -> list[str]:
    """The imports that lead round, if any do."""
    done: set[str] = set()

    def visit(room: str, path: list[str]) -> list[str]:
        if room in path:
            ring = [*path[path.index(room) :], room]
            return [str(edges[importer][target]) for importer, target in itertools.pairwise(ring)]
        if room not in done:
            for target in sorted(edges.get(room, ())):
                if found := visit(target, [*path, room]):
                    return found
            done.add(room)
        return []

    return next((found for room in edges if (found := visit(room, []))), [])


def test_there_are_no_import_cycles() -> None:
    edges: dict[str, set[str]] = {module: set() for module in modules()}
    for item in all_imports():
        if item.target in edges and item.target != item.importer:
            edges[item.importer].add(item.target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, "import cycle: " + " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for target in sorted(edges[module]):
                visit(target, (*path, module))
            done.add(module)

    for module in edges:
        visit(module, ())


def _public_names(tree: ast.Module) -> set[str]:
    """Classes and functions that a module defines without a leading underscore."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}


def _read_public(tree: ast.Module) -> tuple[list[str] | None, list[str]]:
    """What ``__all__`` lists, if there is one, and the names of the module's own; without importing it."""
    assigned = {
        name.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for name in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(name, ast.Name)
    }
    listed = assigned.get("__all__")
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return None if listed is None else ast.literal_eval(listed), [*assigned, *defined]


@cache
def _in_need() -> set[str]:
    """The modules that import what not every environment has."""
    return {item.importer for item in all_imports() if is_within(item.target, NEEDING)}


@pytest.mark.parametrize("module", modules())
def test_a_module_says_what_is_public(module: str) -> None:
    if not modules()[module].read_text().strip():
        return  # an empty __init__.py
    if module in _in_need():
        listed, names = _read_public(tree_of(module))
    else:
        loaded = importlib.import_module(module)
        listed = getattr(loaded, "__all__", None)
        names = dir(loaded)  # not hasattr: what a module makes on demand may import torch_xla
    if module.rpartition(".")[2].startswith("_"):
        return
    assert listed is not None, f"{module} has no __all__"
    assert not [name for name in listed if name not in names], f"{module}.__all__ has names that do not exist"
    assert len(set(listed)) == len(listed), f"{module}.__all__ has a name twice"
    missing = _public_names(tree_of(module)) - set(listed)
    assert not missing, f"{module} defines {sorted(missing)}: list them in __all__ or begin them with an underscore"


@pytest.mark.parametrize("module", modules())
def test_a_file_opens_with_its_job(module: str) -> None:
    text = modules()[module].read_text()
    assert not text.strip() or ast.get_docstring(tree_of(module)), f"{module} must open with a docstring: its job"
