"""Loader states in files: found, shown and compared. Nothing that is in a file is run.

A file is read by ``torch.load(weights_only=True)``, or as JSON, a folder of torch.distributed.checkpoint as
is said below, and a state by its own codec, without pickles.

The values other than tensors in a torch.distributed.checkpoint, without process groups. Nothing of it is run.

A folder has a pickle, ``.metadata``, which says where in its files each value lies, and a value is what ``torch.save``
wrote. The pickle is read with an unpickler for which every class and function is an empty stand-in, and the values by
``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import io
import json
import pickle
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from torchpipe.errors import StateError
from torchpipe.state import Cursor, decode, from_text, inspect

__all__ = ["State", "as_data", "differences", "read_states", "shown"]

_METADATA = ".metadata"


class _Inert:
    """Stands for an object of any class: keeps the attributes that the pickle gives it, and is never called upon."""

    def __new__(cls, *_: Any, **__: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update((str(name), value) for name, value in state.items())


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, _module: str, _name: str) -> type[_Inert]:
        return _Inert


def _read_folder(folder: Path) -> dict[str, Any]:
    """The values in ``folder`` that are no tensors, nested as they were saved; of what is not data alone, None.

    Raises: StateError for a folder that is no such checkpoint, or damaged.
    """
    path = folder / _METADATA
    if not path.is_file():
        raise StateError(
            f"{folder} is a folder without {_METADATA}: name a file, or a folder of torch.distributed.checkpoint"
        )
    try:
        with path.open("rb") as opened:
            found: Any = vars(_InertUnpickler(opened).load())
        paths = found.get("planner_data") or {}
        places = [(vars(index), vars(place)) for index, place in found["storage_data"].items()]
        values: dict[str, Any] = {}
        for index, place in places:
            if index.get("offset") is None:  # a tensor has one
                _put(values, paths.get(index["fqn"]) or (index["fqn"],), _value(folder, place))
    except StateError:
        raise
    except Exception as error:  # of a damaged pickle, any
        raise StateError(
            f"{path} is damaged, or of another version of torch ({type(error).__name__}: {error}): load the checkpoint "
            "with torch.distributed.checkpoint, and save the loader's state with torch.save"
        ) from None
    return values


def _value(folder: Path, place: dict[str, Any]) -> Any:
    if place.get("transform_descriptors"):
        raise StateError(
            f"{folder} is compressed: load it with torch.distributed.checkpoint, and save the loader's state with "
            "torch.save"
        )
    file = (folder / str(place["relative_path"])).resolve()
    if file.parent != folder.resolve():
        raise StateError(f"{folder} is damaged: it names a file outside, {file}")
    with file.open("rb") as opened:
        opened.seek(place["offset"])
        data = opened.read(place["length"])
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # other objects in it are none of ours
        return None


def _put(values: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Lists that were flattened are dicts by index here, which does for finding states."""
    *outer, last = path
    at = values
    for name in outer:
        at = at.setdefault(name, {})
    at[last] = value


State: TypeAlias = "Mapping[str, Any] | bytes"

_SNAPSHOT = b"TPS"  # what encoded data begins with
_MOST_DEEP = 40
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxother, _REPR.maxstring = 4, 72, 72


def read_states(file: str) -> dict[str, State]:
    """The loader states in ``file``, or in a folder that torch.distributed.checkpoint wrote, by where they stand in it.

    Raises: StateError if there is none, or the file is not data alone; OSError if it cannot be read.
    """
    path = Path(file)
    found = dict(_find(_read_folder(path) if path.is_dir() else _read(path), ""))
    if not found:
        raise StateError(
            f"no state of a torchpipe loader in {file}: it should hold what loader.state_dict() returned, anywhere in "
            "its dicts and lists"
        )
    return found


def _read(path: Path) -> Any:
    with path.open("rb") as opened:
        head = opened.read(64)
    if head.startswith(_SNAPSHOT):
        return path.read_bytes()
    if head.lstrip()[:1] in (b"{", b"["):
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise StateError(f"{path} begins like JSON, and is none: {error}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch thinks of a file that is no checkpoint
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateError(
            f"{path} cannot be read as data ({type(error).__name__}): it is damaged, no checkpoint, or holds "
            "objects that only running code from it could rebuild, which is not done here: save the loader's "
            "state_dict() in a file of its own"
        ) from None


def _find(value: Any, where: str, depth: int = 0) -> Iterator[tuple[str, State]]:
    if isinstance(value, bytes):
        if value.startswith(_SNAPSHOT):
            yield from _in_snapshot(value, where or "snapshot", depth)
    elif isinstance(value, Mapping):
        if {"version", "payload"} <= value.keys() and isinstance(value["payload"], bytes | str):
            yield where or "state", value
            return
        for key, item in value.items():
            if depth < _MOST_DEEP:
                yield from _find(item, f"{where}.{key}" if where else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if depth < _MOST_DEEP:
                yield from _find(item, f"{where}[{index}]", depth + 1)


def _in_snapshot(data: bytes, where: str, depth: int) -> Iterator[tuple[str, State]]:
    """A whole state in it, as a checkpoint of all ranks has one for each rank, or shard; else itself."""
    value = decode(data, keep_opaque=True) if depth < _MOST_DEEP else None
    parts = [value, value.get("state")] if isinstance(value, Mapping) else []
    whole = next((part for part in parts if isinstance(part, Mapping) and {"version", "payload"} <= part.keys()), None)
    yield where, data if whole is None else whole


def shown(where: str, state: State) -> str:
    """``state`` as text."""
    return f"{where}\n" + "\n".join(f"  {line}" for line in inspect(state).splitlines())


def as_data(state: State) -> Any:
    """The content of ``state`` as JSON can hold it: numbers and texts as they are, and other things described."""
    return _plain(state, 0)


def _plain(value: Any, depth: int) -> Any:
    if depth > _MOST_DEEP:
        return "..."
    if value is None or isinstance(value, bool | int | str):
        return value if not isinstance(value, int) or value.bit_length() < 64 else _short(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, Cursor):
        snapshot = None if value.snapshot is None else _plain(decode(value.snapshot, keep_opaque=True), depth + 1)
        return {"snapshot": snapshot, "skip": value.skip}
    if isinstance(value, Mapping):
        return {str(key): _plain(_opened(key, item), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, bytes):
        opened = value.startswith(_SNAPSHOT)
        return _plain(decode(value, keep_opaque=True), depth + 1) if opened else f"{len(value)} bytes"
    return _short(value)


def _opened(key: Any, value: Any) -> Any:
    """The bytes of a payload that is text; anything else is itself."""
    return from_text(value) if key == "payload" and isinstance(value, str) else value


def _short(value: Any) -> str:
    try:
        return _REPR.repr(value)
    except Exception as error:  # an integer of thousands of digits, say
        return f"<{type(value).__name__}, {type(error).__name__}>"


def differences(first: Mapping[str, State], second: Mapping[str, State]) -> list[dict[str, str]]:
    """Each position where two files' states differ. ``-`` stands for what is missing."""
    if len(first) == len(second) == 1:  # wherever they stand
        second = dict(zip(first, second.values()))
    ours, theirs = (dict(_flat(as_data(states), "")) for states in (first, second))
    return [
        {"where": where, "first": ours.get(where, "-"), "second": theirs.get(where, "-")}
        for where in dict.fromkeys([*ours, *theirs])
        if ours.get(where) != theirs.get(where)
    ]


def _flat(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _flat(item, f"{where}[{index}]")
    else:
        yield where, json.dumps(value)
