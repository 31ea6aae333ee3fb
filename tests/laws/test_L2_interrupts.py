"""L2 after Ctrl-C at any instruction: the state is true, and the user's global random states are the user's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.interrupts import Alarm, Interrupt, Interrupter, Late, before_first
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper

WARM, MORE = 2, 3  # items before the interrupt may come, and meanwhile


pace = {"s": 0.0}  # what an item takes besides


def noisy(item: Any) -> tuple[Any, ...]:
    if pace["s"]:
        time.sleep(pace["s"])
    return item, random.gauss(0, 1), float(np.random.randn()), float(torch.rand(()))


def parts(item: int) -> Any:
    for part in range(2):
        yield noisy((item, part))


def odd_or_late(item: int) -> bool:
    return item % 2 == 1 or item > 6


GRAPHS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: IterableWrapper(range(9)).shuffle(buffer_size=3).sharding_filter().map(noisy),
    "late": lambda: SequenceWrapper(list("abcdefghij")).shuffle().shuffle(buffer_size=3).sharding_filter().map(noisy),
    "parts": lambda: IterableWrapper(range(5)).sharding_filter().flatmap(parts),
    "uneven": lambda: IterableWrapper(range(9)).sharding_filter().filter(odd_or_late).map(noisy),
    "dispatched": lambda: IterableWrapper(range(9)).map(noisy).sharding_round_robin_dispatch().map(noisy),
}


def outside() -> list[Any]:
    """The process's own global random states."""
    _, words, *rest = np.random.get_state(legacy=True)  # type: ignore[misc]
    return [random.getstate(), words.tolist(), rest, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_L2_an_interrupt_at_any_instruction(name: str, num_shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of quick items, several are made ahead of the loop, perhaps all before the interrupt may come: so every other
    time they are slow, and each is made when it is asked for."""
    graph = GRAPHS[name]()
    first, _ = oracle(graph, num_shards)
    random.gauss(0, 1), np.random.randn()  # so that one number of a pair waits
    before = outside()
    step = 13 if num_shards == 1 else 7  # odd: every other number is
    number, beyond = before_first(step), False
    while not (beyond and pace["s"]):
        number += step
        monkeypatch.setitem(pace, "s", 6e-4 if number % 2 else 0.0)
        beyond = False
        got: list[Any] = []
        with make_loader(graph, make_service(None, num_shards, every=2)) as loader:
            stream = iter(loader)
            got.extend(islice(stream, WARM))
            interrupter = Interrupter(number)
            try:
                for _ in range(MORE):
                    with interrupter:
                        item = next(stream)
                    got.append(item)
                beyond = True
            except Interrupt:
                pass
            assert outside() == before, interrupter.hit
            state = loader.state_dict()
            delivered = state["delivered"]
            assert delivered == len(got), interrupter.hit
            loader.load_state_dict(state)
            assert list(map(repr, loader)) == first[delivered:], interrupter.hit
        assert list(map(repr, got)) == first[: len(got)]
        assert outside() == before, interrupter.hit
    assert number > 100


@pytest.mark.parametrize("where", ["begin", "end"])
def test_L1_an_interrupt_while_an_epoch_begins_or_ends_leaves_the_users_random_states(where: str) -> None:
    graph = GRAPHS["dispatched"]()
    random.gauss(0, 1), np.random.randn()  # so that one number of a pair waits
    before = outside()
    number, beyond = 0, False
    while not beyond:
        number += 1
        with make_loader(graph, make_service(None, 2)) as loader:
            interrupter = Interrupter(number, ("torchpipe.randomness.global_random", "torchpipe.execution.reading"))
            try:
                if where == "end":
                    next(iter(loader))
                with interrupter:
                    next(iter(loader)) if where == "begin" else loader.shutdown()
                beyond = True
            except Interrupt:
                pass
            assert outside() == before, interrupter.hit
        assert outside() == before, interrupter.hit
    assert number > 20


@pytest.mark.parametrize("kind", [Interrupt, Alarm, Late])
@pytest.mark.parametrize("name", ["shuffle", "dispatched"])
def test_L2_an_interrupt_while_reading_from_workers(name: str, kind: type[BaseException]) -> None:
    """A message may have been read in part: no worker is used again, and the same loader goes on exactly."""
    graph = GRAPHS[name]()
    first, _ = oracle(graph, 2)
    struck = set[str]()
    with make_loader(graph, make_service(2, 2, every=2)) as loader:
        begin = loader.state_dict()
        # How many instructions there are depends on how the items come
        for number in range(before_first(23) + 23, 500, 23):
            loader.load_state_dict(begin)
            got: list[Any] = []
            stream = iter(loader)
            interrupter = Interrupter(number, ("reading_services", "torchpipe.execution.merge"), kind)
            try:
                for _ in range(4):
                    with interrupter:
                        item = next(stream)
                    got.append(item)
                if interrupter.hit is not None:  # as a chunk was received: raised in the place of its items
                    for item in stream:
                        got.append(item)
                    pytest.fail(f"swallowed: {interrupter.hit}")
            except kind:
                struck.add(str(interrupter.hit))
            state = loader.state_dict()
            delivered = state["delivered"]
            assert delivered == len(got), interrupter.hit
            loader.load_state_dict(state)
            assert list(map(repr, loader)) == first[delivered:], interrupter.hit
            assert list(map(repr, got)) == first[: len(got)]
    assert len(struck) > 5
