"""Writes ``torchpipe/node/functional_methods.pyi``: every functional form as a typed method, from the nodes' sources.

    python tools/generate_stubs.py          write the stub anew
    python tools/generate_stubs.py --check  exit with 1 and a diff if it is out of step

Likewise ``torchpipe/public_names.py``: in which module is what a package imports on demand, and the node of each form.

It reads sources and imports nothing of torchpipe, so that it works while a node is half written. From

    @functional_datapipe("map")
    class Mapper(IterDataPipe[R]):
        def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T], R]) -> None: ...

it makes ``def map(self, fn: Callable[[T_co], R]) -> IterDataPipe[R]``. Rules:

- The first parameter is the node itself: it goes, and its type variable becomes the class's ``T_co``. If it asks for
  particular items (``IterDataPipe[Sequence[T]]``) the method is typed by its ``self`` instead.
- ``*datapipes`` stays as it is. Overloads of ``__init__`` become overloads; one that types its ``self``
  (``self: Zipper[tuple[A, B]]``) says by it what the form returns.
- A class with a ``__new__`` that is annotated to return something else (``fork``: a list of nodes) is typed by that.
- Bases may be found in other modules of the package, ``__init__`` may be inherited.
- What a method returns is said by its arguments: a type variable that none of them names is an error here.
- A type that is written in a ring (``torchpipe/rings.py``) is ``Any``: the stub is the core's.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import copy
import difflib
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "torchpipe" / "node" / "functional_methods.pyi"
NAMES = ROOT / "torchpipe" / "public_names.py"
NAMES_HEADER = '''\
"""The module of each name and node of a package that imports on demand. Written by ``make stubs``: do not edit."""

from __future__ import annotations

__all__ = ["FORMS", "NAMES"]

'''
# Of each package of nodes: its docstring, what it imports at once, what it offers of modules that are no rooms, options
PACKAGES = {
    "torchpipe.iter": (
        """Iterable nodes: each is imported when it is first asked for, by its name or its form (``dp.map(...)``).

torchdata's other names are in ``torchpipe.torchdata``. Asked for here they are found as well, but neither listed nor
known to type checkers. Written by ``make stubs`` from ``__all__`` of the package's modules: do not edit.
""",
        ("DataChunk", "IterDataPipe", "functional_datapipe"),
        {
            "PathList": "torchpipe.iter._shared.paths",
            "FilePieces": "torchpipe.iter._shared.pieces",
            "SHARDING_PRIORITIES": "torchpipe.iter.ordering",
        },
        ', unlisted="torchpipe.torchdata"',
    ),
    "torchpipe.map": (
        """Map-style nodes, which are read by key; each is imported when it is first asked for.

Written by ``make stubs`` from ``__all__`` of the package's modules: do not edit.
""",
        ("MapDataPipe", "functional_datapipe"),
        {},
        "",
    ),
}
KINDS = {"IterDataPipe": "iter", "MapDataPipe": "map"}
CLASSES = {"iter": "IterMethods", "map": "MapMethods"}
RINGS = runpy.run_path(str(ROOT / "torchpipe" / "rings.py"))  # it stands alone
HEADER = '"""Every functional form, typed. Written by ``make stubs`` from the nodes: do not edit."""\n'


class StubError(Exception):
    """A node is written in a way that no method can be made from; says where and what to write instead."""


@dataclass
class Module:
    """What is known of one source file: its classes, type variables and where its other names come from."""

    name: str
    tree: ast.Module
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    type_vars: dict[str, str] = field(default_factory=dict)  # name -> "TypeVar(...)"
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (module, name there or "")
    defined: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in _flat(self.tree.body):
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
                self.defined.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (_absolute(node, self.name), alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self.imports[alias.asname or alias.name.partition(".")[0]] = (alias.name, "")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self._assigned(target.id, node.value)

    def _assigned(self, name: str, value: ast.expr) -> None:
        made_by = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
        if made_by in ("TypeVar", "ParamSpec", "TypeVarTuple"):
            self.type_vars[name] = ast.unparse(value)
        else:
            self.defined.add(name)


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under ``if TYPE_CHECKING`` and ``try`` included."""
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers"):
            if isinstance(node, ast.If | ast.Try):
                yield from _flat(getattr(node, part, []))


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    parent = module.split(".")[: -node.level]
    return ".".join([*parent, node.module] if node.module else parent)


def read_modules() -> dict[str, Module]:
    """All modules of the package that may hold nodes or their bases."""
    modules = {}
    for path in sorted(
        path for package in ("torchpipe", "reading_services") for path in (ROOT / package).rglob("*.py")
    ):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        modules[name] = Module(name, ast.parse(path.read_text(), str(path)))
    return modules


def is_in_a_ring(module: str) -> bool:
    return RINGS["ring_of"](module) is not None


# --- types -------------------------------------------------------------------------------------------------------


class _Substitute(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.values.get(node.id, node))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        # a quoted annotation; strings inside Literal[...] never reach this
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if ast.unparse(node.value).rpartition(".")[2] == "Literal":
            return node
        self.generic_visit(node)
        return node


def substitute(expression: ast.expr, values: dict[str, ast.expr]) -> ast.expr:
    result: ast.expr = _Substitute(values).visit(copy.deepcopy(expression))
    return result


def names_in(expression: ast.AST) -> list[str]:
    """Names used in an expression, in order of appearance, each once."""
    found: dict[str, None] = {}
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            found.setdefault(node.id)
    return list(found)


def arguments_of(expression: ast.expr) -> list[ast.expr]:
    """``[A, B]`` of ``X[A, B]``."""
    if not isinstance(expression, ast.Subscript):
        return []
    inner = expression.slice
    return list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]


def head_of(expression: ast.expr) -> str:
    """``X`` of ``X[A, B]``, without its module."""
    target = expression.value if isinstance(expression, ast.Subscript) else expression
    return ast.unparse(target).rpartition(".")[2]


# --- one node ----------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A class with a functional form."""

    form: str
    kind: str
    module: Module
    cls: ast.ClassDef


@dataclass
class Builder:
    """Resolves classes across modules and collects what the stub must import and declare."""

    modules: dict[str, Module]
    forms: frozenset[str] = frozenset()
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    type_vars: dict[str, str] = field(default_factory=dict)

    def find_class(self, name: str, module: Module) -> tuple[ast.ClassDef, Module] | None:
        while name not in module.classes:
            source, original = module.imports.get(name, ("", ""))
            if source not in self.modules or not original:
                return None
            name, module = original, self.modules[source]
        return module.classes[name], module

    def item_base(self, expression: ast.expr, module: Module) -> ast.expr | None:
        """``IterDataPipe[...]`` or ``MapDataPipe[...]`` that the type ``expression`` is derived from."""
        if head_of(expression) in KINDS:
            return expression
        found = self.find_class(head_of(expression), module)
        if found is None:
            return None
        cls, owner = found
        bases = [self.item_base(base, owner) for base in cls.bases]
        base = next((item for item in bases if item is not None), None)
        if base is None:
            return None
        parameters = self._parameters(cls, owner)
        return substitute(base, dict(zip(parameters, arguments_of(expression), strict=False)))

    def _parameters(self, cls: ast.ClassDef, module: Module) -> list[str]:
        """The type parameters of a class, in order."""
        generic = [base for base in cls.bases if head_of(base) in ("Generic", "Protocol") and arguments_of(base)]
        used = [name for base in (generic or cls.bases) for name in names_in(base)]
        known = set(module.type_vars) | {
            name for name, (source, _) in module.imports.items() if self._is_var(source, name)
        }
        return list(dict.fromkeys(name for name in used if name in known))

    def _is_var(self, source: str, name: str) -> bool:
        return source in self.modules and name in self.modules[source].type_vars

    def own_type(self, node: Node) -> ast.expr:
        """The class as its own methods see it: ``Mapper[R]``."""
        parameters = ", ".join(self._parameters(node.cls, node.module))
        return ast.parse(f"{node.cls.name}[{parameters}]" if parameters else node.cls.name, mode="eval").body

    def constructors(self, cls: ast.ClassDef, module: Module) -> tuple[list[ast.FunctionDef], Module]:
        """The ``__new__`` (if it returns something else) or ``__init__`` of a class, as overloads if it has them."""
        for name in ("__new__", "__init__"):
            found = [item for item in cls.body if isinstance(item, ast.FunctionDef) and item.name == name]
            if name == "__new__":
                found = [
                    item for item in found if item.returns and head_of(item.returns) not in ("Self", "Any", cls.name)
                ]
            overloads = [item for item in found if any(head_of(mark) == "overload" for mark in item.decorator_list)]
            if found:
                return overloads or found, module
        for base in cls.bases:
            inherited = self.find_class(head_of(base), module)
            if inherited is not None and head_of(base) not in KINDS:
                values = dict(zip(self._parameters(*inherited), arguments_of(base), strict=False))
                functions, owner = self.constructors(*inherited)
                return [_substituted(item, values) for item in functions], owner
        raise StubError(f"{module.name}.{cls.name} has a functional form but no __init__")

    def methods(self, node: Node) -> str:
        """The source of the method or overloads for one node."""
        functions, owner = self.constructors(node.cls, node.module)
        parts = [self._method(node, owner, function) for function in functions]
        if len(parts) > 1:
            parts = ["@overload\n" + part for part in parts]
            self.imports["overload"] = ("typing", "overload")
        return "\n".join(parts)

    def _method(self, node: Node, owner: Module, function: ast.FunctionDef) -> str:
        arguments = copy.deepcopy(function.args)
        positional = arguments.posonlyargs + arguments.args
        own = positional[0].annotation if positional else None
        result = function.returns if function.name == "__new__" else None
        if result is None:
            result = self.item_base(own or self.own_type(node), node.module)
        if result is None:
            raise StubError(
                f"{node.module.name}.{node.cls.name} is neither an IterDataPipe[...] nor a MapDataPipe[...]"
            )
        _drop_first(arguments)
        values: dict[str, ast.expr] = {}
        self_type = ""
        varargs = arguments.vararg.annotation if arguments.vararg else None
        if arguments.posonlyargs or arguments.args:
            first = _drop_first(arguments)
            values, self_type = self._bind(first.annotation, arguments, owner, node)
        elif varargs is not None:
            values, _ = self._bind(varargs, arguments, owner, node)
        else:
            raise StubError(f"{node.module.name}.{node.cls.name}.__init__ takes no input to hang the form on")
        arguments.args.insert(0, ast.arg(arg="self"))
        if arguments.posonlyargs:
            arguments.posonlyargs.insert(0, arguments.args.pop(0))
        for argument in _all_arguments(arguments):
            if argument.annotation is not None:
                argument.annotation = self._exported(substitute(argument.annotation, values), owner, node)
        (arguments.posonlyargs + arguments.args)[0].annotation = (
            self._exported(ast.parse(self_type, mode="eval").body, owner, node) if self_type else None
        )
        _plain_defaults(arguments)
        returned = self._exported(substitute(result, values), node.module, node)
        returns = ast.unparse(returned)
        bound = {name for item in _all_arguments(arguments) if item.annotation for name in names_in(item.annotation)}
        for name in names_in(returned):
            if name != "T_co" and name in self.type_vars and name not in bound:
                raise StubError(
                    f"{node.module.name}.{node.cls.name}: no argument of {node.form} says what {name} is, so that it "
                    f"returns {returns.replace(name, 'Never')}: name {name} in an argument, or write overloads"
                )
        body = _docstring(node)
        return f"def {node.form}({ast.unparse(arguments)}) -> {returns}:\n{textwrap.indent(body, '    ')}\n"

    def _bind(
        self, annotation: ast.expr | None, arguments: ast.arguments, owner: Module, node: Node
    ) -> tuple[dict[str, ast.expr], str]:
        """What the node's own type variable becomes, and how ``self`` must be typed (empty: plain)."""
        inner = arguments_of(annotation) if annotation is not None else []
        if not inner or ast.unparse(inner[0]) in ("Any", "object"):
            return {}, ""
        item = ast.unparse(inner[0])
        declared = self._variable(item, owner)
        if declared is not None and declared == f"TypeVar('{item}')" and not _taken_directly(item, arguments):
            return {item: ast.Name("T_co")}, ""
        return {}, f"{CLASSES[node.kind]}[{item}]"

    def _variable(self, name: str, module: Module) -> str | None:
        if name in module.type_vars:
            return module.type_vars[name].replace(", covariant=True", "")
        source, original = module.imports.get(name, ("", ""))
        return self._variable(original, self.modules[source]) if source in self.modules else None

    def _import_of_base(self, name: str, cls: ast.ClassDef, module: Module) -> tuple[str, str] | None:
        """Where a base of ``cls``, in another module, has ``name`` from."""
        for base in cls.bases:
            inherited = self.find_class(head_of(base), module)
            if inherited is not None and name in inherited[1].imports:
                return inherited[1].imports[name]
            if inherited is not None and (found := self._import_of_base(name, *inherited)) is not None:
                return found
        return None

    def _exported(self, expression: ast.expr, module: Module, node: Node) -> ast.expr:
        """``expression`` as it may stand in the stub; notes what it needs there."""
        values: dict[str, ast.expr] = {}
        for name in names_in(expression):
            if name in ("T_co", *CLASSES.values()):
                continue
            declared = self._variable(name, module)
            if declared is not None:
                self._note(self.type_vars, name, declared, node)
            elif name in module.imports:
                self._note(self.imports, name, module.imports[name], node)
            elif name in module.defined and is_in_a_ring(module.name):
                values[name] = ast.Name("Any")
                self.imports["Any"] = ("typing", "Any")
            elif name in module.defined:
                self._note(self.imports, name, (module.name, name), node)
            elif hasattr(builtins, name):
                if name in self.forms:  # inside the class the name means the method
                    values[name] = ast.Attribute(ast.Name("builtins"), name)
                    self.imports["builtins"] = ("builtins", "")
            elif (found := self._import_of_base(name, node.cls, module)) is not None:
                self._note(self.imports, name, found, node)
            elif name in KINDS:  # the base of a base, which stands in another module
                self._note(self.imports, name, ("torchpipe.node.datapipe", name), node)
            else:
                raise StubError(
                    f"{module.name}: the annotation {ast.unparse(expression)} uses {name}, which is unknown"
                )
        return substitute(expression, values)

    @staticmethod
    def _note(table: dict[str, Any], name: str, value: Any, node: Node) -> None:
        if table.setdefault(name, value) != value:
            raise StubError(
                f"{node.module.name}: {name} means {value} there and {table[name]} in another node's module; rename one"
            )


def _substituted(function: ast.FunctionDef, values: dict[str, ast.expr]) -> ast.FunctionDef:
    function = copy.deepcopy(function)
    for argument in _all_arguments(function.args):
        if argument.annotation is not None:
            argument.annotation = substitute(argument.annotation, values)
    return function


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]


def _drop_first(arguments: ast.arguments) -> ast.arg:
    if len(arguments.defaults) == len(arguments.posonlyargs) + len(arguments.args):
        del arguments.defaults[0]
    return (arguments.posonlyargs or arguments.args).pop(0)


def _plain_defaults(arguments: ast.arguments) -> None:
    """Keep literal defaults, which editors show; write others as ``...``."""

    def plain(value: ast.expr) -> ast.expr:
        try:
            literal = ast.literal_eval(value)
        except ValueError:
            return ast.Constant(...)
        return value if isinstance(literal, str | bytes | int | float | None) else ast.Constant(...)

    arguments.defaults = [plain(item) for item in arguments.defaults]
    arguments.kw_defaults = [item if item is None else plain(item) for item in arguments.kw_defaults]


def _taken_directly(variable: str, arguments: ast.arguments) -> bool:
    """Is a value of the variable's own type passed in? Then it cannot be the covariant one of the class."""
    for argument in _all_arguments(arguments):
        parts = [argument.annotation]
        while parts:
            part = parts.pop()
            if isinstance(part, ast.BinOp):
                parts += [part.left, part.right]
            elif isinstance(part, ast.Name) and part.id == variable:
                return True
    return False


def _docstring(node: Node) -> str:
    """The first sentence that the class, or else its module, says about itself."""
    text = ast.get_docstring(node.cls) or ast.get_docstring(node.module.tree)
    if not text:
        return "..."
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^\s.])\.\s", paragraph)[0].rstrip(".") + "."
    lines = textwrap.wrap(sentence, 106, break_long_words=False)
    if len(lines) > 1:
        lines.append("")
    return 'r"""' + "\n".join(lines) + '"""' if "\\" in sentence else '"""' + "\n".join(lines) + '"""'


# --- the file ----------------------------------------------------------------------------------------------------


def find_nodes(modules: dict[str, Module], builder: Builder) -> list[Node]:
    """Every class with a functional form, sorted by it."""
    nodes = []
    for module in modules.values():
        for cls in module.classes.values():
            for mark in cls.decorator_list:
                if isinstance(mark, ast.Call) and head_of(mark.func) == "functional_datapipe":
                    nodes.append(_registered(cls, mark, module, builder))
    return sorted(nodes, key=lambda node: (node.kind, node.form))


def _registered(cls: ast.ClassDef, mark: ast.Call, module: Module, builder: Builder) -> Node:
    try:
        form = ast.literal_eval(mark.args[0])
        on = {item.arg: ast.literal_eval(item.value) for item in mark.keywords}.get("on")
    except (ValueError, IndexError):
        raise StubError(f"{module.name}.{cls.name}: write the functional name as a literal string") from None
    base = builder.item_base(ast.Name(cls.name), module)
    if base is None:
        raise StubError(f"{module.name}.{cls.name} is neither an IterDataPipe[...] nor a MapDataPipe[...]")
    return Node(form, on or KINDS[head_of(base)], module, cls)


def generate(modules: dict[str, Module] | None = None) -> str:
    """The stub's text, formatted; by default of the whole package."""
    modules = read_modules() if modules is None else modules
    nodes = find_nodes(modules, Builder(modules))
    builder = Builder(modules, frozenset(node.form for node in nodes))
    builder.imports |= {name: ("typing", name) for name in ("Generic", "TypeVar")}
    classes = []
    for kind, name in CLASSES.items():
        methods = [textwrap.indent(builder.methods(node), "    ") for node in nodes if node.kind == kind]
        doc = f'    """The functional forms of {"iterable" if kind == "iter" else "map-style"} nodes."""\n'
        classes.append(f"class {name}(Generic[T_co]):\n{doc}\n" + "\n".join(methods))
    variables = ['T_co = TypeVar("T_co", covariant=True)']
    variables += [f"{name} = {value}" for name, value in sorted(builder.type_vars.items())]
    for value in builder.type_vars.values():
        maker = value.partition("(")[0]
        builder.imports[maker] = ("typing", maker)
    text = "\n".join([HEADER, _import_block(builder.imports), "", '__all__ = ["IterMethods", "MapMethods"]', ""])
    return _formatted("\n".join([text, *variables, "", *classes]))


def generate_package(package: str, modules: dict[str, Module] | None = None) -> str:
    """The text of the ``__init__.py`` of ``package``, whose modules offer what their ``__all__`` names, formatted."""
    modules = read_modules() if modules is None else modules
    doc, at_once, beside, options = PACKAGES[package]
    names = dict(beside)
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent == package and not last.startswith("_"):
            names |= dict.fromkeys(_offered(module), name)
    lines = "".join(f"    from {module} import {name}\n" for name, module in names.items())
    return _formatted(
        f'''"""{doc}"""

from typing import TYPE_CHECKING

from torchpipe.node.datapipe import {", ".join(at_once)}
from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
{lines}else:
    __getattr__, __dir__ = on_demand(__name__{options})

__all__ = {sorted([*at_once, *names])!r}
'''
    )


def _offered(module: Module) -> list[str]:
    """The classes and types in the module's ``__all__``."""
    values = [node.value for node in module.tree.body if isinstance(node, ast.Assign) and _names_all(node)]
    return [name for name in ast.literal_eval(values[0]) if re.search("^[A-Z].*[a-z]", name)] if values else []


def _names_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def generate_names(modules: dict[str, Module] | None = None) -> str:
    """The text of ``torchpipe/public_names.py``, formatted."""
    modules = read_modules() if modules is None else modules
    nodes = find_nodes(modules, Builder(modules))
    forms = {
        kind: {node.form: f"{node.module.name}:{node.cls.name}" for node in nodes if node.kind == kind}
        for kind in CLASSES
    }
    names = {name: found for name, module in modules.items() if (found := _on_demand(module))}
    tables = {"NAMES": (names, "package -> name -> module"), "FORMS": (forms, "kind of node -> form -> module:class")}
    lines = [f'{name}: dict[str, dict[str, str]] = {table!r}\n"""{what}"""\n' for name, (table, what) in tables.items()]
    return _formatted(NAMES_HEADER + "\n".join(lines))


def _on_demand(module: Module) -> dict[str, str]:
    """What a package imports for type checkers alone, where it has the ``__getattr__`` that imports it on demand."""
    guarded = [node for node in module.tree.body if isinstance(node, ast.If)]
    if not any("(__name__" in ast.unparse(line) for node in guarded for line in node.orelse):
        return {}
    imports = [line for node in guarded for line in node.body if isinstance(line, ast.ImportFrom)]
    sources = {alias.name: _absolute(line, module.name) for line in imports for alias in line.names}
    return {name: source for name, source in sources.items() if source != module.name}  # submodules need no line


def _import_block(imports: dict[str, tuple[str, str]]) -> str:
    lines = []
    for name, (module, original) in imports.items():
        if not original:
            lines.append(f"import {module}" + (f" as {name}" if name != module.partition(".")[0] else ""))
        else:
            lines.append(f"from {module} import {original}" + (f" as {name}" if name != original else ""))
    return "\n".join(lines)


def _formatted(text: str) -> str:
    for options in (["check", "--fix-only", "--select", "I,UP,RUF022"], ["format"]):
        command = [sys.executable, "-m", "ruff", *options, "--quiet", "--stdin-filename", str(OUTPUT), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="write or check functional_methods.pyi, public_names.py, and __init__.py of torchpipe.iter and .map"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 and a diff if out of step")
    options = parser.parse_args(arguments)
    try:
        modules = read_modules()
        packages = {name: generate_package(name, modules) for name in PACKAGES}
        texts = {ROOT / name.replace(".", "/") / "__init__.py": text for name, text in packages.items()}
        modules |= {name: Module(name, ast.parse(text)) for name, text in packages.items()}
        texts |= {OUTPUT: generate(modules), NAMES: generate_names(modules)}
    except StubError as error:
        print(f"cannot make the stub: {error}", file=sys.stderr)
        return 1
    found = {path: path.read_text() if path.exists() else "" for path in texts}
    stale = [path for path in texts if texts[path] != found[path]]
    for path in stale:
        if not options.check:
            path.write_text(texts[path])
            continue
        sides = (found[path].splitlines(), texts[path].splitlines(), "as it is", "as the nodes say")
        print("\n".join([*difflib.unified_diff(*sides, lineterm=""), ""]))
        print(f"{path.relative_to(ROOT)} is out of step: run `make stubs`")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
