"""Is it the same data? What identifies the data that a loader reads, in a state and among ranks. Runs in every process.

An :class:`Identity` is plain text by the names of parts, such as ``dataset.indices``. Lists, tuples, dicts, shared
lists, arrays and tensors count by their length and the items at fixed positions, the first and the last among them;
torch's own datasets by what they hold (``Subset.indices``, ``ConcatDataset.datasets``, ``TensorDataset.tensors``).
Every other object counts by its class, its length and those of its public attributes that are texts, paths or datasets:
its numbers and containers may change while it is used (an epoch, a cache). One with a ``state_dict`` counts by its
class, and one whose class has ``identity()`` by what that gives. Data may lie elsewhere where a run goes on: paths and
URLs count by their names, below the folder that those of one list have in common, and folders by the last parts that
tell those of one attribute's name apart.

No sample of a dataset is read. Of a user's objects no method is called but ``identity`` and ``__len__``. What cannot be
looked at counts by its class. The number of items that are looked at is bounded, whatever the size of the data.

One value may differ between ranks (a device, a rank, a folder); what has as many entries as the dataset may not.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import hashlib
import itertools
import os
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from torchpipe.errors import StateMismatchError
from torchpipe.node.describe import describe, describe_data, is_address, names_below, of_datasets
from torchpipe.node.fingerprint import altering
from torchpipe.node.iterator import is_stateful
from torchpipe.node.traits import DataPipe, callable_name, is_node, traits_of
from torchpipe.state.flat import damaged, shown
from torchpipe.state.shared_list import SharedList
from torchpipe.values.large_data import spread

__all__ = ["WAY_ON", "Identity", "identity_of_data", "identity_of_graph"]

WAY_ON = "To go on with these data all the same: load_state_dict(state, allow_other_data=True)"

_SAMPLED, _DEEP, _WITHIN = 256, 64, 16  # items of a container, of one of containers and objects, of one in an item
_ALL = 1024  # items of all containers together
_PARTS = 32  # datasets or containers that one container holds
_DEPTH = 8
_LONG = 500  # characters, at either end of a text
_MARK = 4  # hexadecimal digits that stand for an item
_WALKED = 1 << 16  # a dict has no positions: of a longer one the first items count

_NUMBERS = frozenset({type(None), bool, int, float, complex})
_FLAT = _NUMBERS | {str}
_VALUES = (
    np.generic,
    enum.Enum,
    os.PathLike,
    torch.dtype,
    torch.device,
    np.dtype,
    range,
    slice,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
)
_LISTS = (list, tuple, SharedList)

Parts: TypeAlias = "dict[str, str | list[Any]]"
"""What each part is, or of a container what, its length, a digest of the items that count, and a mark of each."""
Address: TypeAlias = "tuple[str, Parts, list[Any], list[str]]"
"""Of which part, where that stands, what holds the texts, with its length, if anything, and the texts."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """``common``: what all ranks have alike; ``own``: what each may have of its own. By the names of parts."""

    common: Parts = field(default_factory=dict)
    own: Parts = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return {"common": self.common, "own": self.own}

    @property
    def digest(self) -> str:
        """The digest of the part that all ranks have alike."""
        return hashlib.sha256(repr(self.common).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def difference(self, saved: Any, *, of_this_rank: bool = True) -> str | None:
        """The first difference from ``saved``, which :meth:`to_plain` gave; None without one, or if nothing was saved.

        Raises: StateError for what it cannot have given.
        """
        if saved is None:  # of a former version
            return None
        if not isinstance(saved, dict) or not all(_are_parts(saved.get(name)) for name in ("common", "own")):
            raise damaged(f"what identifies its data is {shown(saved)}")
        for name in ("common", "own") if of_this_rank else ("common",):
            if saved[name] != getattr(self, name):
                return _first_difference(saved[name], getattr(self, name))
        return None

    def check(self, saved: Any, *, of_this_rank: bool = True) -> None:
        """Raises: StateMismatchError where :meth:`difference` finds one."""
        where = self.difference(saved, of_this_rank=of_this_rank)
        if where is not None:
            raise StateMismatchError(
                f"the state belongs to other data: {where}. A resume would repeat samples and lose others: make the "
                "data as they were (the same order, the same split: give random_split a generator with a fixed seed), "
                f"or begin a new run. {WAY_ON}"
            )


def identity_of_data(data: Any) -> Identity:
    """That of ``data``, which may be of any class: a loader's dataset."""
    return identity_of_graph(data) if is_node(data) else _Looks().all({"dataset": data})


def identity_of_graph(root: DataPipe, among: Iterable[DataPipe] | None = None) -> Identity:
    """That of the data that the nodes of a graph hold, or some ``among`` them, and of the files that they read."""
    ids = None if among is None else set(map(id, among))
    data: dict[str, Any] = {}
    folders: dict[str, str] = {}
    for number, node in enumerate(altering(root)):
        if ids is not None and id(node) not in ids:
            continue
        name, traits = f"{type(node).__name__}[{number}]", traits_of(node)
        for attribute in traits.fingerprint_data:
            if not is_node(vars(node).get(attribute)):
                data[f"{name}.{attribute}"] = vars(node).get(attribute)
        paths = vars(node).get("paths")
        if "paths" in traits.fingerprint_ignores and type(paths) is list and all(type(path) is str for path in paths):
            folders[f"{name}.paths"] = _folder(paths) if paths else ""
    found = _Looks().all(data)
    found.common.update(zip(folders, _last(list(folders.values()))))
    return found


class _Looks:
    """One look at data: ``left`` is how many items may still be looked at."""

    def __init__(self) -> None:
        self.left = _ALL
        self.found = Identity()
        self.around: list[int] = []
        self.addresses: list[Address] = []

    def all(self, parts: Mapping[str, Any]) -> Identity:
        for name, value in parts.items():
            self.look(name, value, None)
        self._name_addresses()
        return self.found

    def look(self, name: str, value: Any, length: int | None) -> None:
        """Note ``value``, an attribute of a dataset of ``length``; None: it is data itself."""
        if id(value) in self.around or len(self.around) > _DEPTH:
            return
        self.around.append(id(value))
        try:
            self._look(name, value, length)
        except Exception:  # objects of the user's may fail in any way
            self.found.common[name] = callable_name(type(value))
        finally:
            self.around.pop()

    def _look(self, name: str, value: Any, length: int | None) -> None:
        kind = type(value)
        if kind is str or isinstance(value, os.PathLike):
            self._note(name, [os.fsdecode(value)], self.found.own, [])
        elif kind in _NUMBERS or kind is bytes or isinstance(value, _VALUES):
            self.found.own[name] = _in_words(value)
        elif kind in (*_LISTS, dict) or isinstance(value, np.ndarray | torch.Tensor):
            self._container(name, value, length)
        elif of_datasets(value):
            self.found.common[name] = describe_data(value)
        elif length is None or isinstance(value, Dataset) or _is_like_a_dataset(value):
            self._object(name, value)

    def _object(self, name: str, value: Any) -> None:
        kind = type(value)
        said = getattr(kind, "identity", None)
        length = None if isinstance(value, IterableDataset) else _length(value)
        about = callable_name(kind) + ("" if length is None else f"[{length}]")
        self.found.common[name] = about
        if callable(said):
            self.found.common[name] = f"{about} {_in_words(value.identity())}"
        elif not is_stateful(value) and not callable(value):
            whole = kind.__module__.startswith("torch.")
            for attribute, held in sorted(_public(value).items()):
                if not whole and not isinstance(held, str | os.PathLike | Dataset):
                    continue
                self.look(f"{name}.{attribute}", held, -1 if length is None else length)

    def _container(self, name: str, value: Any, length: int | None) -> None:
        size = value.shape[0] if isinstance(value, np.ndarray | torch.Tensor) and value.ndim else len(value)
        into = self.found.common if length in (None, size) else self.found.own
        if type(value) in (list, tuple, dict) and size <= _PARTS and length not in (None, size):  # else it has samples
            pairs = list(value.items()) if type(value) is dict else list(enumerate(value))
            if pairs and all(_is_part(item) for _, item in pairs):
                self.found.common[name] = f"{callable_name(type(value))}[{size}]"
                for key, item in pairs:
                    self.look(f"{name}[{_in_words(key)}]", item, None)
                return
        first = next(iter(value.values()), None) if type(value) is dict else value[0] if size else None
        flat = type(first) in _FLAT or isinstance(value, np.ndarray | torch.Tensor)
        most = max(2, min(_SAMPLED if flat else _DEEP, self.left))
        self.left -= min(size, most)
        if isinstance(value, np.ndarray | torch.Tensor):
            into[name] = _array(value, size, most)
        elif type(value) is dict:
            keys = list(value) if size <= _WALKED else list(itertools.islice(value, most))
            chosen = [keys[at] for at in spread(len(keys), most)]
            into[name] = _sampled("dict", size, [f"{_in_words(key)}: {_in_words(value[key])}" for key in chosen])
        else:
            items = [value[at] for at in spread(size, most)]
            what = "tuple" if type(value) is tuple else "list"
            if items and all(type(item) is str for item in items):
                self._note(name, items, into, [what, size])
            else:
                into[name] = _sampled(what, size, map(_in_words, items))

    def _note(self, name: str, texts: list[str], into: Parts, what: list[Any]) -> None:
        into[name] = ""  # its place
        if all(map(is_address, texts)):
            self.addresses.append((name, into, what, texts))
        else:
            into[name] = _sampled(what[0], what[1], map(_in_words, texts)) if what else _in_words(texts[0])

    def _name_addresses(self) -> None:
        """Enter the paths, of folders the parts that tell apart those that attributes of one name have."""
        groups: dict[str, list[Address]] = {}
        for entry in self.addresses:
            groups.setdefault(entry[0].rpartition(".")[2], []).append(entry)
        for entries in groups.values():
            lists = [entry for entry in entries if entry[2]]
            for (name, into, (kind, size), texts), folder in zip(lists, _last([_folder(entry[3]) for entry in lists])):
                into[name] = _sampled(
                    f"{kind} {folder}".strip(), size, map(_long, names_below(list(map(_plain, texts))))
                )
            ones = [entry for entry in entries if not entry[2]]
            for (name, into, _, _), last in zip(ones, _last([_plain(entry[3][0]) for entry in ones], 1)):
                into[name] = _long(last)


def _last(paths: Sequence[str], least: int = 0) -> list[str]:
    """So many last parts of each, the same number of all and ``least``, that those that differ still do."""
    parts = [path.rstrip("/").split("/") for path in paths]
    for count in range(least, max(map(len, parts), default=0) + 1):
        last = ["/".join(part[max(0, len(part) - count) :]) for part in parts]
        if len(set(last)) == len(set(map(tuple, parts))):
            break
    return last if parts else []


def _folder(paths: Sequence[str]) -> str:
    """That all lie in."""
    plain = list(map(_plain, paths))
    below = names_below(plain)
    return plain[0][: len(plain[0]) - len(below[0])]


def _plain(address: str) -> str:
    return (address.partition("?")[0] if "://" in address else address).rstrip("/")


def _is_part(value: Any) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor | Dataset) or type(value) in _LISTS or _is_like_a_dataset(value)


def _is_like_a_dataset(value: Any) -> bool:
    """An object of a class with samples; modules and functions are none."""
    kind = type(value)
    has_samples = hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")
    return has_samples and not callable(value) and not is_node(value) and isinstance(_vars(value), dict)


def _vars(value: Any) -> Any:
    return getattr(value, "__dict__", None)


def _public(value: Any) -> dict[str, Any]:
    held = _vars(value)
    return {name: held[name] for name in held if not name.startswith("_")} if isinstance(held, dict) else {}


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # it has none, or fails in any way
        return None


def _sampled(what: str, size: int, texts: Iterable[str | bytes]) -> list[Any]:
    """``texts`` stand for the items that count."""
    data = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
    whole = hashlib.sha256(b"\0".join(data)).hexdigest()[:12]
    return [what, size, whole, "".join([f"{zlib.crc32(item) & 0xFFFF:04x}" for item in data])]


def _array(value: Any, size: int, most: int) -> str | list[Any]:
    if isinstance(value, np.memmap) and value.filename is not None:
        return f"{_about(value)} {_in_words(os.fsdecode(value.filename))} at {value.offset}"
    return _sampled(_about(value), size, _rows(value, most))


def _in_words(value: Any, depth: int = 0) -> str:
    """An item, or a value: short. Objects count by their class and public values."""
    kind = type(value)
    if kind in _NUMBERS:
        return repr(value)
    if kind is str:
        return _long(".../" + _plain(value).rpartition("/")[2] if is_address(value) else value)
    if kind in (bytes, bytearray):
        return _long(repr(value[: _LONG * 2]) + f"{len(value)}{value[-_LONG:]!r}")
    if isinstance(value, _VALUES):
        return describe(value)
    if depth > 2:
        return callable_name(kind)
    if kind in _LISTS or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        told = [_in_words(value[at], depth + 1) for at in spread(len(value), _WITHIN)]
        return f"{'tuple' if kind is tuple else 'list'}[{len(value)}]({', '.join(told)})"
    if kind is dict:
        held = itertools.islice(value.items(), _WITHIN)
        return (
            f"[{len(value)}]{{{', '.join([f'{_in_words(key)}: {_in_words(item, depth + 1)}' for key, item in held])}}}"
        )
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{_about(value)} {zlib.crc32(b''.join(_rows(value, _WITHIN))):08x}"
    if callable(value) or is_stateful(value):
        return callable_name(kind)
    public = sorted(_public(value).items())[:_WITHIN]
    return f"{callable_name(kind)}({', '.join([f'{name}={_in_words(item, depth + 1)}' for name, item in public])})"


def _long(text: str) -> str:
    return text if len(text) <= 2 * _LONG else f"{text[:_LONG]}...{len(text)}...{text[-_LONG:]}"


def _about(value: Any) -> str:
    dtype = value.dtype.descr if getattr(value.dtype, "names", None) else value.dtype
    return f"{callable_name(type(value))}({dtype}, {tuple(value.shape)})"


def _rows(value: Any, most: int) -> list[bytes]:
    """Rows of an array or tensor at fixed positions, of each some numbers at fixed places."""
    if isinstance(value, torch.Tensor):
        dense = value.layout is torch.strided and not value.is_quantized and value.device.type != "meta"
        if not dense or type(value) is not torch.Tensor:  # weights among them
            return []
        value = value.detach()
    value = value.reshape(1) if not value.ndim else value
    rows = spread(value.shape[0], most)
    places = spread(int(np.prod(value.shape[1:], dtype=np.int64)), _WITHIN)
    if not rows or not places:
        return []
    index: Any = [np.array(rows)[:, None]]
    if value.ndim > 1:
        index += np.unravel_index(np.array(places), value.shape[1:])
    if isinstance(value, torch.Tensor):
        index = [torch.from_numpy(np.ascontiguousarray(part)).to(value.device) for part in index]
        chosen = value[tuple(index)].resolve_conj().resolve_neg().cpu().contiguous()
        value = chosen.reshape(len(rows), -1).view(torch.uint8).numpy()
        return [row.tobytes() for row in value]
    value = value[tuple(index)]
    if value.dtype.hasobject:
        return [", ".join(map(_in_words, row)).encode("utf-8", "surrogatepass") for row in value.tolist()]
    return [row.tobytes() for row in value]


def _are_parts(value: Any) -> bool:
    return isinstance(value, dict) and all(type(part) is str or _is_sampled(part) for part in value.values())


def _is_sampled(part: Any) -> bool:
    return type(part) is list and [type(item) for item in part] == [str, int, str, str]


def _first_difference(saved: Parts, ours: Parts) -> str:
    """In words, between two that are not equal."""
    name = next((name for name in ours if saved.get(name) != ours[name]), None)
    if name is None:
        return f"{next(name for name in saved if name not in ours)!s:.200} was there then, and is not now"
    if name not in saved:
        return f"{name:.200} was not there then, and is now"
    theirs, mine = saved[name], ours[name]
    if isinstance(theirs, list) and isinstance(mine, list) and theirs[:2] == mine[:2]:
        marks = zip(_marks(theirs[3]), _marks(mine[3]))
        number = next((number for number, (one, other) in enumerate(marks) if one != other), None)
        if number is not None:
            at = spread(mine[1], len(mine[3]) // _MARK)[number]
            return f"{name:.200} is another from index {at} on, of {mine[1]}"
    return f"{name:.200} was {_shown(theirs)}, and is {_shown(mine)}"


def _marks(marks: str) -> list[str]:
    return [marks[at : at + _MARK] for at in range(0, len(marks), _MARK)]


def _shown(part: str | list[Any]) -> str:
    return f"{part:.100}" if isinstance(part, str) else f"{part[0]:.100}[{part[1]!s:.20}] ({part[2]:.12})"
