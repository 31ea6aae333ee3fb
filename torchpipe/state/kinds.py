"""The types that a state keeps as plain data, each as a list of parts, and what is made of such parts again.

Runs in every process. Making one runs no code that a state could name: the classes here are Python's, numpy's, torch's
and Pillow's own. Parts come from a file that anybody may have written, so each is checked before memory is taken for
it; what does not fit raises ValueError, TypeError and the like, which the codec reports.

**Values whose class a state has to name**: named tuples, dataclasses, members of enums. A name in a file must not
choose what runs. So nothing is imported: a class is found only among the modules that the program has loaded itself, by
looking into dictionaries, and must be a named tuple, a dataclass or an enum. Nothing of the class is called: no
``__new__``, ``__init__``, ``__post_init__``, ``__setstate__`` or ``_missing_``, and one that would be called later
(``__del__``) rules the class out. Only a set, or the keys of a dict, ask what they hold for its hash, by the program's
own ``__hash__`` and ``__eq__``. A value that would not come back whole in this way is left to pickle.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import numbers
import pathlib
import re
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import DataChunk
from torchpipe.state.tensors import is_plain, memory_of, span_of, tensor_in

__all__ = ["MAKERS", "NAMED", "ClassMissing", "Kind", "Unfit", "find_named", "kind_of", "make_named", "take_named"]


class Unfit(Exception):
    """This value is of a kind that could be kept as data, but has something that would be lost."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The form in which one type is kept. ``code`` is part of the format: never renumber."""

    code: int
    name: str
    take: Callable[[Any], list[Any]]
    make: Callable[[list[Any]], Any]


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _whole(value: Any, name: str = "a number") -> int:
    if type(value) is not int:
        raise TypeError(f"{name} is {type(value).__name__}, not int")
    return value


def _one(parts: list[Any], kind: type) -> Any:
    (part,) = parts
    if type(part) is not kind:
        raise TypeError(f"{kind.__name__} expected, found {type(part).__name__}")
    return part


def _plain(value: Any) -> None:
    """Attributes that user code has attached would be lost."""
    if getattr(value, "__dict__", None):
        raise Unfit


# --- containers


def _take_counter(value: Any) -> list[Any]:
    _plain(value)
    return [dict(value)]


def _take_ordered(value: Any) -> list[Any]:
    """Leave out the versions in a module's ``state_dict()`` (``_metadata``): its class is the one that loads."""
    if getattr(value, "__dict__", {}).keys() - {"_metadata"}:
        raise Unfit
    return [dict(value)]


_FACTORIES: dict[str, Any] = {
    "": None, "list": list, "dict": dict, "set": set, "int": int, "float": float, "str": str, "tuple": tuple,
}  # fmt: skip


def _take_defaultdict(value: Any) -> list[Any]:
    name = next((name for name, factory in _FACTORIES.items() if factory is value.default_factory), None)
    if name is None:
        raise Unfit
    return [name, dict(value)]


def _make_defaultdict(parts: list[Any]) -> Any:
    name, content = parts
    return defaultdict(_FACTORIES[name], _one([content], dict))


# --- tensors and arrays

_NUMPY_KINDS = "biufcmMSUV"
_DTYPE_TEXT = re.compile(r"[<>|=][biufcmMSUV]\d*(\[[^\]]*\])?")
_LAST_CHARACTER = 0x10FFFF


def _shape(value: Any) -> tuple[int, ...]:
    if type(value) is not list:
        raise TypeError("a shape that is no list")
    for size in value:
        if type(size) is not int or size < 0:
            raise ValueError("a shape of other than sizes")
    return tuple(value)


def _take_tensor(value: torch.Tensor) -> list[Any]:
    _plain(value)
    if value.grad_fn is not None or (value.is_leaf and value.grad is not None):
        raise ValueError(
            f"a tensor of shape {tuple(value.shape)} belongs to an autograd graph, which a state cannot hold: detach() "
            "it where it is made"
        )
    if not is_plain(value):
        raise Unfit
    memory, strides = memory_of(value.detach())
    data = memory.reshape(-1).view(np.uint8).data
    how = [] if strides is None else [list(strides)]
    return [str(value.dtype).removeprefix("torch."), list(value.shape), data, value.requires_grad, *how]


def _make_tensor(parts: list[Any]) -> torch.Tensor:
    name, sizes, raw, requires_grad, *how = parts
    dtype, shape = _torch_dtype([name]), _shape(sizes)
    strides = _shape(_one(how, list)) if how else None
    elements = math.prod(shape) if strides is None else span_of(shape, strides)
    _check_size(raw, (elements,), dtype.itemsize)
    if not raw:
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
    else:
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8 if dtype is torch.bool else dtype)
        tensor = tensor_in(flat.ne(0) if dtype is torch.bool else flat, shape, strides)
    return tensor.requires_grad_() if _one([requires_grad], bool) else tensor


def _torch_dtype(parts: list[Any]) -> torch.dtype:
    name = _one(parts, str)
    dtype = vars(torch).get(name)  # not getattr(), which may import
    if not isinstance(dtype, torch.dtype) or name.startswith("q"):
        raise ValueError(f"unknown tensor dtype {name!r:.60}")
    return dtype


@lru_cache(maxsize=256)
def _describe(dtype: np.dtype[Any]) -> Any:
    """Text, or the list that numpy writes into .npy files. Raises: Unfit if that says less than the dtype."""
    if dtype.kind not in _NUMPY_KINDS or dtype.hasobject:
        raise Unfit
    text = dtype.str if dtype.names is None and dtype.subdtype is None else np.lib.format.dtype_to_descr(dtype)
    if _numpy_dtype(text) != dtype:
        raise Unfit
    return text


def _numpy_dtype(described: Any) -> np.dtype[Any]:
    if type(described) is str:
        return _simple_dtype(described)
    _check_fields(described)
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(described)
    _need(not dtype.hasobject, "an array's dtype would hold objects")
    return dtype


def _check_fields(described: Any, depth: int = 0) -> None:
    """A structured dtype: a list of (name, dtype) or (name, dtype, shape), the dtype again text or such a list."""
    _need(type(described) is list and depth < 32, "an array's dtype is neither text nor a list of fields")
    for name, kind, *shape in described:
        _need(isinstance(name, str | tuple) and len(shape) < 2, "a field of an array's dtype has no name")
        if type(kind) is str:
            _need(_DTYPE_TEXT.fullmatch(kind) is not None, f"a field's dtype {kind!r:.60}")
        else:
            _check_fields(kind, depth + 1)


@lru_cache(maxsize=256)
def _simple_dtype(text: str) -> np.dtype[Any]:
    _need(_DTYPE_TEXT.fullmatch(text) is not None, f"array dtype {text!r:.60}")
    return np.dtype(text)


def _check_size(raw: Any, shape: tuple[int, ...], itemsize: int) -> None:
    if type(raw) is not bytes or len(raw) != math.prod(shape) * itemsize:
        raise ValueError(f"{len(raw)} bytes for the shape {shape} of elements of {itemsize}")


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], raw: Any) -> Any:
    _check_size(raw, shape, dtype.itemsize)
    if dtype.kind == "U" and raw:
        words: Any = np.frombuffer(raw, dtype=np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        _need(bool((words <= _LAST_CHARACTER).all()), "text in an array holds what is no character")
    data = bytearray(raw)
    if dtype.kind == "b" and raw:
        np.not_equal(np.frombuffer(data, dtype=np.uint8), 0, out=np.frombuffer(data, dtype=np.bool_))
    return np.ndarray(shape, dtype, buffer=data) if raw else np.empty(shape, dtype)


def _take_array(value: Any) -> list[Any]:
    if value.dtype == object:
        return [None, list(value.shape), *value.flat]
    text = _describe(value.dtype)
    if value.dtype.kind in "mMU" or value.dtype.names is not None or not value.flags.c_contiguous or not value.nbytes:
        return [text, list(value.shape), value.tobytes()]
    return [text, list(value.shape), value.reshape(-1).view(np.uint8).data]


def _make_array(parts: list[Any]) -> Any:
    described, sizes, *rest = parts
    shape = _shape(sizes)
    if described is None:
        _need(len(rest) == math.prod(shape), f"{len(rest)} objects for shape {shape}")
        array = np.empty(len(rest), dtype=object)
        for index, item in enumerate(rest):
            array[index] = item
        return array.reshape(shape)
    (raw,) = rest
    return _array(_numpy_dtype(described), shape, raw)


def _make_scalar(parts: list[Any]) -> Any:
    described, raw = parts
    return _array(_numpy_dtype(described), (), raw)[()]


# --- small values


def _make_big_int(parts: list[Any]) -> int:
    return int.from_bytes(_one(parts, bytes), "little", signed=True)


def _make_complex(parts: list[Any]) -> complex:
    real, imag = parts
    _need(type(real) is float and type(imag) is float, "a complex number of other parts than floats")
    return complex(real, imag)


_PATHS = {
    kind.__name__: kind
    for kind in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}


def _make_path(parts: list[Any]) -> Any:
    name, text = parts
    kind: Any = _PATHS[name]
    if issubclass(kind, pathlib.Path):
        kind = pathlib.Path  # of the system that reads it
    return kind(_one([text], str))


def _take_time(value: Any) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo]


def _moment(kind: Any) -> Callable[[list[Any]], Any]:
    def make(parts: list[Any]) -> Any:
        *fields, fold, zone = parts
        return kind(*fields).replace(tzinfo=zone, fold=fold)

    return make


def _take_zone(value: Any) -> list[Any]:
    if value.key is None:
        raise Unfit
    return [value.key]


def _make_zone(parts: list[Any]) -> Any:
    import zoneinfo

    return zoneinfo.ZoneInfo(_one(parts, str))


def _make_range(parts: list[Any]) -> range:
    start, stop, step = (_whole(part) for part in parts)
    return range(start, stop, step)


def _take_uuid(value: uuid.UUID) -> list[Any]:
    if value.is_safe is not uuid.SafeUUID.unknown:
        raise Unfit
    return [value.bytes]


# --- Pillow's images

_PIXEL_BYTES = {
    **dict.fromkeys(("L", "P"), 1), **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}  # fmt: skip
_OF_IMAGES = {"im", "readonly", "pyaccess", "palette", "info", "format", "encoderinfo", "encoderconfig"}


def _take_image(image: Any) -> list[Any]:
    """The content, for images read from files (which are loaded) as well: a plain ``PIL.Image.Image`` comes back."""
    image.load()
    if type(image).__module__ == "PIL.Image":
        if added := [name for name in vars(image) if not name.startswith("_") and name not in _OF_IMAGES]:
            raise ValueError(f"an image has the attribute {added[0]!r}, which a state would lose: keep it beside it")
    elif getattr(image, "is_animated", False) and image.format != "MPO":  # a photo, and another view of it
        raise Unfit
    if image.mode not in _PIXEL_BYTES and image.mode != "1":
        raise Unfit
    palette = [] if image.palette is None else [image.palette.mode, bytes(image.getpalette(image.palette.mode) or ())]
    info = {key: _plain_info(value) for key, value in image.info.items()}
    return [image.mode, list(image.size), image.tobytes(), palette, info, image.format]


def _plain_info(value: Any) -> Any:
    """Texts and fractions of Pillow's own classes as what they say."""
    if isinstance(value, tuple):
        return tuple(map(_plain_info, value))
    if isinstance(value, str):
        return str(value)
    return float(value) if isinstance(value, numbers.Rational) and not isinstance(value, numbers.Integral) else value


def _make_image(parts: list[Any]) -> Any:
    import PIL.Image

    mode, sizes, raw, palette, info, form = parts
    width, height = _shape(sizes)
    _need(mode == "1" or mode in _PIXEL_BYTES, f"an image of mode {mode!r:.40}")
    size = (width + 7) // 8 * height if mode == "1" else width * height * _PIXEL_BYTES[mode]
    _check_size(raw, (size,), 1)
    image = PIL.Image.frombytes(mode, (width, height), raw)
    if palette:
        kind, colors = palette
        _need(mode in ("P", "PA") and kind in ("RGB", "RGBA") and len(colors) <= 256 * len(kind), "an image's palette")
        image.putpalette(_one([colors], bytes), kind)
    image.info = _one([info], dict)
    _need(form is None or type(form) is str, "an image's format")
    image.format = form
    return image


KINDS: dict[type, Kind] = {
    kind: Kind(code, kind.__name__, take, make)
    for code, kind, take, make in (
        (1, tuple, list, tuple),
        (2, set, list, set),
        (3, frozenset, list, frozenset),
        (4, int, lambda v: [v.to_bytes(v.bit_length() // 8 + 1, "little", signed=True)], _make_big_int),
        (5, torch.Tensor, _take_tensor, _make_tensor),
        (6, np.ndarray, _take_array, _make_array),
        (7, np.generic, lambda v: [_describe(v.dtype), v.tobytes()], _make_scalar),
        (9, complex, lambda v: [v.real, v.imag], _make_complex),
        (10, bytearray, lambda v: [bytes(v)], lambda p: bytearray(_one(p, bytes))),
        (11, DataChunk, list, DataChunk),
        (13, pathlib.PurePath, lambda v: [type(v).__name__, str(v)], _make_path),
        (14, datetime.datetime, lambda v: [v.year, v.month, v.day, *_take_time(v)], _moment(datetime.datetime)),
        (15, datetime.date, lambda v: [v.year, v.month, v.day], lambda p: datetime.date(*p)),
        (16, datetime.time, _take_time, _moment(datetime.time)),
        (17, datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda p: datetime.timedelta(*p)),
        (18, datetime.timezone, lambda v: list(v.__getinitargs__()), lambda p: datetime.timezone(*p)),
        (19, OrderedDict, _take_ordered, lambda p: OrderedDict(_one(p, dict))),
        (20, defaultdict, _take_defaultdict, _make_defaultdict),
        (21, Counter, _take_counter, lambda p: Counter(_one(p, dict))),
        (22, deque, lambda v: [v.maxlen, *v], lambda p: deque(p[1:], None if p[0] is None else _whole(p[0]))),
        (23, Decimal, lambda v: [str(v)], lambda p: Decimal(_one(p, str))),
        (25, uuid.UUID, _take_uuid, lambda p: uuid.UUID(bytes=_one(p, bytes))),
        (26, range, lambda v: [v.start, v.stop, v.step], _make_range),
        (30, torch.Size, list, lambda p: torch.Size([_whole(part) for part in p])),
        (31, torch.dtype, lambda v: [str(v).removeprefix("torch.")], _torch_dtype),
        (32, torch.device, lambda v: [str(v)], lambda p: torch.device(_one(p, str))),
    )
}
KINDS |= dict.fromkeys(_PATHS.values(), KINDS[pathlib.PurePath])
_ZONE = Kind(34, "ZoneInfo", _take_zone, _make_zone)
_IMAGE = Kind(35, "Image", _take_image, _make_image)


def kind_of(kind: type) -> Kind | None:
    """The kind that keeps values of just this type, or None."""
    found = KINDS.get(kind)
    if found is not None:
        return found
    if issubclass(kind, np.generic):
        return KINDS[np.generic]
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if image is not None and issubclass(kind, image) and kind.__module__.startswith("PIL."):
        return _IMAGE
    zoneinfo = sys.modules.get("zoneinfo")
    return _ZONE if zoneinfo is not None and kind is zoneinfo.ZoneInfo else None


MAKERS: dict[int, Callable[[list[Any]], Any]] = {kind.code: kind.make for kind in (*KINDS.values(), _ZONE, _IMAGE)}
"""What rebuilds a value from its parts, by the kind's code."""


NAMED = 40  # a code: part of the format


class ClassMissing(Exception):
    """The class that a state names is not there, or is not what it was."""


def _find(module: Any, qualname: Any) -> Any:
    """The class of this name, if its module is loaded: looks into dictionaries only. None if it is not there."""
    if type(module) is not str or type(qualname) is not str:
        return None
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        if not isinstance(found, types.ModuleType | type):
            return None
        found = vars(found).get(name)
    return found if isinstance(found, type) else None


def find_named(name: str) -> type | None:
    """The named tuple, dataclass or enum of the name ``module:qualname``, if its module is loaded."""
    found = _find(*name.split(":", 1)) if ":" in name else None
    return found if found is not None and _style(found) is not None else None


def _style(kind: Any) -> str | None:
    """``"tuple"``, ``"dataclass"`` or ``"enum"``: how a value of the class is kept; None if it is not kept so."""
    if isinstance(kind, enum.EnumMeta):
        return "enum"
    if getattr(kind, "__del__", None) is not None:
        return None
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return None
    if kind.__mro__[-2:] == (tuple, object) and _fields_of(kind) is not None:
        return "tuple" if kind.__getstate__ is object.__getstate__ else None
    if not dataclasses.is_dataclass(kind) or kind.__new__ is not object.__new__ or hasattr(kind, "__getnewargs__"):
        return None
    own = [getattr(kind, name, None) for name in ("__getstate__", "__setstate__")]
    made = all(one in (None, object.__getstate__) or getattr(one, "__module__", "") == "dataclasses" for one in own)
    return "dataclass" if made and not hasattr(kind, "__getnewargs_ex__") else None


def _fields_of(kind: Any) -> tuple[str, ...] | None:
    fields = getattr(kind, "_fields", None)
    if isinstance(fields, tuple) and all(isinstance(name, str) for name in fields):
        return fields
    return None


def _members(kind: Any) -> Any:
    return enum.EnumMeta.__members__.__get__(kind)  # not what a class may have instead


def take_named(value: Any) -> list[Any] | None:
    """The parts of a named tuple, dataclass or member of an enum; None if ``value`` is none or would lose something."""
    kind = type(value)
    style = _style(kind)
    if style is None or _find(kind.__module__, kind.__qualname__) is not kind:
        return None
    name = [kind.__module__, kind.__qualname__, style]
    if style == "enum":
        member = getattr(value, "_name_", None)
        return [*name, member] if isinstance(member, str) and _members(kind).get(member) is value else None
    if style == "tuple":
        fields = _fields_of(kind)
        if fields is None or len(fields) != len(value) or getattr(value, "__dict__", None):
            return None
        return [*name, list(fields), *value]
    content = _content(value)
    names = {field.name for field in dataclasses.fields(kind)}
    return [*name, content] if names <= content.keys() else None


def _slots(kind: type) -> dict[str, Any]:
    return {
        name: member
        for base in reversed(kind.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def _content(value: Any) -> dict[str, Any]:
    content = dict(getattr(value, "__dict__", {}))
    for name, member in _slots(type(value)).items():
        try:
            content[name] = member.__get__(value)
        except AttributeError:  # not set
            continue
    return content


def make_named(parts: list[Any]) -> Any:
    """The value again. Raises: ClassMissing; ValueError and the like if the parts do not fit."""
    module, qualname, style, *rest = parts
    kind = _find(module, qualname)
    title = f"{module!s:.80}.{qualname!s:.80}"
    if kind is None:
        raise ClassMissing(
            f"the state holds an item of the class {title}, which is not there: import the module that defines it "
            "before you load the state; if it has been renamed or moved, let the old name stand for it"
        )
    if _style(kind) != style:
        raise ClassMissing(f"the state holds an item of {title} as a {style!s:.20}, which that class is not (any more)")
    if style == "enum":
        (name,) = rest
        member = _members(kind).get(name)
        if member is None:
            raise ClassMissing(
                f"the state holds the member {name!r:.80} of the enum {title}, which has none of that name"
            )
        return member
    if style == "tuple":
        names, *items = rest
        _check_named_fields(title, names, list(_fields_of(kind) or ()))
        if len(items) != len(names):
            raise ValueError(f"{len(items)} items for the fields {names!r:.80}")
        return tuple.__new__(kind, items)
    (content,) = rest
    if type(content) is not dict or not all(type(name) is str for name in content):
        raise TypeError("the content of a dataclass is no dict of names")
    names = [field.name for field in dataclasses.fields(kind)]
    _check_named_fields(title, [name for name in names if name in content], names)
    return _filled(kind, content)


def _filled(kind: type, content: dict[str, Any]) -> Any:
    value: Any = object.__new__(kind)
    slots = _slots(kind)
    for name in content.keys() & slots.keys():
        slots[name].__set__(value, content[name])
    rest = {name: item for name, item in content.items() if name not in slots}
    if rest:
        value.__dict__.update(rest)
    return value


def _check_named_fields(title: str, saved: Any, ours: list[str]) -> None:
    if saved != ours:
        raise ClassMissing(
            f"the state holds an item of {title} with the fields {saved!r:.120}; the class here has {ours}"
        )
