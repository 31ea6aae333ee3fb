"""Asks the user's code twice for one thing, under the same random states: does it count, remember, or read the clock?

Runs in the audited process.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from torchpipe.iter import IterableWrapper
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.node.datapipe import IterDataPipe, iterate
from torchpipe.node.traits import inputs_of, node_name, walk, with_inputs
from torchpipe.testing.compare import digest_of

__all__ = ["probe"]

_PROBED = 3
_CAUSES = (
    "it counts or remembers its calls, changes in place what it keeps, or draws from a clock or a generator of its own"
)


def probe(loader: Any) -> str:
    """The fault of the first of the user's objects that gives two different answers, as text; empty if there is none.

    Asked are a map-style dataset, for its first samples, and each function of a torchpipe graph, for its first item.
    """
    found = _of_graph(loader.datapipe) if isinstance(loader, DataLoader2) else _of_dataset(loader)
    return next(found, "")


def _of_dataset(loader: Any) -> Iterator[str]:
    dataset: Any = getattr(loader, "dataset", None)
    if not hasattr(type(dataset), "__getitem__") or not hasattr(type(dataset), "__len__"):
        return
    for index in range(min(_PROBED, len(dataset))):
        name = f"{type(dataset).__qualname__}[{index}]"
        first = _seeded(lambda: dataset[index])  # noqa: B023
        before = digest_of(first)
        second = digest_of(_seeded(lambda: dataset[index]))  # noqa: B023
        if digest_of(first) != before:
            yield f"{name} gives an object that it changes when it is asked again"
        elif second != before:
            yield f"{name}, asked twice under the same random states, gives two different samples: {_CAUSES}"


def _of_graph(root: Any) -> Iterator[str]:
    for node in walk(root):
        sources: list[Any] = [source for source in inputs_of(node) if isinstance(source, IterDataPipe)]
        if not callable(getattr(node, "fn", None)) or len(sources) != 1:
            continue
        for item in _seeded(lambda: list(islice(iterate(sources[0]), 1))):  # noqa: B023
            first, second = (_seeded(lambda: _through(node, item)) for _ in range(2))  # noqa: B023
            if first != second:
                yield f"{node_name(node)}, asked twice for one item, gives two different results: {_CAUSES}"


def _through(node: Any, item: Any) -> list[str]:
    """Digests of what ``node`` makes of a copy of ``item``."""
    source = IterableWrapper([copy.deepcopy(item)], deepcopy=False)
    return [digest_of(result) for result in iterate(with_inputs(node, lambda _: source))]


def _seeded(function: Callable[[], Any]) -> Any:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return function()
