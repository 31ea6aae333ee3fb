"""Each law once, in a second: two forked workers behind a dispatcher, or in a `DataLoader`. For ``make test-quick``."""

from __future__ import annotations

import os
import pickle
import random
import signal
from itertools import islice
from typing import Any

import pytest
import torch

from tests import leaks
from tests.data.datasets import Numbers
from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import text_of
from torchpipe import DataLoader
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper

pytestmark = pytest.mark.sample

SHARDS = 2


def draw(item: int) -> tuple[int, float]:
    return item, random.random()


def fail_at_20(item: int) -> int:
    if item == 20:
        raise LookupError("no such sample")
    return item


def graph(function: Any = draw) -> Any:
    source = IterableWrapper(range(30)).shuffle(buffer_size=8)
    return source.sharding_round_robin_dispatch().map(function).shuffle(buffer_size=3)


def state_after(count: int, workers: int | None) -> Any:
    with make_loader(graph(), make_service(workers, SHARDS)) as loader:
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        return loader.state_dict()


def rest_of(state: Any, workers: int | None) -> list[str]:
    with make_loader(graph(), make_service(workers, SHARDS), seed=6) as loader:  # the state has the seed
        loader.load_state_dict(state)
        return text_of(loader)


def test_L1_one_stream() -> None:
    expected = oracle(graph(), SHARDS)
    with make_loader(graph(), make_service(2, SHARDS)) as loader:
        assert [text_of(loader) for _ in range(2)] == expected
    assert expected[0] != expected[1]


def test_L2_exact_resume() -> None:
    expected = oracle(graph(), SHARDS)[0]
    assert rest_of(state_after(11, 2), 2) == expected[11:]


@pytest.mark.parametrize(("saved", "loaded"), [(2, None), (None, 2), (2, 1)])
def test_L3_portable_state(saved: int | None, loaded: int | None) -> None:
    expected = oracle(graph(), SHARDS)[0]
    assert rest_of(state_after(17, saved), loaded) == expected[17:]


def test_L4_recovery() -> None:
    expected = oracle(graph(), SHARDS, epochs=1)[0]
    with make_loader(graph(), make_service(2, SHARDS)) as loader:
        found = []
        for item in loader:
            found.append(repr(item))
            if len(found) in (4, 9):  # a worker or the dispatcher, each in turn
                os.kill(pids(loader)[-1 if len(found) == 4 else 0], signal.SIGKILL)
        assert found == expected


def test_L5_bounded() -> None:
    def size_after(count: int) -> int:
        endless = IterableWrapper(range(1000)).cycle().sharding_filter().shuffle(buffer_size=5)
        with make_loader(endless, make_service(2, SHARDS)) as loader:
            for _ in islice(loader, count):
                pass
            return len(loader.state_dict()["payload"])

    assert size_after(2000) < 1.2 * size_after(100)


def test_L6_nothing_left_behind() -> None:
    before = leaks.Footprint.take()
    loader = make_loader(graph(), make_service(2, SHARDS))
    next(iter(loader))
    loader.shutdown()
    assert leaks.wait_nothing_left(before) == []


def test_L7_never_silent() -> None:
    numbers = IterableWrapper(range(30)).sharding_filter().map(fail_at_20)
    with make_loader(numbers, make_service(2, SHARDS)) as loader:
        found = []
        with pytest.raises(LookupError, match="no such sample") as caught:
            found.extend(loader)
        assert found == list(range(20))
        assert "item" in "".join(caught.value.__notes__)


def test_L8_inert_state() -> None:
    state = state_after(5, 2)
    assert {type(value) for value in state.values()} <= {int, str, bool, bytes}
    with make_loader(graph(), make_service(2, SHARDS)) as loader:
        for forged in (pickle.dumps(os.getcwd), state["payload"][:-3], b""):
            with pytest.raises(StateError):
                loader.load_state_dict(state | {"payload": forged})


def test_L1_L2_L4_a_data_loader() -> None:
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "worker_seeding": "batch"}

    def loader(workers: int) -> Any:
        made = DataLoader(
            Numbers(20), num_workers=workers, multiprocessing_context="fork" if workers else None, **options
        )
        made.load_state_dict(state)
        return made

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        with DataLoader(Numbers(20), **options) as whole:
            state = whole.state_dict()
            expected = [batch.tolist() for _ in range(2) for batch in whole]
        with loader(2) as first:
            found = []
            for batch in first:
                found.append(batch.tolist())
                if len(found) == 2:
                    os.kill(first.worker_pids()[0], signal.SIGKILL)
                if len(found) == 5:
                    state = first.state_dict()
                    break
        with loader(0) as second:
            found += [batch.tolist() for _ in range(2) for batch in second]
    assert found == expected
