"""Pickling, as pickle and cloudpickle do it, less the changes that these make in silence.

Runs in every process.

Arrays that are mapped from files (``np.memmap``) are mapped by other processes of the machine, too: a pickle of numpy's
holds all the data, so that each process would have a copy, of a file that may be larger than its memory.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import importlib
import io
import mmap
import operator
import pickle
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, ClassVar, TypeAlias

import cloudpickle
import numpy as np

from torchpipe.state.script_classes import locks_within, named, of_script

__all__ = [
    "CloudPickler",
    "ImagePickler",
    "Reducers",
    "cloud_dumps",
    "dumps",
    "is_made_otherwise",
    "reduce_error",
    "reduce_memmap",
]

_MOST_KINDS = 1_000  # classes that are looked up once: a program may go on making classes

Reducer: TypeAlias = Callable[[Any], Any]

_OWN_WAY: Reducer = operator.methodcaller("__reduce_ex__", 5)


class Reducers(dict[type, Reducer]):
    """A pickler's ``dispatch_table``: what it is made with, then what copyreg knows, exceptions by their contents.

    It learns by itself, as looking up what is missing takes longer than pickling a small array.
    """

    def __missing__(self, kind: type) -> Reducer:
        if issubclass(kind, type):
            raise KeyError(kind)  # classes are pickled by their names
        own_way = _reduce_module if issubclass(kind, ModuleType) else _OWN_WAY
        reduce: Reducer = copyreg.dispatch_table.get(kind) or (reduce_error if is_made_otherwise(kind) else own_way)
        if len(self) < _MOST_KINDS:
            self[kind] = reduce
        return reduce


def _reduce_module(module: ModuleType) -> Any:
    """A module by its name, of whatever class: torch has some of its own, such as ``torch.classes``."""
    if sys.modules.get(module.__name__) is not module:
        raise TypeError(f"cannot pickle the module {module.__name__!r}, which cannot be imported by this name")
    return importlib.import_module, (module.__name__,)


def is_made_otherwise(kind: type) -> bool:
    """True for an exception whose constructor need not take, or keep, what pickle would give to it."""
    return (
        issubclass(kind, BaseException)
        and kind.__reduce__ is BaseException.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and isinstance(kind.__init__, FunctionType)
    )


def reduce_error(error: BaseException) -> Any:
    """The parts of an error, as from ``__reduce_ex__``, but made anew without a constructor written in Python."""
    reduced: Any = error.__reduce_ex__(5)
    kind, args, *attributes = reduced
    return _error, (kind, *args), *attributes


def _error(kind: type[BaseException], *args: Any) -> BaseException:
    error = kind.__new__(kind, *args)
    bases: tuple[Any, ...] = kind.__mro__
    next(base for base in bases if not isinstance(base.__init__, FunctionType)).__init__(error, *args)
    return error


def _refuse_file(file: io.TextIOWrapper) -> Any:
    """In the place of cloudpickle's way, which makes a StringIO of an open text file, with all that is in it."""
    for name in ("stdin", "stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(
        f"cannot pickle the open file {file.name!r}: read it where it was opened, and hand on what it holds"
    )


def _reduce_view(view: memoryview) -> Any:
    """In the place of cloudpickle's way, which makes bytes of it: a view of the same form, over memory of its own."""
    data = view.tobytes()
    return _view, (data if view.readonly else bytearray(data), view.format, view.shape)


def _view(data: bytes | bytearray, form: Any, shape: Any) -> memoryview:
    view = memoryview(data)
    return view.cast(form, shape) if data else view.cast(form)  # without items there is no casting to a shape


class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Classes of the script go as in ``script_classes.py``.

    Raises: TypeError for open text files, whatever pickling raises for other things.
    """

    dispatch_table = Reducers(
        {
            **cloudpickle.Pickler.dispatch_table,
            io.TextIOWrapper: _refuse_file,
            memoryview: _reduce_view,
            functools.cached_property: lambda own: (
                type(own),
                (own.func,),
                {"attrname": own.attrname},
            ),  # less its lock
            type(dataclasses.MISSING): lambda _: "MISSING",  # of which a process has one, by its name
            type(dataclasses.KW_ONLY): lambda _: "KW_ONLY",
        }
    )
    begins: ClassVar[bool] = False  # True: a process begins with the pickle

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._locks: dict[int, str] = {}  # the names of those that classes and functions of the script hold, by id

    def reducer_override(self, value: Any) -> Any:
        if name := self._locks.get(id(value)):
            return of_script, (name,)
        reduced = super().reducer_override(value)
        if reduced is NotImplemented:
            return reduced
        if isinstance(value, type | FunctionType):
            self._locks |= locks_within(value, reduced)
        return named(value, reduced, begins=self.begins) if isinstance(value, type) else reduced


class ImagePickler(CloudPickler):
    """A pickler of the image that a process begins with."""

    begins = True


class _Pickler(pickle.Pickler):
    dispatch_table = Reducers()


def dumps(value: Any) -> bytes:
    """The pickle of ``value``. Raises: whatever pickling it raises, when neither pickle nor cloudpickle can do it."""
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5).dump(value)
    except Exception:  # local classes and lambdas: cloudpickle knows more
        return cloud_dumps(value)
    return file.getvalue()


def cloud_dumps(value: Any, pickler: type[CloudPickler] = CloudPickler) -> bytes:
    """The pickle of ``value``, functions of the script by value. Raises: whatever pickling it raises."""
    file = io.BytesIO()
    pickler(file, protocol=5).dump(value)
    return file.getvalue()


_MODES = {"r": "r", "r+": "r+", "w+": "r+"}  # how another process opens it; "c" may have changes that no file has
_COMPARED = 4096  # bytes


def reduce_memmap(array: Any) -> Any:
    """The path of the file, as from ``__reduce_ex__``, if it has the data that the array shows; else all the data."""
    root = _mapped(array)
    if root is None or root.filename is None or root.mode not in _MODES or not array.size:
        return array.__reduce_ex__(5)
    order = "C" if root.flags.c_contiguous else "F"
    opened = (str(root.filename), root.dtype, _MODES[root.mode], root.offset, root.shape, order)
    if not _shows_the_same(root, opened):
        return array.__reduce_ex__(5)
    if array is root:
        return _reopen, (opened,)
    start = _address(array) - _address(root)
    return _reopen, (opened, array.dtype, array.shape, start, array.strides)


def _mapped(array: Any) -> Any:
    """The array, of those that ``array`` looks into, that has mapped the file; None if none has."""
    if not isinstance(array, np.memmap):
        return None
    base: Any = array.base
    return array if isinstance(base, mmap.mmap) else _mapped(base)


def _shows_the_same(root: Any, opened: tuple[Any, ...]) -> bool:
    """True if the file is still there, and begins and ends as ``root``: a name may have come to another file."""
    try:
        present = _flat(_open(*opened))
    except (OSError, ValueError):
        return False
    count = max(1, _COMPARED // max(1, root.dtype.itemsize))
    mapped = _flat(root)
    return all(mapped[part].tobytes() == present[part].tobytes() for part in (slice(count), slice(-count, None)))


def _open(path: str, dtype: Any, mode: Any, offset: int, shape: Any, order: Any) -> Any:
    return np.memmap(path, dtype=dtype, mode=mode, offset=offset, shape=shape, order=order)


def _reopen(opened: Any, dtype: Any = None, shape: Any = None, start: int = 0, strides: Any = None) -> Any:
    root = _open(*opened)
    return root if dtype is None else np.ndarray(shape, dtype, _flat(root), start, strides)


def _flat(root: Any) -> Any:
    return (root if root.flags.c_contiguous else root.T).reshape(-1)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
