"""The values other than tensors in a torch.distributed.checkpoint, without process groups. Nothing of it is run.

A folder has a pickle, ``.metadata``, which says where in its files each value lies, and a value is what ``torch.save``
wrote. The pickle is read with an unpickler for which every class and function is an empty stand-in, and the values by
``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from torchpipe.errors import StateError

__all__ = ["read_folder"]

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


def read_folder(folder: Path) -> dict[str, Any]:
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
