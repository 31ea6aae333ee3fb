"""A dispatched item that cannot be sent to a worker: an error in its place, and all before it arrives."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.laws.executors import make_loader, make_service
from torchpipe.errors import NotSerializableError
from torchpipe.iter import IterableWrapper


def with_a_lock(item: int) -> Any:
    return threading.Lock() if item == 13 else item


def test_an_unpicklable_dispatched_item_is_an_error_in_its_place() -> None:
    graph = IterableWrapper(range(40)).map(with_a_lock).sharding_round_robin_dispatch()
    got = []
    with make_loader(graph, make_service(2, 2)) as loader:
        with pytest.raises(
            NotSerializableError,
            match=r"(?s)type lock cannot be sent from the dispatcher to a worker.*Turn it into plain data",
        ):
            for item in loader:
                got.append(item)
        assert got == list(range(13))
        assert loader.state_dict()["delivered"] == 13
