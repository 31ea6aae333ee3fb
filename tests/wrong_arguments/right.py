"""Right arguments: what a form needs, so that only one argument of a call is wrong."""

from __future__ import annotations

import inspect
from typing import Any

from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.functional import registered

__all__ = ["later", "needed", "others_of", "two"]


async def later(items: Any) -> Any:
    return items


def two(first: Any, second: Any) -> Any:
    return first, second


RIGHT: dict[str, Any] = {
    "async_fn": later,
    "batch_size": 1,
    "boundaries": [3],
    "classifier_fn": int,
    "count": 1,
    "device": "cpu",
    "filter_fn": bool,
    "fn": str,
    "group_key_fn": str,
    "hash_dict": {},
    "index": 0,
    "indices": 0,
    "key_fn": str,
    "length": 8,
    "map_datapipe": SequenceWrapper([1]),
    "max_cost": 3,
    "max_token_count": 5,
    "num_instances": 2,
    "policy": "skip",
    "ref_datapipe": IterableWrapper([1]),
    "seed": 1,
    "sequence_length": 2,
    "times": 2,
    "weights": [1],
    "window": 2,
}
MORE: dict[str, dict[str, Any]] = {
    "random_map": {"fn": two},
    "random_split": {"weights": {"a": 1}},
    "readlines": {"decode": True},  # else it looks no encoding up
}


def others_of(cls: type) -> list[inspect.Parameter]:
    """The parameters of a node besides its inputs."""
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    return [item for item in parameters if item.kind is not item.VAR_POSITIONAL]


def needed(kind: str, form: str) -> dict[str, Any]:
    """Right values of what this form cannot be called without."""
    parameters = [item for item in others_of(registered(kind)[form]) if item.kind is not item.VAR_KEYWORD]
    names = [item.name for item in parameters if item.default is item.empty]
    more = MORE.get(form, {})
    return {name: RIGHT[name] for name in names if name not in more} | more
