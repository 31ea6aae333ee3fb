"""Nodes that give another order in another loader, before ``random_split``."""

from __future__ import annotations

from typing import Any

import pytest

from torchpipe.errors import GraphError
from torchpipe.iter import IterableWrapper, RandomSplitter
from torchpipe.torchdata import SampleMultiplexer


@pytest.mark.parametrize(
    ("before", "name"),
    [
        (lambda source: source.shuffled_flatmap(lambda item: [item]), "ShuffledFlatMapper"),
        (lambda source: SampleMultiplexer({source: 1.0, source.map(str): 1.0}), "SampleMultiplexer"),
    ],
)
def test_what_gives_another_order_in_another_loader_is_refused_before_the_split(before: Any, name: str) -> None:
    with pytest.raises(GraphError, match=rf"cannot stand behind {name}.*(?s:.)*Split first and put it behind each"):
        RandomSplitter(before(IterableWrapper(range(10))), {"a": 1, "b": 1}, 0, total_length=10)
