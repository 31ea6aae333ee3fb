"""A value in words: for telling whether two graphs, or two functions, are the same. Runs in every process.

``describe`` counts everything. Numbers, texts, enums, dtypes and patterns count as they are; containers, dataclasses,
arrays, tensors and expressions by all that they hold; functions by their names and by what is bound to them: arguments
of a partial, what a function made at run time has from around it, the attributes of a callable object, and of the
object of a bound method. What is long is shown by its beginning and a digest.

These do not count: attributes, and variables around a function, that begin with an underscore; the code of functions;
the folders that absolute paths and URLs lie in, and a URL's query, since data may lie elsewhere where a run goes on;
the weights of modules and the content of what has a ``state_dict`` (its class counts); nodes that functions hold (their
class counts). Objects that hold other things than plain values, and those of Python's
own library such as ``argparse.Namespace``, count by their class.

``describe_data`` compares data by what identifies them: arrays and Hugging Face datasets, lists, tuples and dicts by
their length and the items at fixed positions, the first and the last among them; other objects by their class and
length. The same sample stands for what is too large to count whole: more than ``MOST_PARTS`` values in one argument,
arrays of more than ``MOST_BYTES``.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import itertools
import operator
import os
import re
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch

from torchpipe.node.containers import DEEP
from torchpipe.node.iterator import is_stateful
from torchpipe.node.traits import callable_name, is_node
from torchpipe.state.copying import content_of_cell
from torchpipe.state.shared_list import SharedList
from torchpipe.values.large_data import spread

__all__ = [
    "MOST_BYTES",
    "MOST_PARTS",
    "describe",
    "describe_bound",
    "describe_data",
    "is_address",
    "names_below",
    "of_datasets",
    "opened_in",
]

MOST_PARTS = 500_000
MOST_BYTES = 1 << 24
_LONG_TEXT, _SHOWN = 60, 40  # of one value; what is bound to a function is as much as its parts
_LONG_CALL, _SHOWN_OF_CALL = 300, 200
_SAMPLED, _SAMPLED_WITHIN, _SAMPLED_ROWS = 256, 16, 16  # items of data, of a container in them, rows of a dataset
_SAMPLED_NUMBERS = 4096  # of an array

_NUMBERS = frozenset({type(None), bool, int, float, complex})
_AS_PRINTED = (
    int,
    float,
    complex,
    bytes,
    bytearray,
    range,
    type(Ellipsis),
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    uuid.UUID,
    torch.dtype,
    torch.device,
    np.dtype,
    types.GenericAlias,
    types.UnionType,
)
_SIMPLE = (*_AS_PRINTED, str, np.ndarray, np.generic, torch.Tensor, enum.Enum, os.PathLike, slice, re.Pattern)
_ROWS = (list, tuple, set, frozenset, collections.deque, SharedList)
_SAMPLES = (list, tuple, dict, SharedList)
_MAPPINGS = (dict, types.MappingProxyType)
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_PRINTED = {  # classes of other packages whose text is all that they are
    ("pyarrow", "DataType"),
    ("pyarrow", "Expression"),
    ("pyarrow", "Field"),
    ("pyarrow", "Schema"),
    ("polars", "DataType"),
    ("polars", "Expr"),
}
_OF_TOKENIZERS = ("name_or_path", "vocab_size", "model_max_length", "padding_side", "truncation_side", "chat_template")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_QUOTES = ("'", '"')
_BRACKETS = re.compile(r"""\\.|[][(){}'"]""")
_URL = re.compile(r"[\w+.-]+(::[\w+.-]+)*://\S*")


def describe(value: Any, numbers: Mapping[int, int] | None = None, *, bound: bool = True) -> str:
    """All of ``value`` in one line, the same in every process. Nodes are their ``numbers``, by id.

    Without ``bound`` functions count by their names, and other objects by their class.
    """
    return _Description(numbers or {}, bound).of(value)


def describe_data(value: Any, numbers: Mapping[int, int] | None = None, *, bound: bool = True) -> str:
    """The identity of ``value``, which is data, in one line. No method of an unknown class is called but ``__len__``.

    Without ``bound`` it counts by its type and length.
    """
    return _Description(numbers or {}, bound).data(value)


def describe_bound(fn: Any) -> str:
    """A function with what is bound to it; nothing if nothing is."""
    text = describe(fn)
    return "" if text == callable_name(fn) else text


def names_below(paths: Sequence[str]) -> list[str]:
    """``paths`` without the folder that all of them lie in."""
    common = os.path.commonprefix([path[: path.rfind("/") + 1] for path in paths])  # noqa: RUF071  # URLs have no path
    return [path[common.rfind("/") + 1 :] for path in paths]


class _Description:
    """Describes one value; ``left``: how many parts of it may still be counted."""

    def __init__(self, numbers: Mapping[int, int], bound: bool) -> None:
        self.numbers = numbers
        self.bound = bound
        self.around: list[int] = []  # the ids of what is being looked into
        self.of_users: set[type] = set()  # classes whose objects are none of the kinds below
        self.left = MOST_PARTS

    def of(self, value: Any) -> str:
        kind = type(value)
        if kind in _NUMBERS:
            return repr(value)
        if kind is str:
            return _text(value)
        return self._within(value, self._of)

    def data(self, value: Any, most: int = _SAMPLED) -> str:
        if not self.bound and not isinstance(value, range):
            return _sized(value)
        if type(value) in _SAMPLES:
            return self._within(value, lambda held: self._sample(held, most))
        if _is_dataclass(value) and not callable(value):
            return self._within(value, lambda held: _call(held, _fields(held), lambda part: self.data(part, most)))
        if isinstance(value, _ROWS) and type(value) not in _ROWS:  # its methods are the user's
            return _sized(value)
        by_value = value is None or isinstance(value, _SIMPLE + _ROWS) or of_datasets(value)
        return self.of(value) if by_value or callable(value) or is_node(value) else _sized(value)

    def _within(self, value: Any, describe: Callable[[Any], str]) -> str:
        if id(value) in self.around or len(self.around) > DEEP:
            return callable_name(value) if callable(value) else _sized(value)
        self.around.append(id(value))
        try:
            return describe(value)
        finally:
            self.around.pop()

    def _of(self, value: Any) -> str:
        if type(value) in self.of_users:
            return self._object(value)
        if is_node(value):
            return f"#{self.numbers[id(value)]}" if id(value) in self.numbers else callable_name(type(value))
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, np.generic):
            plain = value.item()
            return repr(value) if isinstance(plain, np.generic) else self.of(plain)
        if isinstance(value, str):
            return _text(str(value))
        if isinstance(value, os.PathLike):
            return _text(os.fsdecode(value))
        if isinstance(value, _AS_PRINTED):
            return _short(repr(value))
        if isinstance(value, slice):
            return f"slice({self._each((value.start, value.stop, value.step))})"
        if isinstance(value, re.Pattern):
            return _short(f"re.compile({value.pattern!r}, {value.flags})")
        if isinstance(value, _ROWS + _MAPPINGS):
            return _short(self._container(value))
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        kind: Any = type(value)
        if _is_printed(kind):
            return _short(" ".join(str(value).split()))
        self.of_users.add(kind)
        return self._object(value)

    def _each(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.of, values))

    def _container(self, value: Any) -> str:
        kind = _as_list(type(value))
        if len(value) > self.left:
            return self._sample(value, _SAMPLED) if kind in _SAMPLES else _sized(value)
        self.left -= len(value)
        if isinstance(value, _MAPPINGS):
            shown = ", ".join([f"{self.of(key)}: {self.of(item)}" for key, item in value.items()])
            return f"{{{shown}}}" if kind is dict else f"{callable_name(kind)}({{{shown}}})"
        if isinstance(value, set | frozenset):
            return f"{callable_name(kind)}({', '.join(sorted(map(self.of, value)))})"
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return _call(value, dict(zip(kind._fields, value)), self.of)
        is_numbers = len(value) > _SAMPLED and kind in (list, tuple) and _NUMBERS.issuperset(map(type, value))
        shown = repr(list(value))[1:-1] if is_numbers else self._each(value)
        if kind in (list, tuple):
            return f"({shown})" if kind is tuple else f"[{shown}]"
        return f"{callable_name(kind)}({shown})"

    def _sample(self, value: Any, most: int) -> str:
        """A list, tuple or dict, which is long, by its length and the items at fixed positions."""
        positions = spread(len(value), min(most, max(2, self.left)))
        self.left -= len(positions)
        if isinstance(value, dict):
            keys = list(value)
            pairs = [(keys[position], value[keys[position]]) for position in positions]
            parts = [f"{self.of(key)}: {self.data(item, _SAMPLED_WITHIN)}" for key, item in pairs]
        else:
            items = [value[position] for position in positions]
            if all(type(item) is str and is_address(item) for item in items):
                parts = list(map(repr, names_below(items)))
            else:
                parts = [self.data(item, _SAMPLED_WITHIN) for item in items]
        return _short(f"{callable_name(_as_list(type(value)))}[{len(value)}]({', '.join(parts)})")

    def _array(self, value: Any) -> str:
        about = f"{callable_name(type(value))}({_dtype(value.dtype)}, {value.shape}"
        if isinstance(value, np.memmap) and value.filename is not None:
            return f"{about}, {_text(os.fsdecode(value.filename))} at {value.offset})"
        if value.dtype.hasobject:
            return _short(f"{about}, {self._container(value.reshape(-1).tolist())})")
        if value.nbytes > MOST_BYTES:
            value = value.flat[spread(value.size, _SAMPLED_NUMBERS)]
        flat = np.ascontiguousarray(value).reshape(-1)
        return f"{about}, #{_digest(flat.view(np.uint8).data if flat.nbytes else b'')})"

    def _object(self, value: Any) -> str:
        name = callable_name(value) if callable(value) else callable_name(type(value))
        if isinstance(value, type):
            return name
        if not self.bound:
            return name if callable(value) else _sized(value)
        if of_datasets(value):
            return self._dataset(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if (tokenizer := _of_tokenizer(value)) is not None:
            return _call(value, tokenizer, self.of)
        if callable(value):
            return _short(self._function(value, name), _LONG_CALL, _SHOWN_OF_CALL)
        if is_stateful(value) or not _is_plain_object(value, []):
            return _sized(value)
        held = _fields(value) if _is_dataclass(value) else _public(value)
        return _short(_call(value, held, self.of)) if held else _sized(value)

    def _function(self, fn: Any, name: str) -> str:
        if isinstance(fn, functools.partial):
            given = [*map(self.of, fn.args), *(f"{key}={self.of(fn.keywords[key])}" for key in sorted(fn.keywords))]
            return f"partial({', '.join([self.of(fn.func), *given])})"
        if isinstance(fn, _GETTERS):
            reduced: Any = fn.__reduce__()
            made_by, arguments = reduced[:2]
            return f"{name}({self._each(arguments)})" if made_by is type(fn) else self.of(made_by)
        owner = getattr(fn, "__self__", None)
        if owner is not None and hasattr(fn, "__name__") and not isinstance(owner, types.ModuleType):
            return f"{self._owner(owner)}.{fn.__name__}"
        if is_stateful(fn):
            return name
        held = _bound_to(fn)
        shown = ", ".join(f"{key}={self.of(held[key])}" for key in sorted(held))
        return f"{name}({shown})" if shown else name

    def _owner(self, owner: Any) -> str:
        """The object of a bound method: its attributes count one by one, whatever else it holds."""
        if callable(owner) or not _has_attributes(owner) or is_stateful(owner) or _of_tokenizer(owner) is not None:
            return self.of(owner)
        held = _fields(owner) if _is_dataclass(owner) else _public(owner)
        name = callable_name(type(owner))
        return self._within(owner, lambda _: _call(owner, held, self.of)) if held else name

    def _dataset(self, value: Any) -> str:
        """A Hugging Face dataset by its rows as they lie in its table: nothing is decoded, no transform is called."""
        name = callable_name(type(value))
        if not hasattr(value, "__len__"):
            return f"{name}(columns={value.column_names}, split={value.split})"
        rows = spread(len(value), _SAMPLED_ROWS)
        table = value.with_format("arrow")[rows].to_pylist() if rows else []
        sampled = [self.data(row, _SAMPLED) for row in table]
        transform = self.of(value.format["format_kwargs"])
        columns = f"{value.column_names}, format={value.format['type']}{transform}, columns={value.format['columns']}"
        return _short(f"{name}[{len(value)}]({', '.join(sampled)}, {columns})")


def _bound_to(fn: Any) -> dict[str, Any]:
    """The values that a callable has been given, by name, beside its code."""
    if isinstance(fn, types.FunctionType):
        held = {name: value for name, value in vars(fn).items() if not name.startswith("_")}
        if "<" not in fn.__code__.co_qualname:  # neither a lambda nor within another function: the rest is code
            return held
        arguments = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        defaults = fn.__defaults__ or ()
        held |= dict(zip(arguments[len(arguments) - len(defaults) :], defaults)) | (fn.__kwdefaults__ or {})
        around = zip(fn.__code__.co_freevars, fn.__closure__ or ())
        return held | {name: content_of_cell(cell) for name, cell in around if not name.startswith("_")}
    if isinstance(fn, torch.nn.Module):
        return {name: value for name, value in _public(fn).items() if name != "training"} | dict(fn.named_children())
    inner = getattr(fn, "__wrapped__", None)  # of functools.lru_cache, which holds no arguments of its own
    return {"of": inner} if callable(inner) else _public(fn)


def _has_attributes(value: Any) -> bool:
    of_python = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    return not of_python or isinstance(value, types.SimpleNamespace)


def _public(value: Any) -> dict[str, Any]:
    values, kind = getattr(value, "__dict__", {}), cast(Any, type(value))
    if slots := _public_slots_of(kind):
        values = {name: getattr(value, name) for name in slots if hasattr(value, name)} | values
    return {name: values[name] for name in sorted(values) if not name.startswith("_")}


@functools.lru_cache(maxsize=256)
def _public_slots_of(kind: type) -> tuple[str, ...]:
    slots = [vars(cls).get("__slots__", ()) for cls in kind.__mro__]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    return tuple(name for name in names if not name.startswith("_"))


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, but for those that its class leaves out when it compares two."""
    return {item.name: getattr(value, item.name, None) for item in dataclasses.fields(value) if item.compare}


def _is_plain_object(value: Any, around: list[int]) -> bool:
    """True if it holds plain values alone; for dataclasses always. What holds others may be at work."""
    if _is_dataclass(value) or id(value) in around:
        return True
    if not _has_attributes(value) or len(around) > DEEP:
        return False
    around, kind = [*around, id(value)], cast(Any, type(value))
    return all(_is_plain(item, around) for item in getattr(value, "__dict__", {}).values()) and all(
        _is_plain(getattr(value, name), around) for name in _public_slots_of(kind) if hasattr(value, name)
    )


def _is_plain(value: Any, around: list[int]) -> bool:
    kind: Any = type(value)
    if kind in _NUMBERS or kind is str:
        return True
    if isinstance(value, _SIMPLE) or callable(value) or is_node(value) or _is_printed(kind):
        return True
    if isinstance(value, _ROWS + _MAPPINGS):
        first = itertools.islice(value.values() if isinstance(value, _MAPPINGS) else value, _SAMPLED)
        return id(value) in around or all(_is_plain(item, [*around, id(value)]) for item in first)
    return _is_plain_object(value, around)


@functools.lru_cache(maxsize=256)
def _is_printed(kind: type) -> bool:
    return any((cls.__module__.partition(".")[0], cls.__name__) in _PRINTED for cls in kind.__mro__)


def _of_tokenizer(value: Any) -> dict[str, Any] | None:
    """The identity of a tokenizer of Hugging Face's; None for others. They hold much that differs between runs."""
    if type(getattr(value, "name_or_path", None)) is str and type(getattr(value, "vocab_size", None)) is int:
        length = {"length": len(value)} if isinstance(value, Sized) else {}  # with the tokens that were added
        return {part: getattr(value, part) for part in _OF_TOKENIZERS if hasattr(value, part)} | length
    if type(value).__module__.partition(".")[0] == "tokenizers" and hasattr(value, "get_vocab_size"):
        return {"length": value.get_vocab_size()}
    return None


def of_datasets(value: Any) -> bool:
    loaded = sys.modules.get("datasets")
    return loaded is not None and isinstance(value, (loaded.Dataset, loaded.IterableDataset))


def _tensor(value: torch.Tensor) -> str:
    about = f"{callable_name(type(value))}({value.dtype}, {tuple(value.shape)}"
    dense = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not dense or type(value) is not torch.Tensor:  # weights among them
        return f"{about})"
    value = value.detach()
    if value.nbytes > MOST_BYTES:
        value = torch.take(value, torch.tensor(spread(value.numel(), _SAMPLED_NUMBERS)))
    data = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{about}, #{_digest(data if value.nbytes else b'')})"


def _dtype(dtype: np.dtype[Any]) -> str:
    return str(dtype.descr) if dtype.names else str(dtype)


def _call(value: Any, held: Mapping[str, Any], describe: Callable[[Any], str]) -> str:
    return f"{callable_name(type(value))}({', '.join(f'{name}={describe(held[name])}' for name in held)})"


def _as_list(kind: type) -> type:
    """A shared list is what a list of its items is: a run may go on with either."""
    return list if kind is SharedList else kind


def _sized(value: Any) -> str:
    name = callable_name(_as_list(type(value)))
    if not isinstance(value, Sized):
        return name
    try:
        return f"{name}[{len(value)}]"
    except Exception:  # a dataset that does not know its length; a user's may fail in any way
        return name


def _text(text: str) -> str:
    if is_address(text):
        path = text.partition("?")[0] if "://" in text else text
        text = ".../" + path.rstrip("/").rpartition("/")[2]
    return _short(repr(text))


def is_address(text: str) -> bool:
    """A path or an URL: data may lie elsewhere where a run goes on."""
    if os.path.isabs(text) or text.startswith("~"):
        return "\n" not in text
    return "://" in text and _URL.fullmatch(text) is not None


def _short(text: str, long: int = _LONG_TEXT, shown: int = _SHOWN) -> str:
    """The text as it is shown: in whole, or its beginning and a digest, with its brackets and quotes closed."""
    if len(text) <= long:
        return text
    closing = "".join(_CLOSING.get(opened, opened) for opened in reversed(opened_in(text[:shown])))
    return f"{text[:shown]}...#{_digest(text.encode('utf-8', 'surrogatepass'))}{closing}"


def opened_in(text: str) -> list[str]:
    """The brackets and quotes that are open at the end of ``text``."""
    opened: list[str] = []
    for token in _BRACKETS.findall(text):
        if opened and opened[-1] in _QUOTES:
            if token == opened[-1]:
                opened.pop()
        elif token in _QUOTES or token in _CLOSING:
            opened.append(token)
        elif opened and token == _CLOSING[opened[-1]]:
            opened.pop()
    return opened


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
