"""The contents of one object: its kind, what of it is plain data, and the objects that it refers to.

Runs in every process. Here is the one table of kinds. Constants (numbers, text, tuples of such ...) have no contents:
they stand in those of their holders. All else is asked for what pickle would ask it for, ``__reduce_ex__``; what pickle
refuses is followed by its attributes, if it has any.
"""

from __future__ import annotations

import array
import copyreg
import dataclasses
import datetime
import decimal
import enum
import functools
import operator
import types
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchpipe.randomness.generators import GENERATORS, generator_kind, generator_state
from torchpipe.state import encode
from torchpipe.state.codec import opaque_notes
from torchpipe.state.copying import attributes_of
from torchpipe.state.kinds import kind_of
from torchpipe.state.tensors import is_plain

__all__ = [
    "ATTRIBUTES",
    "NAMED",
    "Contents",
    "Memories",
    "Memory",
    "by_attributes",
    "contents_of",
    "encoded",
    "is_constant",
    "is_of_machine",
    "is_own",
    "is_same",
    "is_same_part",
    "name_of",
]

_CONSTANTS = {
    *(bool, int, float, complex, str, bytes, type(None), range, torch.Size, torch.dtype, torch.device),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, uuid.UUID),
}
_CODE = (type, types.FunctionType, types.ModuleType, np.ufunc)
_OF_THE_MACHINE = {"_thread", "threading", "concurrent", "logging", "weakref", "_weakref", "io", "_io", "tempfile"}
_NEW: Any = object().__reduce_ex__(4)[0]  # copyreg.__newobj__
_NUMBERS = {int: np.int64, float: np.float64}
_ASKED = (
    "__new__",
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)
_LARGE = 1 << 13  # bytes, or parts
ATTRIBUTES = "attributes"
NAMED = (ATTRIBUTES, "named state")
"""Forms of states whose values have names."""


@dataclass(slots=True, eq=False)
class Contents:
    """``fixed`` is plain data, ``parts`` are constants and live objects, ``names`` say what each part is.

    Kinds: ``held`` and ``opaque`` are known by identity alone, and the second may change unseen; ``code``; ``tuple``,
    ``list``, ``dict``, ``set``; ``object`` by ``__reduce_ex__``; ``enum``, ``generator``; ``buffer`` is a ``bytearray``
    or ``array``; ``array`` and ``tensor`` are views of a ``memory``; ``objects`` are arrays of objects, ``encoded``
    arrays and tensors of other kinds; ``data`` is known by a sample.

    ``constant``: all parts are constants.
    """

    kind: str
    fixed: Any = None
    parts: list[Any] = field(default_factory=list)
    constant: bool = True
    array: np.ndarray[Any, Any] | None = None

    @property
    def is_large(self) -> bool:
        return len(self.parts) > _LARGE or (self.kind == "memory" and self.fixed[1].size > _LARGE)

    def packed(self) -> list[Any] | np.ndarray[Any, Any]:
        """The parts as a state holds them: those of a long list of numbers as an array, which is made once."""
        if self.array is None and self.kind == "list" and self.is_large:
            kinds = set(map(type, self.parts))
            number = _NUMBERS.get(kinds.pop())
            with suppress(OverflowError):
                self.array = None if kinds or number is None else _small(np.array(self.parts, number))
        return self.parts if self.array is None else self.array

    def attributes(self) -> dict[str, Any]:
        if self.kind != "object" or self.fixed[2] != ATTRIBUTES:
            return {}
        _, args, _, names, _, _ = self.fixed
        return dict(zip(names, self.parts[1 + args :]))

    def labels(self) -> list[Any]:
        """The labels that lead from the object to its parts: plain data, each but once."""
        parts = self.parts
        match self.kind:
            case "dict":
                return _pair_labels(parts[: len(parts) // 2])
            case "object":
                _, args, form, names, items, pairs = self.fixed
                state = [f".{name}" for name in names] if form in NAMED else [("state", i) for i in range(len(names))]
                first = 1 + args + len(names)
                keys = parts[first + items : first + items + pairs]
                return ["()", *[("argument", i) for i in range(args)], *state, *range(items), *_pair_labels(keys)]
            case _:
                return list(range(len(parts)))


def _pair_labels(keys: list[Any]) -> list[Any]:
    plain = (str, int, bytes, float, bool, type(None))
    values = [("key", key) if type(key) in plain else ("value", number) for number, key in enumerate(keys)]
    return [*(("of", number) for number in range(len(keys))), *values]


def _small(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same numbers, in 4 bytes each where whole ones fit."""
    fits = numbers.dtype.kind == "i" and numbers.min() >= -(1 << 31) and numbers.max() < 1 << 31
    return numbers.astype(np.int32) if fits else numbers


class Memory:
    """The memory that arrays and tensors look into. ``view``: its bytes, as an array."""

    __slots__ = ("owner", "view")

    def __init__(self, owner: Any, view: np.ndarray[Any, Any]) -> None:
        self.owner, self.view = owner, view


class Memories:
    """The memories of a traversal, by where they are; ``known``: those of one before."""

    def __init__(self, known: Memories | None = None) -> None:
        self._known, self._own = known, dict[tuple[str, int], Memory]()

    def of(self, owner: Any, address: int, view: Callable[[], np.ndarray[Any, Any]]) -> Memory:
        key = ("empty", id(owner)) if not address else ("at", address)
        found = self._own.get(key) or (None if self._known is None else self._known.find(key))
        if found is None or not address:
            found = self._own[key] = Memory(owner, view())
        return found

    def find(self, key: tuple[str, int]) -> Memory | None:
        return self._own.get(key)


# -- constants ------------------------------------------------------------------------------------------------------


def is_constant(value: Any) -> bool:
    """True for what nobody can change, and what can be written down as plain data."""
    kind = type(value)
    if kind in _CONSTANTS:
        return True
    if kind is tuple or kind is frozenset:
        return _CONSTANTS.issuperset(map(type, value)) or all(map(is_constant, value))
    if isinstance(value, np.generic):
        return kind is not np.void and kind is not np.object_ and kind_of(kind) is not None
    return kind.__module__ == "pathlib" and kind_of(kind) is not None


def _all_constant(parts: list[Any]) -> bool:
    return _CONSTANTS.issuperset(map(type, parts)) or all(map(is_constant, parts))


def is_same_part(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or not is_constant(one):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(is_same_part, one, other))
    return bool(one == other) or (one != one and other != other)


def is_same(one: Contents, other: Contents) -> bool:
    if one is other:
        return True
    if one.kind != other.kind or len(one.parts) != len(other.parts):
        return False
    if one.kind == "memory":
        return one.fixed[0] == other.fixed[0] and np.array_equal(one.fixed[1], other.fixed[1])
    if one.fixed != other.fixed:
        return False
    if one.constant and other.constant and len(one.parts) > _LARGE:
        return one.parts == other.parts  # at once; numbers that are equal are taken for the same
    return all(map(operator.is_, one.parts, other.parts)) or all(map(is_same_part, one.parts, other.parts))


# -- contents -------------------------------------------------------------------------------------------------------


def name_of(code: Any) -> str:
    return f"{getattr(code, '__module__', '')}:{getattr(code, '__qualname__', getattr(code, '__name__', ''))}"


def contents_of(value: Any, memories: Memories) -> Contents:
    """Takes nothing from the object: a generator stays where it is."""
    kind = type(value)
    if kind is list:
        parts = value[:]
        return Contents("list", None, parts, _all_constant(parts))
    if kind is dict:
        pairs = list(value.items())
        return _with_parts("dict", None, [key for key, _ in pairs] + [item for _, item in pairs])
    if kind is tuple:
        return _with_parts("tuple", None, list(value))
    if kind in (set, frozenset):
        return _with_parts("set", kind is frozenset, _in_order(value))
    if kind in (bytearray, array.array):
        return Contents("buffer", [value.typecode if kind is array.array else "", bytes(value)])
    if _is_simple(kind) and hasattr(value, "__dict__"):  # type: ignore[arg-type]  # classes can be hashed
        held = value.__dict__
        return Contents("object", ["new", 0, ATTRIBUTES, list(held), 0, 0], [kind, *held.values()], False)
    if isinstance(value, Memory):
        return Contents("memory", ["tensor" if isinstance(value.owner, torch.Tensor) else "array", value.view.copy()])
    if isinstance(value, enum.Enum):
        name = value.name  # None, or several, for flags
        known = name in kind.__members__
        return Contents("enum", [known, name if known else value.value], [kind], constant=False)
    if isinstance(value, GENERATORS):
        state = generator_state(value)
        return Contents("held") if state is None else Contents("generator", [generator_kind(value), encode(state)])
    if isinstance(value, _CODE):
        return Contents("code", name_of(value))
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
        return Contents("code", name_of(value))
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, memories)
    if kind is np.ndarray:
        return _of_array(value, memories)
    if isinstance(value, torch.nn.Module | np.memmap) or is_of_machine(kind):
        return Contents("held")
    if _room(kind) == "torch" and not kind.__module__.startswith("torch.utils.data"):
        return Contents("held")
    return _by_reduce(value)


def is_of_machine(kind: type) -> bool:
    """True for classes whose objects stand for what a process has: locks, threads, files, logs."""
    return _room(kind) in _OF_THE_MACHINE or kind.__module__ == "multiprocessing.connection"


def is_own(kind: type) -> bool:
    """True for classes of this project's, whose objects are no user's to change; a memory is the user's."""
    return _room(kind) in ("torchpipe", "reading_services") and kind is not Memory


def _room(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _with_parts(kind: str, fixed: Any, parts: list[Any]) -> Contents:
    return Contents(kind, fixed, parts, _all_constant(parts))


def _in_order(members: Any) -> list[Any]:
    """The same for equal sets of constants, however they came to be."""
    listed = list(members)
    return sorted(listed, key=lambda item: (type(item).__name__, repr(item))) if _all_constant(listed) else listed


def _of_tensor(value: torch.Tensor, memories: Memories) -> Contents:
    if type(value) is not torch.Tensor or not is_plain(value) or value.grad_fn is not None:
        plain = value.detach().cpu().as_subclass(torch.Tensor)
        where = (
            "" if plain.layout is value.layout and type(value) is torch.Tensor and value.is_cpu else str(value.device)
        )
        return encoded(plain, str(value.dtype), where)
    storage = value.untyped_storage()

    def view() -> np.ndarray[Any, Any]:
        return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()

    memory = memories.of(value, storage.data_ptr() if storage.nbytes() else 0, view)
    fixed = [value.dtype, list(value.shape), list(value.stride()), value.storage_offset(), value.requires_grad]
    return Contents("tensor", fixed, [memory], constant=False)


def encoded(value: Any, dtype: str, device: str) -> Contents:
    try:
        data = encode(value)
        return Contents("opaque" if opaque_notes(data) else "encoded", [dtype, list(value.shape), device, data])
    except Exception:  # what no state can hold
        return Contents("opaque")


def _of_array(value: np.ndarray[Any, Any], memories: Memories) -> Contents:
    if value.dtype == object:
        return _with_parts("objects", list(value.shape), list(value.flat))
    if value.dtype.kind not in "biufcmMS":
        return encoded(value, str(value.dtype), "")
    owner: Any = value
    while type(owner.base) is np.ndarray:
        owner = owner.base
    if not owner.flags.forc or owner.dtype.kind not in "biufcmMSV":
        return encoded(value, str(value.dtype), "")
    address = owner.__array_interface__["data"][0] if owner.nbytes else 0
    memory = memories.of(owner, address, lambda: _bytes_of(owner))
    offset = value.__array_interface__["data"][0] - address if owner.nbytes else 0
    described = np.lib.format.dtype_to_descr(value.dtype)
    fixed = [described, list(value.shape), list(value.strides), offset, value.flags.writeable]
    return Contents("array", fixed, [memory], constant=False)


def _bytes_of(owner: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not owner.nbytes:
        return np.empty(0, np.uint8)
    return np.ndarray((owner.nbytes,), np.uint8, buffer=owner if owner.flags.c_contiguous else owner.T)


@functools.lru_cache(1000)  # classes: a program may go on making some
def _is_simple(kind: type) -> bool:
    """True if all that pickle would be told of an object is its class and its ``__dict__``."""
    return (
        all(getattr(kind, name, None) is getattr(object, name, None) for name in _ASKED)
        and kind not in copyreg.dispatch_table
        and not any("__slots__" in vars(cls) for cls in kind.__mro__)
        and _room(kind) not in _OF_THE_MACHINE | {"torch"}
    )


# -- what pickle would ask for --------------------------------------------------------------------------------------


def _by_reduce(value: Any) -> Contents:
    """Its fixed part: how it is made, arguments, form of its state, names in that, items, pairs of keys and values."""
    kind = type(value)
    if (
        dataclasses.is_dataclass(kind)
        and getattr(getattr(kind, "__setstate__", None), "__module__", "") == "dataclasses"
    ):
        return by_attributes(value, "new")  # which is what those with slots get of dataclasses, as lists
    try:
        reduced = _reduced(value)
    except RecursionError:
        raise
    except Exception:  # pickle refuses it, in whatever words
        return by_attributes(value)
    if isinstance(reduced, str):
        return Contents("code", f"{kind.__module__}:{reduced}")
    function, args, state, items, pairs = (*reduced, None, None, None)[:5]
    if len(reduced) > 5 and reduced[5] is not None:  # a function that sets the state
        return by_attributes(value)
    how = "call"
    if function is _NEW:
        how, function, args = "new", args[0], args[1:]
    if isinstance(value, set):
        how, function, args, items = "new", kind, (), _in_order(set.__iter__(value))
    elif isinstance(value, Counter):
        how, function, args, pairs = "new", kind, (), dict.items(value)
    form, names, kept = _state_of(value, state)
    items = list(items or ())
    pairs = list(pairs or ())
    parts = [function, *args, *kept, *items, *[key for key, _ in pairs], *[item for _, item in pairs]]
    return Contents("object", [how, len(args), form, names, len(items), len(pairs)], parts, constant=False)


def _reduced(value: Any) -> Any:
    reduce = copyreg.dispatch_table.get(type(value))
    if reduce is not None:
        return reduce(value)
    if _room(type(value)) != "itertools":
        return value.__reduce_ex__(4)
    with warnings.catch_warnings():  # Python 3.12 to 3.13 warn that 3.14 will not
        warnings.simplefilter("ignore", DeprecationWarning)
        return value.__reduce_ex__(4)


def _state_of(value: Any, state: Any) -> tuple[str, list[str], list[Any]]:
    """(the form, names in it, values): ``attributes`` are set as such, all else goes to ``__setstate__``."""
    own = hasattr(type(value), "__setstate__")
    if state is None and not hasattr(value, "__dict__"):
        return "none", [], []
    if own:
        if type(state) is dict and all(type(name) is str for name in state):
            return "named state", list(state), list(state.values())
        if type(state) is tuple:
            return "state of parts", [""] * len(state), list(state)
        return ("none", [], []) if state is None else ("state", [""], [state])
    if isinstance(state, tuple) and len(state) == 2:
        found = {**(state[0] or {}), **(state[1] or {})}
    else:
        found = dict(state or {})
    return ATTRIBUTES, list(found), list(found.values())


def by_attributes(value: Any, how: str = "held") -> Contents:
    found = dict(attributes_of(value))
    if how == "held" and not found:
        return Contents("opaque")
    if isinstance(value, Iterator | functools.partial) or _room(type(value)) == "multiprocessing":
        return Contents("opaque")
    return Contents("object", [how, 0, ATTRIBUTES, list(found), 0, 0], [type(value), *found.values()], False)
