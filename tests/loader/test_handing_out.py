"""L2: an item counts when ``next()`` returns it. Both loaders, with an exception wherever a signal's handler could
raise one in ``next()``: the loop has what the state counts, and the iterator goes on exactly, or says that it cannot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.data.datasets import Augmented, FailingAt, Lines, StatefulNumbers, StatefulSampler, seeded
from tests.exact import exact
from tests.laws.interrupts import Interrupt, Interrupter, before_first
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import IteratorInvalidated
from torchpipe.iter import IterableWrapper

LENGTH, ERROR = 10, "an error"


def batches(dataset: Any = None, **options: Any) -> Callable[[], Any]:
    data = Augmented(LENGTH) if dataset is None else dataset
    return lambda: DataLoader(data, 2, shuffle=None if isinstance(data, Lines) else True, **options)


def stateful() -> Any:
    return DataLoader(StatefulNumbers(LENGTH), 2, shuffle=True)


def failing(**options: Any) -> Callable[[], Any]:
    return lambda: DataLoader(FailingAt(LENGTH, (3, 4), ValueError), 2, **options)


def graph(make: Callable[[Any], Any], **options: Any) -> Callable[[], Any]:
    def begin() -> Any:
        service = MultiProcessingReadingService(num_shards=2, **options)
        loader: Any = DataLoader2(make(IterableWrapper(range(LENGTH)).shuffle().sharding_filter()), None, service)
        loader.seed(1)
        return loader

    return begin


HERE: dict[str, Callable[[], Any]] = {
    "batches": batches(),
    "a stateful dataset": stateful,
    "a stateful sampler": lambda: DataLoader(Augmented(LENGTH), 2, sampler=StatefulSampler(LENGTH)),
    "a failing batch": failing(),
    "device": batches(device="cpu"),
    "a failing batch on a device": failing(device="cpu"),
    "iterable": batches(Lines(LENGTH)),
    "graph": graph(lambda node: node),
    "graph, main section": graph(lambda node: node.prefetch(2).map(str)),
    "graph, buffer in the main section": graph(lambda node: node.prefetch(2).shuffle(buffer_size=3)),
    "graph, device": graph(lambda node: node.map(float).batch(2), device="cpu"),
}
FORKED: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
ELSEWHERE: dict[str, Callable[[], Any]] = {
    "workers": batches(**FORKED),
    "workers, a device": batches(**FORKED, device="cpu"),
    "workers, by samples": batches(**FORKED, fetch="samples"),
    "workers, torch's seeds": batches(**FORKED, worker_seeding="torch"),
    "workers, iterable": batches(Lines(LENGTH), **FORKED),
    "workers, a failing batch": failing(**FORKED),
    "threads": failing(num_workers=2, worker_method="thread"),
    "graph, workers": graph(lambda node: node, **FORKED),
}


def handed(stream: Any) -> list[str]:
    """What comes until it has ended: items, and the errors of batches in their places."""
    found = []
    while True:
        try:
            found.append(exact(next(stream)))
        except StopIteration:
            return found
        except ValueError:
            found.append(ERROR)


def whole(make: Callable[[], Any], state: Any = None) -> list[str]:
    with seeded(5), make() as loader:
        if state is not None:
            loader.load_state_dict(state)
        return handed(iter(loader))


def interrupted(make: Callable[[], Any], place: Interrupter) -> tuple[list[str], Any, list[str] | None, bool]:
    """What the loop has got, the state then, what follows in the same iterator (None: it says that nothing does), and
    whether all came before the interrupt."""
    with seeded(5), make() as loader:
        stream, got, done = iter(loader), [], False
        try:
            while not done:
                try:
                    with place:
                        item = next(stream)
                    got.append(exact(item))
                except ValueError:
                    got.append(ERROR)
                except StopIteration:
                    done = True
        except Interrupt:
            pass
        state = loader.state_dict()
        if done:
            return got, state, [], True
        try:
            return got, state, handed(stream), False
        except IteratorInvalidated as error:
            assert "an exception has ended this iterator" in str(error)
            assert loader.state_dict()["delivered"] == state["delivered"]
            return got, state, None, False


def check(make: Callable[[], Any], step: int, modules: tuple[str, ...]) -> tuple[int, int]:
    """How often the same iterator went on, and how often it said that it could not."""
    expected, number, done = whole(make), before_first(step), False
    went_on = refused = 0
    while not done:
        number += step
        place = Interrupter(number, modules)
        got, state, rest, done = interrupted(make, place)
        if done or state["epoch"]:  # the interrupt has come as the epoch ended
            assert got == expected, place.hit
            continue
        lost = got[-1:] if got[-1:] == [ERROR] else []  # a state behind an error goes on with it
        after = whole(make, state)
        exact_rest = got + after in (expected, expected[: len(got)] + lost + expected[len(got) :])
        assert exact_rest, place.hit
        assert state["delivered"] == len(expected) - len(after), place.hit
        if rest is None:
            refused += 1
        else:
            went_on += 1
            left = expected[len(got) :]
            unheard = left[1:] if left[:1] == [ERROR] else left  # the interrupt has come instead of the error
            assert rest in (left, unheard), place.hit
    assert number > step
    return went_on, refused


@pytest.mark.parametrize("name", HERE)
def test_L2_what_the_loop_did_not_get_is_not_counted(name: str) -> None:
    assert all(
        check(HERE[name], 7, ("torchpipe.data", "torchpipe.loader", "torchpipe.ahead", "torchpipe.execution.merge"))
    )


@pytest.mark.parametrize("name", ELSEWHERE)
def test_L2_what_the_loop_did_not_get_of_workers_is_not_counted(name: str) -> None:
    check(ELSEWHERE[name], 97, ("torchpipe.data", "torchpipe.loader", "torchpipe.execution.merge", "reading_services"))


def test_a_pause_that_comes_while_an_item_is_awaited(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"

    def wait(item: int) -> int:
        while item == 1 and not go_on.exists():
            time.sleep(0.01)
        return item

    service = MultiProcessingReadingService(1, multiprocessing_context="fork")
    with DataLoader2(IterableWrapper(range(2000)).sharding_filter().map(wait), None, service) as loader:
        stream = iter(loader)

        def pause() -> None:
            while stream.delivered < 1 or not stream._guard.taker:
                time.sleep(0.001)
            stream.pause()
            go_on.touch()

        other = threading.Thread(target=pause)
        other.start()
        assert list(stream) == [0, 1]
        other.join()
        stream.resume()
        assert list(stream) == list(range(2, 2000))
