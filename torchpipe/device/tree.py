"""Find and replace the tensors in a batch, whatever it is nested in; everything else keeps its type and identity.

Runs in the feed thread.

What has changed parts is copied, and its constructor does not run; what cannot be copied is refused by its path. A part
that occurs several times is copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchpipe.device.parts import PLAIN, Part, changed_copy, children, parts_of

__all__ = ["children", "path_of", "replace_arrays", "replace_tensors", "tensors_in"]


class _Survey:
    """A map of a batch, each container looked into once. Holds the batch, and no cycle of its own."""

    def __init__(self, batch: Any, kind: type) -> None:
        self.leaves: dict[int, tuple[Any, str]] = {}  # by id: the leaf, and where it first occurs
        self.parts: dict[int, tuple[Any, list[Part]]] = {}  # by id: the container, which keeps its id, and its parts
        self.keys: list[str] = []  # where mappings have leaves in their keys
        self._kind = kind
        try:
            self._look(batch, "batch")
        except RecursionError:
            raise ValueError(
                "a batch is nested too deeply to be looked through for its tensors: put them into a flatter structure"
            ) from None

    def _look(self, value: Any, where: str) -> None:
        if isinstance(value, self._kind):
            self.leaves.setdefault(id(value), (value, where))
        elif type(value) not in PLAIN and id(value) not in self.parts:
            parts = list(parts_of(value))
            self.parts[id(value)] = value, parts
            for _, name, part in parts:
                if type(part) not in PLAIN:
                    self._look(part, where + name)
            if isinstance(value, Mapping):
                for key in value:
                    if type(key) not in PLAIN and _Survey(key, self._kind).leaves:
                        self.keys.append(where)


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """The tensors in ``batch``, subclasses included, in its order; one that occurs several times is listed once.

    Raises: ValueError if it is nested too deeply.
    """
    return [tensor for tensor, _ in _Survey(batch, torch.Tensor).leaves.values()]


def path_of(batch: Any, tensor: torch.Tensor) -> str:
    """The path at which ``tensor`` first occurs in ``batch``, as Python would write it: ``batch['image'][0]``."""
    return _Survey(batch, torch.Tensor).leaves.get(id(tensor), (None, ""))[1]


def replace_tensors(batch: Any, move: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """``batch`` with its tensors replaced by what one call of ``move`` makes of the list of them.

    The batch itself is not changed; parts of it that hold no tensor are used as they are. A tensor that occurs several
    times is moved once.

    Raises: ValueError if a part that holds tensors contains itself; TypeError, naming it, if one cannot be copied with
    other tensors in it, or has tensors for keys.
    """
    survey = _Survey(batch, torch.Tensor)
    if survey.keys:
        raise TypeError(
            f"{survey.keys[0]} has a tensor in a key, where none can be moved: make keys of plain values, such as "
            "tensor.item(), in a map() before"
        )
    tensors = [tensor for tensor, _ in survey.leaves.values()]
    if not tensors:
        return batch
    return _rebuild(batch, dict(zip(survey.leaves, move(tensors), strict=True)), survey)


def replace_arrays(batch: Any, convert: Callable[[np.ndarray[Any, Any]], torch.Tensor | None]) -> Any:
    """``batch`` with its numpy arrays replaced by what ``convert`` makes of each; None leaves it. One that occurs
    several times is converted once. Raises: as :func:`replace_tensors`."""
    survey = _Survey(batch, np.ndarray)
    made = {key: convert(array) for key, (array, _) in survey.leaves.items()}
    return _rebuild(batch, {key: tensor for key, tensor in made.items() if tensor is not None}, survey)


def _rebuild(batch: Any, new: dict[int, Any], survey: _Survey) -> Any:
    return _rebuilt(batch, "batch", new, survey.parts, {}) if new else batch


# Not nested in the function above: one that calls itself is a cycle, and would keep the tensors until it is collected.
def _rebuilt(
    value: Any, where: str, made: dict[int, Any], parts: dict[int, tuple[Any, list[Part]]], inside: dict[int, bool]
) -> Any:
    """``value`` with what ``made`` has in the place of its parts. ``inside`` says of the containers around it whether
    they have been found in themselves."""
    identity = id(value)
    if identity in made:
        return made[identity]
    if identity in inside:
        inside[identity] = True
        return value
    if type(value) in PLAIN or identity not in parts:
        return value
    inside[identity] = False
    new = [(key, _rebuilt(part, where + name, made, parts, inside)) for key, name, part in parts[identity][1]]
    in_itself = inside.pop(identity)
    if all(fresh is part for (_, fresh), (_, _, part) in zip(new, parts[identity][1])):
        made[identity] = value
        return value
    if in_itself:
        raise ValueError(
            f"{where}, of type {type(value).__name__}, contains itself and tensors: no copy can be made of it with "
            "other tensors. Take the reference to itself out in a map() before to_device()"
        )
    made[identity] = changed_copy(value, new, where)
    return made[identity]
