"""The data that the items of a graph are made of, as a text of digests: graphs with the same text make the same items.

Runs in every process that keeps items for later. Where the ``fingerprint`` of a state lets a run go on with data that
lie elsewhere and functions that were mended, this one sees every change that can be seen:

- all arguments of every node, and data in memory by their content;
- local files that arguments and data name, by size and time of change; not those that functions open by themselves;
- functions and classes of the user's by their code, with defaults, closures, bound values and the globals they name;
- those of installed packages by name and version, and the versions of Python and torchpipe.

Any other object counts as what pickle would keep of it. What cannot be pickled cannot be seen: it is refused by name.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import logging
import os
import pickle
import stat
import sys
import threading
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import NOTED_IN_NODES
from torchpipe.node.protocol import NodeProtocol
from torchpipe.node.traits import DataPipe, inputs_of, is_node, is_ours, node_name, traits_of, walk
from torchpipe.state.copying import content_of_cell
from torchpipe.state.shared_list import SharedList

__all__ = ["Files", "Unseen", "describe_content"]

_FORMAT = 1  # of this text and of what it counts: another one makes every kept item anew
_NUMBERS = frozenset({bool, int, float, complex, type(None)})
_ROWS = (list, tuple)
_MAPPINGS = (dict, types.MappingProxyType)
# What says nothing about items, though functions name it. Loggers and locks cannot change what a function returns.
_IDLE = (type(threading.Lock()), type(threading.RLock()), logging.Logger, logging.LoggerAdapter)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_METHODS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)
_LONGEST_PATH = 4096


class Unseen(TypeError):
    """Something of which nobody can tell whether it has changed. ``where`` names it, from the inside out.

    A node's ``made_of()`` has one in the place of what it does not see.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.where: list[str] = []

    def __str__(self) -> str:
        return f"{' of '.join(self.where)} ({self.args[0]})"


@dataclass(frozen=True)
class Files:
    """Stands for local files: their paths count, with size and time of change."""

    paths: tuple[str, ...]


def describe_content(root: DataPipe, *, lenient: bool) -> str:
    """One line for each node that shapes the items, inputs first: its class, and a digest of each argument.

    Raises: Unseen for what cannot be seen; ``lenient``, that counts by its type.
    """
    numbers: dict[int, int] = {}
    digests = _Digests(numbers, lenient)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [f"content {_FORMAT}, Python {version}, torchpipe {_release('torchpipe')}"]
    for node in walk(root):
        if not traits_of(node).alters_stream and traits_of(node).one_to_one:
            numbers[id(node)] = numbers[id(inputs_of(node)[0])]
            continue
        number = len(lines) - 1
        lines.append(f"{number} {digests.of_node(node)}")
        numbers[id(node)] = number
    return "\n".join(lines)


class _Digests:
    """Digests of values, of 16 bytes each. ``files`` says whether texts may name files, whose change then counts."""

    def __init__(self, numbers: Mapping[int, int], lenient: bool) -> None:
        self._numbers = numbers  # of nodes, by id
        self._lenient = lenient
        self._around: list[int] = []  # the ids of what is being looked into
        self._digests: dict[tuple[int, bool], tuple[Any, bytes]] = {}  # by id, and kept alive so that this stays theirs

    def of_node(self, node: DataPipe) -> str:
        values: Mapping[str, Any] = type(node).made_of(node) if isinstance(node, NodeProtocol) else vars(node)
        try:
            arguments = ", ".join(
                f"{name}={self._named(name, values[name], True).hex()}"
                for name in sorted(values)
                if name not in NOTED_IN_NODES
            )
            kind = type(node)
            code = "" if _release(kind.__module__) is not None else f"@{self._named('class', kind, False).hex()}"
        except Unseen as error:
            error.where.append(node_name(node))
            raise
        return f"{kind.__qualname__}{code}({arguments})"

    def _named(self, name: str, value: Any, files: bool) -> bytes:
        try:
            return self.of(value, files)
        except Unseen as error:
            error.where.append(name)
            raise
        except RecursionError:
            raise Unseen("nested too deeply") from None

    def of(self, value: Any, files: bool) -> bytes:
        kind = type(value)
        if kind in _NUMBERS:
            return _leaf(kind.__name__, repr(value))
        if kind is str:
            return _leaf("str", value, _stamp_of_text(value) if files else "")
        if kind in (bytes, bytearray):
            return _leaf(kind.__name__, value)
        if id(value) in self._around:
            return _leaf("around", str(len(self._around) - self._around.index(id(value))))
        cached = self._digests.get((id(value), files))
        if cached is not None:
            return cached[1]
        self._around.append(id(value))
        try:
            made = self._of_part(value, files) if kind in _ROWS + _MAPPINGS else self._of_object(value, files)
        finally:
            self._around.pop()
        if kind not in _ROWS + _MAPPINGS:  # data may have millions of these
            self._digests[id(value), files] = value, made
        return made

    def _of_part(self, value: Any, files: bool) -> bytes:
        kind = type(value)
        if kind in _MAPPINGS:
            return _join("dict", (self.of(item, files) for pair in value.items() for item in pair))
        if _NUMBERS.issuperset(map(type, value)):
            return _leaf(kind.__name__, repr(value))
        return _join(kind.__name__, (self.of(item, files) for item in value))

    def _of_object(self, value: Any, files: bool) -> bytes:
        kind = type(value)
        if isinstance(value, set | frozenset) and kind in (set, frozenset):
            return _join(kind.__name__, sorted(self.of(item, files) for item in value))
        if isinstance(value, Unseen):
            return self._of_unseen(value, kind)
        if isinstance(value, SharedList):
            return _join("list", (self.of(item, files) for item in value))
        if isinstance(value, Files):
            return _join("files", (_leaf("path", path, _stamp(path, any_kind=True)) for path in value.paths))
        if isinstance(value, os.PathLike):
            path = os.fsdecode(value)
            return _leaf(kind.__qualname__, path, _stamp(path) if files else "")
        if isinstance(value, np.ndarray) and kind in (np.ndarray, np.memmap):
            return self._of_array(value, files)
        if isinstance(value, torch.Tensor) and kind in (torch.Tensor, torch.nn.Parameter) and _is_dense(value):
            return _leaf(f"tensor {value.dtype} {tuple(value.shape)}", _bytes_of(value))
        if isinstance(value, torch.Generator):
            return _leaf("generator", _bytes_of(value.get_state()))
        if isinstance(value, pickle.PickleBuffer):
            return _leaf("buffer", value.raw())
        if isinstance(value, _IDLE):
            return _leaf("idle", kind.__qualname__)
        if isinstance(value, types.ModuleType):
            return self._of_module(value, frozenset(), set())
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.CodeType):
            return self._of_code(value)
        if isinstance(value, type):
            return self._of_class(value)
        if isinstance(value, staticmethod | classmethod):
            return _join(kind.__name__, [self.of(value.__func__, False)])
        if isinstance(value, property):
            return _join("property", (self.of(part, False) for part in (value.fget, value.fset, value.fdel)))
        if is_node(value) and id(value) in self._numbers:
            return _leaf("node", str(self._numbers[id(value)]))
        return self._of_pickled(value, files and not callable(value))

    def _of_array(self, value: Any, files: bool) -> bytes:
        about = f"array {value.dtype} {value.dtype.descr if value.dtype.names else ''} {value.shape}"
        if isinstance(value, np.memmap) and value.filename is not None:
            return _leaf(f"{about} {value.offset}", str(value.filename), _stamp(str(value.filename)))
        if value.dtype.hasobject:
            return _join(about, (self.of(item, files) for item in value.reshape(-1).tolist()))
        flat = np.ascontiguousarray(value).reshape(-1)
        return _leaf(about, flat.view(np.uint8).data if value.nbytes else b"")

    def _of_pickled(self, value: Any, files: bool) -> bytes:
        """The digest of the parts that pickle would keep; functions and classes count by their code."""
        kind = type(value)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced: Any = value.__reduce_ex__(5) if reduce is None else reduce(value)
        except Exception as error:  # objects refuse in many ways
            return self._of_unseen(Unseen(f"a {kind.__qualname__}, which pickle cannot keep: {error}"), kind)
        if isinstance(reduced, str):
            module = getattr(value, "__module__", None) or kind.__module__
            inner = getattr(value, "__wrapped__", None)  # of functools.lru_cache
            return _join("name", [_leaf(str(module), reduced, _release(module) or ""), self.of(inner, False)])
        call, arguments, state, items, pairs = (tuple(reduced) + (None,) * 3)[:5]
        return _join(
            "object",
            [
                self.of(call, False),
                self.of(arguments, files),
                self.of(state, files),
                self.of(None if items is None else list(items), files),
                self.of(None if pairs is None else [list(pair) for pair in pairs], files),
            ],
        )

    def _of_unseen(self, unseen: Unseen, kind: type) -> bytes:
        if not self._lenient:
            raise unseen
        return _leaf("unseen", kind.__module__, kind.__qualname__)

    def _of_function(self, fn: types.FunctionType) -> bytes:
        module = str(fn.__globals__.get("__name__"))  # functools.wraps() changes __module__
        release = _release(module)
        if release is not None and _stands_in(module, fn):
            return _leaf("function", module, fn.__qualname__, release)
        code = fn.__code__
        cells = [content_of_cell(cell) for cell in fn.__closure__ or ()]
        parts = [self._named(f"default of {fn.__name__}()", (fn.__defaults__, fn.__kwdefaults__), False)]
        parts += [
            self._named(f"{name!r}, which {fn.__name__}() holds", cell, False)
            for name, cell in zip(code.co_freevars, cells)
        ]
        if vars(fn):
            parts.append(self._named(f"attributes of {fn.__name__}()", vars(fn), False))
        if release is not None:  # made while the program runs, by code of a package
            return _join(f"function {module} {fn.__qualname__} {release}", parts)
        names, attributes, seen = _globals_in(code), _names_in(code), set[int]()
        for name in sorted(names & fn.__globals__.keys()):
            value = fn.__globals__[name]
            parts.append(_leaf("global", name))
            if isinstance(value, types.ModuleType):
                parts.append(self._of_module(value, attributes, seen))
            else:
                parts.append(self._named(f"{name!r}, which {fn.__name__}() names", value, False))
        return _join("function", [self._of_code(code), *parts])

    def _of_code(self, code: types.CodeType) -> bytes:
        """The digest of the steps of ``code``, without its place and its name."""
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        steps = (code.co_code, code.co_exceptiontable)
        return _join("code", (self.of(part, False) for part in (shape, names, steps, code.co_consts)))

    def _of_module(self, module: types.ModuleType, names: frozenset[str], seen: set[int]) -> bytes:
        """The digest of a package's version, or of those globals in a module of the user's that are named."""
        release = _release(module.__name__)
        if release is not None or id(module) in seen:
            return _leaf("module", module.__name__, release or "")
        seen.add(id(module))
        parts = []
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            inner = isinstance(value, types.ModuleType)
            parts += [_leaf("global", name), self._of_module(value, names, seen) if inner else self.of(value, False)]
        return _join(f"module {module.__name__}", parts)

    def _of_class(self, cls: type) -> bytes:
        release = _release(cls.__module__)
        if release is not None:
            return _leaf("class", cls.__module__, cls.__qualname__, release)
        parts = [self.of(base, False) for base in cls.__bases__]
        for name, value in sorted(vars(cls).items()):
            if name == "_abc_impl" or isinstance(value, _DESCRIPTORS):
                continue
            if name.startswith("__") and name.endswith("__") and not isinstance(value, _METHODS):
                continue  # what Python itself notes of a class
            parts += [_leaf("member", name), self._named(f"{cls.__name__}.{name}", value, False)]
        return _join(f"class {cls.__qualname__}", parts)


def _leaf(kind: str, *parts: str | bytes | bytearray | memoryview) -> bytes:
    made = hashlib.blake2b(f"{kind}\0".encode(), digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        made.update(f"{len(data)}\0".encode())
        made.update(data)
    return made.digest()


def _join(kind: str, digests: Iterable[bytes]) -> bytes:
    made = hashlib.blake2b(f"{kind}\1".encode("utf-8", "surrogatepass"), digest_size=16)
    for part in digests:
        made.update(part)
    return made.digest()


def _stamp(path: str, *, any_kind: bool = False) -> str:
    """Size and time of change of a file, if there is one."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{found.st_size} {found.st_mtime_ns}" if any_kind or stat.S_ISREG(found.st_mode) else ""


def _stamp_of_text(text: str) -> str:
    """The stamp of the file that it names, if it looks like a path: data may have millions of texts."""
    rest, dot, ending = text.rpartition(".")
    may_be = len(text) <= _LONGEST_PATH and (os.sep in text or (dot and rest and ending.isalnum()))
    return _stamp(text) if may_be and "\n" not in text else ""


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [item for item in code.co_consts if isinstance(item, types.CodeType)]


def _names_in(code: types.CodeType) -> frozenset[str]:
    """The names that it, or a function within it, looks up: of globals, of attributes and of modules."""
    return frozenset(code.co_names).union(*map(_names_in, _inner(code)))


def _globals_in(code: types.CodeType) -> frozenset[str]:
    """The names of globals: the same that cloudpickle sends to workers with a function, so that all find the same."""
    own = (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    return frozenset(own).union(*map(_globals_in, _inner(code)))


def _stands_in(module: str, fn: types.FunctionType) -> bool:
    found: Any = sys.modules.get(module)
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is fn


@functools.cache
def _release(module: str) -> str | None:
    """The version of the package, or of Python, that a module belongs to; None if it is the user's own code."""
    top = module.partition(".")[0]
    if top == "__main__":  # of each process another file: pickles of its functions and classes hold their code
        return None
    found = sys.modules.get(top)
    if top in sys.stdlib_module_names or top == "builtins":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    path = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), "")
    if not is_ours(top) and not {"site-packages", "dist-packages"}.intersection(Path(path).parts):
        return None
    version = getattr(found, "__version__", None)
    if not isinstance(version, str):
        try:
            version = importlib.metadata.version(top)
        except importlib.metadata.PackageNotFoundError:
            version = ""
    return version
