"""What makes workers large is told where it is pickled, or about to be forked, by the name that the user has for it."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from reading_services.images import image_of
from reading_services.processes.graph_image import GraphImage
from torchpipe import shared_list
from torchpipe.errors import LargeGraphWarning
from torchpipe.iter import IterableWrapper
from torchpipe.node.traits import walk

NAMES = [f"{number:0110d}" for number in range(1_000_000)]  # 110 MB


class Looked:
    """Up: a function that holds data, itself, and what cannot be looked at."""

    def __init__(self, names: Any) -> None:
        self.splits = {"train": names, ("odd",): [self]}
        self.odd = Odd()

    def __call__(self, number: int) -> Any:
        return self.splits["train"][number]


class Odd:
    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise RuntimeError("not this one")
        return super().__getattribute__(name)


def held_by_a_function(names: Any) -> Any:
    return IterableWrapper([1]).map(Looked(names))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (GraphImage.of, "1[0-9.]+ MB are sent to a worker process, to each a copy of its own: most of it may be {}"),
        (GraphImage.inherited, "each forked worker comes to have a copy of {}, since"),
    ],
)
def test_L7_a_large_graph_is_told(make: Callable[..., Any], says: str) -> None:
    for graph_of, path in (
        (held_by_a_function, r"`fn\.splits\['train'\]` of Mapper\(Looked\), a list of 1,000,000 items"),
        (
            lambda names: IterableWrapper(names).sharding_filter(),
            "`iterable` of IterableWrapper, a list of 1,000,000 items",
        ),
    ):
        graph = graph_of(NAMES)
        with pytest.warns(LargeGraphWarning, match=f"^{says.format(path)}.*torchpipe.shared_list"):
            image_of(make, walk(graph), (graph,), to="a worker process")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            graph = graph_of(shared_list(NAMES[:10]))
            image_of(make, walk(graph), (graph,), to="a worker process")


@pytest.mark.parametrize("kind", [dict, set])
def test_L7_the_advice_for_what_is_looked_up_by_key_works(kind: Any) -> None:
    keys = kind.fromkeys(NAMES) if kind is dict else set(NAMES)
    graph = held_by_a_function(keys)
    with pytest.warns(LargeGraphWarning, match="A torchpipe.shared_list of its sorted keys, in which bisect finds"):
        image_of(GraphImage.inherited, walk(graph), (graph,), to="a worker process")
    found = shared_list(sorted(NAMES[:1000:-1][-1000:]))
    assert found[bisect.bisect_left(found, NAMES[1500])] == NAMES[1500]
