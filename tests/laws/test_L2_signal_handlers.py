"""L2 with a signal handler that looks at the loader, or ends it, at any instruction of ``next()``, and then returns."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from tests import leaks
from tests.data.datasets import Numbers
from tests.laws.executors import make_service, pids
from tests.laws.interrupts import Handler, Interrupt, Interrupter, before_first
from torchpipe import DataLoader, DataLoader2, IterDataPipe
from torchpipe.errors import IteratorInvalidated
from torchpipe.iter import IterableWrapper
from torchpipe.loader.iterator import DataLoader2Iterator

_MODULES = ("torchpipe", "reading_services")
LENGTH, WARM, MORE = 12, 2, 4  # items; those before the signal may come, and meanwhile


def graph(workers: int | None) -> Any:
    node = IterableWrapper(range(LENGTH)).shuffle(buffer_size=4).sharding_filter().map(lambda item: item + 1)
    loader: DataLoader2[Any] = DataLoader2(node, reading_service=make_service(workers, 2))
    loader.seed(3)
    return loader


LOADERS: dict[str, Callable[[], Any]] = {
    "in process": lambda: graph(None),
    "workers": lambda: graph(2),
    "DataLoader": lambda: DataLoader(Numbers(LENGTH), None),
    "DataLoader, workers": lambda: DataLoader(Numbers(LENGTH), None, num_workers=2, multiprocessing_context="fork"),
    "DataLoader, persistent workers": lambda: DataLoader(
        Numbers(LENGTH), None, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    ),
    "DataLoader, threads": lambda: DataLoader(Numbers(LENGTH), None, num_workers=2, worker_method="thread"),
}


def plain(items: Any) -> list[int]:
    return [int(item) for item in items]


def invalidated(stream: Any) -> bool:
    return bool(stream._pass.closed if isinstance(stream, DataLoader2Iterator) else stream._invalid)


def struck(make: Callable[[], Any], number: int, action: Callable[[Any, Any], Any]) -> tuple[Any, Any, list[int], Any]:
    """The loader, the handler that called ``action`` once, the items, and what ended them early."""
    loader = make()
    stream = iter(loader)
    got = plain(islice(stream, WARM))
    handler = Handler(number, _MODULES, lambda: action(loader, stream))
    try:
        for _ in range(MORE):
            with handler:
                item = next(stream)
            got.append(int(item))
    except Exception as error:
        return loader, handler, got, error
    if not invalidated(stream):  # at the last place of the last call, it was ended without a word
        got += plain(stream)
    return loader, handler, got, None


def at_all_places(make: Callable[[], Any], action: Callable[[Any, Any], Any]) -> Any:
    number = before_first(41)
    while True:
        number += 41
        found = struck(make, number, action)
        if found[1].hit is not None:
            yield found
        found[0].shutdown()
        if found[1].hit is None:
            break
    assert number > 60


@pytest.mark.parametrize("name", LOADERS)
def test_L2_a_signal_handler_that_looks_changes_nothing(name: str) -> None:
    """A state that it takes in the midst of ``next()``, if it is given one, is a true one."""
    make = LOADERS[name]
    with make() as loader:
        expected = plain(loader)
    for _, handler, got, error in at_all_places(make, lambda loader, _: (str(loader), loader.stats())):
        assert isinstance(handler.result, tuple), (handler.hit, handler.result)
        assert (got, error) == (expected, None), handler.hit
    for loader, handler, got, error in at_all_places(make, lambda loader, _: loader.state_dict()):
        assert (got, error) == (expected, None), handler.hit
        if isinstance(handler.result, RuntimeError):
            assert "state_dict() was called while next() is at work" in str(handler.result)
        else:
            loader.load_state_dict(handler.result)
            assert plain(loader) == expected[handler.result["delivered"] :], handler.hit


@pytest.mark.parametrize("loads", [False, True], ids=["shutdown", "load_state_dict"])
@pytest.mark.parametrize("name", LOADERS)
def test_L2_a_signal_handler_that_ends_the_epoch_is_refused_inside_next(name: str, loads: bool) -> None:
    make = LOADERS[name]
    with make() as loader:
        begin, expected = loader.state_dict(), plain(loader)
    refused = 0
    for loader, handler, got, error in at_all_places(
        make, lambda loader, _: loader.load_state_dict(begin) if loads else loader.shutdown()
    ):
        if isinstance(handler.result, Exception):
            refused += 1
            assert isinstance(handler.result, RuntimeError), (handler.hit, handler.result)
            assert "was called while next() is at work, by a signal handler" in str(handler.result)
            assert (got, error) == (expected, None), handler.hit
        else:  # before next() has begun its work, or after it
            assert error is None or isinstance(error, IteratorInvalidated), (handler.hit, error)
            loader.load_state_dict(loader.state_dict())
            assert ([] if loads else got) + plain(loader) == expected, handler.hit
    assert refused > 2


@pytest.mark.parametrize("name", LOADERS)
def test_L2_next_inside_next_is_refused(name: str) -> None:
    make = LOADERS[name]
    with make() as loader:
        expected = plain(loader)
    refused = 0
    for _, handler, got, error in at_all_places(make, lambda _, stream: next(stream)):
        assert error is None
        if isinstance(handler.result, Exception):
            refused += 1
            assert isinstance(handler.result, RuntimeError), (handler.hit, handler.result)
            assert "was called while it is at work" in str(handler.result)
            assert got == expected, handler.hit
        else:
            assert sorted([*got, int(handler.result)]) == sorted(expected), handler.hit
    assert refused > 2


@pytest.mark.parametrize("name", [name for name in LOADERS if "workers" in name])
@pytest.mark.parametrize("loads", [False, True], ids=["shutdown", "load_state_dict"])
def test_L6_a_signal_handler_that_ends_the_epoch_is_refused_while_it_begins(name: str, loads: bool) -> None:
    """It took away what was being started: the rest of the start failed obscurely, and left a process behind."""
    with LOADERS[name]() as loader:
        begin, expected, following = loader.state_dict(), plain(loader), plain(loader)
    number, refused = before_first(97), 0
    while True:
        number += 97
        before = leaks.Footprint.take()
        with LOADERS[name]() as loader:
            end = partial(loader.load_state_dict, begin) if loads else loader.shutdown
            handler = Handler(number, _MODULES, end)
            with handler:
                stream = iter(loader)
            if isinstance(handler.result, Exception):
                refused += 1
                assert isinstance(handler.result, RuntimeError), (handler.hit, handler.result)
                assert "closing the loader was called while iter() is at work" in str(handler.result)
            try:
                assert plain(stream) == expected, handler.hit
            except IteratorInvalidated:  # it came when the epoch had begun
                assert not isinstance(handler.result, Exception)
                assert plain(loader) == (expected if loads else following), handler.hit
        del stream  # which keeps the processes' objects, as torch's does
        assert leaks.wait_nothing_left(before) == [], handler.hit
        if handler.hit is None:
            break
    assert refused > 2


@pytest.mark.parametrize("name", LOADERS)
def test_L6_an_interrupt_while_an_epoch_begins_leaves_a_loader_that_can_be_used_and_closed(name: str) -> None:
    """At one instruction, the loader took every later call for one inside ``iter()``, and could not even be closed."""
    make = LOADERS[name]
    with make() as loader:
        expected = plain(loader)
    before = leaks.Footprint.take()
    step = 7 if "persistent" in name or name == "DataLoader, workers" else 1
    for number in itertools.count(before_first(step) + step, step):
        with make() as loader:
            interrupter = Interrupter(number, ("torchpipe.loader", "torchpipe.data"))
            try:
                with interrupter:
                    stream = iter(loader)  # kept: its end is not to be struck
            except Interrupt:
                pass
            loader.shutdown()
            loader.load_state_dict(loader.state_dict())  # it may have begun
            assert plain(loader) == expected, interrupter.hit
        if interrupter.hit is None:
            break
    assert number > 15
    del loader, stream
    assert leaks.wait_nothing_left(before) == []


@contextmanager
def handling(number: int, handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("dispatched", [False, True], ids=["shards", "dispatcher"])
def test_L2_a_handler_of_a_signal_to_the_whole_group_runs_in_the_main_process_alone(
    method: str, dispatched: bool
) -> None:
    """SLURM's USR1 before the end of a job: the handler saves a checkpoint. In a worker it would save position 0."""
    node = IterableWrapper(range(LENGTH))
    graph = node.sharding_round_robin_dispatch() if dispatched else node.sharding_filter()
    ran_in, states = [], []

    def save(*_: object) -> None:
        ran_in.append(os.getpid())
        states.append(loader.state_dict())

    service = make_service(2, 2, context=method)
    with handling(signal.SIGUSR1, save), DataLoader2(graph, reading_service=service) as loader:
        stream = iter(loader)
        got = plain(islice(stream, 3))
        workers = pids(loader)
        for pid in [*workers, os.getpid()]:
            os.kill(pid, signal.SIGUSR1)
        got += plain(stream)
        assert pids(loader) == workers
        assert loader.stats().restarts == 0
        assert ran_in == [os.getpid()]
        loader.load_state_dict(states[0])
        assert plain(loader) == got[3:]
    assert sorted(got) == list(range(LENGTH))


class Drawing(IterDataPipe[Any]):
    """A source of the user's in an order that it draws."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(LENGTH))
        random.shuffle(order)
        np.random.shuffle(order)
        for item in order:
            yield [item, random.random()]


in_mid_item: list[Callable[[], None]] = []  # what to call when half of an item has been drawn


def draw(row: Any) -> list[float]:
    first = random.random() + float(np.random.rand())
    for call in in_mid_item:
        call()
    return [*row, first, float(torch.rand(()))]


def drawing(shards: int, before: bool) -> DataLoader2[Any]:
    source = Drawing().map(draw).sharding_filter() if before else Drawing().sharding_filter().map(draw)
    made: DataLoader2[Any] = DataLoader2(source.batch(2), reading_service=make_service(None, shards))
    made.seed(3)
    return made


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("asked_in", ["handler", "callback", "thread"])
def test_L2_a_state_asked_for_while_users_code_has_drawn_half_an_item(
    asked_in: str, shards: int, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, or it is one between two items, random states included: in the next epoch, too."""
    whole = drawing(shards, before)
    epochs = [list(whole) for _ in range(3)]
    states: list[Any] = []
    threads: list[threading.Thread] = []
    calls = itertools.count()

    def ask(*_: object) -> None:
        try:
            states.append(loader.state_dict())
        except RuntimeError as error:
            states.append(error)

    def now_and_then() -> None:
        if next(calls) % 5 == 3:
            if asked_in == "callback":
                ask()
            elif asked_in == "handler":
                signal.raise_signal(signal.SIGUSR1)
            else:
                threads.append(threading.Thread(target=ask))
                threads[-1].start()

    loader = drawing(shards, before)
    monkeypatch.setattr(sys.modules[__name__], "in_mid_item", [now_and_then])
    with handling(signal.SIGUSR1, ask):
        assert [list(loader), list(loader)] == epochs[:2]
    monkeypatch.undo()
    for thread in threads:
        thread.join()
    assert len(states) > 3
    for state in states:
        if asked_in == "thread":
            again = drawing(shards, before)
            again.load_state_dict(state)
            epoch = state["epoch"]
            assert list(again) == epochs[epoch][state["delivered"] :]
            if epoch < 2:
                assert list(again) == epochs[epoch + 1]
        else:
            assert "state_dict() was called while next() is at work" in str(state)


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
def test_L2_in_the_midst_of_anothers_item_a_loader_without_a_seed_foretells_its_own(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item is made under random states of its shard's: they are not those that the loader will draw from."""
    other: DataLoader2[Any] = DataLoader2(IterableWrapper(range(LENGTH)).shuffle().sharding_filter())
    states: list[Any] = []
    torch.manual_seed(5)
    monkeypatch.setattr(sys.modules[__name__], "in_mid_item", [lambda: states.append(other.state_dict())])
    list(drawing(2, before))
    expected = [list(other), list(other)]
    again: DataLoader2[Any] = DataLoader2(IterableWrapper(range(LENGTH)).shuffle().sharding_filter())
    for state in (states[0], states[-1]):
        again.load_state_dict(state)
        assert [list(again), list(again)] == expected
    torch.manual_seed(5)
    fresh: DataLoader2[Any] = DataLoader2(IterableWrapper(range(LENGTH)).shuffle().sharding_filter())
    assert [list(fresh), list(fresh)] == expected


class Impatient(Numbers):
    """Gives up a slow sample by an alarm, whose handler the program has installed before it forks workers."""

    def __getitem__(self, index: int) -> Any:
        try:
            if index == 1:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                time.sleep(60)
        except InterruptedError:
            return -1
        return index


def give_up(*_: object) -> None:
    raise InterruptedError


def test_a_signal_that_a_worker_sends_to_itself_has_its_handler() -> None:
    with handling(signal.SIGALRM, give_up):
        loader = DataLoader(Impatient(4), None, num_workers=1, multiprocessing_context="fork")
        assert plain(loader) == [0, -1, 2, 3]
