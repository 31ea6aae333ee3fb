"""What users do by mistake works, or is refused with a message that says what to do (docs/guarantees.md lists it)."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from reading_services import MultiProcessingReadingService, Restart
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import GraphError, IteratorInvalidated, WorkerDiedError
from torchpipe.iter import IterableWrapper

RICH: GraphSpec = (37, (("shuffle", 4),), (("global_random", 1), ("filter", 3), ("shuffle", 3), ("batch", 2)), False)
EXECUTORS = pytest.mark.parametrize("workers", [None, 2])


def in_fork(task: Callable[[], Any], *, daemon: bool = False) -> Any:
    """What ``task`` gives in a forked child: its result, or the text of its error."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            theirs.send(task())
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")

    child = context.Process(target=run, daemon=daemon)
    child.start()
    try:
        assert ours.poll(30), "the child hangs"
        return ours.recv()
    finally:
        child.kill()
        child.join()
        child.close()
        ours.close()
        theirs.close()


@EXECUTORS
@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_is_not_pickled_or_copied(workers: int | None, dump: Callable[[Any], Any]) -> None:
    with make_loader(RICH, make_service(workers, 2)) as loader:
        iterator = iter(loader)
        for value in (loader, iterator):
            with pytest.raises(TypeError, match=r"cannot be pickled or copied.*pickle the graph.*state_dict"):
                dump(value)
        next(iterator)


def test_the_way_out_of_pickling_works() -> None:
    (expected,) = oracle(RICH, 2, epochs=1)
    with make_loader(RICH, make_service(2, 2)) as loader:
        next(iter(loader))
        parts = pickle.dumps((loader.datapipe, loader.state_dict()))
    graph, state = pickle.loads(parts)
    assert [repr(item) for item in DataLoader2.from_state(state, graph)] == expected[1:]


@EXECUTORS
def test_two_threads_in_next(workers: int | None, tmp_path: Path) -> None:
    """The second is refused; the first goes on as if nothing had been."""
    go_on = tmp_path / "go on"

    def wait(item: int) -> int:
        while item == 3 and not go_on.exists():
            time.sleep(0.01)
        return item

    with make_loader(IterableWrapper(range(10)).sharding_filter().map(wait), make_service(workers, 2)) as loader:
        iterator = iter(loader)
        got: list[Any] = []
        reader = threading.Thread(target=lambda: got.extend(iterator))
        reader.start()
        while iterator.delivered < 3 or not iterator._pass.guard.taker:
            time.sleep(0.001)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="two threads use one"):
                next(iterator)
        go_on.touch()
        reader.join()
        assert got == list(range(10))


@EXECUTORS
def test_states_from_another_thread_are_consistent(workers: int | None) -> None:
    """Whatever is taken while another thread iterates continues exactly after what it counts."""
    spec: GraphSpec = (120, RICH[1], RICH[2], False)
    (expected,) = oracle(spec, 3, epochs=1)
    states: dict[int, dict[str, Any]] = {}
    over, taken = threading.Event(), threading.Event()
    with make_loader(spec, make_service(workers, 3, every=2)) as loader:
        iterator = iter(loader)

        def save() -> None:
            while not over.is_set():
                state = loader.state_dict()
                states[state["delivered"] if state["epoch"] == 0 else -1] = state
                taken.set()
                time.sleep(0)

        saver = threading.Thread(target=save)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # else all may be over before the other thread has its second turn
        saver.start()
        try:
            got = []
            for item in iterator:
                got.append(repr(item))
                if len(got) % 9 == 0:  # however little the other thread runs, it has its turn now and then
                    taken.clear()
                    assert taken.wait(60)
            assert got == expected
        finally:
            sys.setswitchinterval(interval_s)
            over.set()
            saver.join()
    assert len(states) > 1
    for delivered, state in states.items():
        if 0 <= delivered < len(expected):
            with make_loader(spec, make_service(None, 3)) as loader:
                loader.load_state_dict(state)
                assert [repr(item) for item in loader] == expected[delivered:]


def test_a_state_inside_next_is_refused_by_name() -> None:
    """A signal handler that saves at once would save half an item: it is told to note the wish."""
    loader: DataLoader2[int]

    def save(item: int) -> int:
        with pytest.raises(RuntimeError, match=r"state_dict\(\) was called while next\(\) is at work"):
            loader.state_dict()
        with pytest.raises(RuntimeError, match="called while it is at work"):
            next(iterator)
        return item

    loader = DataLoader2(IterableWrapper(range(5)).map(save))
    iterator = iter(loader)
    assert list(iterator) == list(range(5))


@EXECUTORS
def test_loading_invalidates_a_live_iterator(workers: int | None) -> None:
    (expected,) = oracle(RICH, 2, epochs=1)
    with make_loader(RICH, make_service(workers, 2)) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(IteratorInvalidated, match="load_state_dict"):
            next(iterator)
        assert [repr(item) for item in loader] == expected[1:]


@pytest.mark.parametrize("ending", ["shutdown", "load", "iter"])
def test_ending_an_iterator_that_another_thread_reads(ending: str) -> None:
    endless = IterableWrapper(range(10)).sharding_filter().cycle()
    with make_loader(endless, make_service(2, 2)) as loader:
        iterator, begun = iter(loader), threading.Event()
        got: list[Any] = []

        def read() -> None:
            try:
                for item in iterator:
                    got.append(item)
                    begun.set()
            except IteratorInvalidated as error:
                got.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait()
        match ending:
            case "shutdown":
                loader.shutdown()
            case "load":
                loader.load_state_dict(loader.state_dict())
            case "iter":
                iter(loader)
        reader.join()
        assert not reader.is_alive()
        assert isinstance(got[-1], IteratorInvalidated)
        assert got[:-1] == [number % 10 for number in range(len(got) - 1)]
        if ending == "shutdown":
            assert loader.state_dict()["delivered"] >= len(got) - 1


def test_a_loader_after_a_fork() -> None:
    (expected,) = oracle(RICH, 2, epochs=1)
    for workers in (None, 2):
        with make_loader(RICH, make_service(workers, 2)) as loader:
            assert len(in_fork(lambda: list(loader))) == len(expected)  # not begun yet: the child's own
            loader.set_epoch(0)
            iterator = iter(loader)
            got = [repr(next(iterator))]
            for task in (
                partial(next, iterator),
                partial(iter, loader),
                loader.state_dict,
                partial(loader.load_state_dict, {}),
            ):
                assert "does not work in its forked child" in str(in_fork(task))  # type: ignore[arg-type]
            assert in_fork(loader.shutdown) is None  # as a with-block does at its end
            got += [repr(item) for item in iterator]
            assert got == expected


def test_a_loader_inside_a_daemonic_process() -> None:
    def task() -> Any:
        with make_loader(RICH, make_service(2, 2)) as loader:
            return list(loader)

    def in_process() -> list[str]:
        with make_loader(RICH, make_service(None, 2)) as loader:
            return [repr(item) for item in loader]

    assert "daemonic process, which may have no children" in in_fork(task, daemon=True)
    assert len(in_fork(task, daemon=False)) == len(in_process())
    assert in_fork(in_process, daemon=True) == in_process()


class Reset:
    def __call__(self, graph: Any, info: Any, seeds: Any) -> None:
        del graph, info, seeds


@EXECUTORS
def test_a_reset_function_that_returns_nothing(workers: int | None) -> None:
    if workers is None:
        service: Any = InProcessReadingService(reset_fn=Reset())
    else:
        service = MultiProcessingReadingService(workers, worker_reset_fn=Reset())
    with (
        make_loader(RICH, service) as loader,
        pytest.raises(TypeError, match="worker_reset_fn must return the datapipe.*is a return missing"),
    ):
        next(iter(loader))


def test_a_graph_that_leads_back_to_itself() -> None:
    inner = IterableWrapper(range(5)).map(abs)
    graph = inner.filter(bool)
    inner.source = graph
    with pytest.raises(GraphError, match="itself|cycle"):
        DataLoader2(graph)


@EXECUTORS
def test_an_interrupt_in_next_loses_nothing(workers: int | None, tmp_path: Path) -> None:
    """Ctrl-C while an item is awaited: the state counts what was delivered, and the loader goes on from it."""

    def slow(item: int) -> int:
        if item == 11 and not mark.exists():
            mark.touch()
            os.kill(main, signal.SIGINT)
            time.sleep(5 if workers is None else 0.5)
        return item

    main, mark = os.getpid(), tmp_path / "interrupted"
    graph = IterableWrapper(range(30)).sharding_filter().map(slow).batch(2)
    ahead = {"worker_prefetch_cnt": 1} if workers else {}
    with make_loader(graph, make_service(workers, 2, **ahead)) as loader:
        got = []
        with pytest.raises(KeyboardInterrupt):
            for batch in loader:
                got.append(batch)
        state = loader.state_dict()
        assert state["delivered"] == len(got)
        loader.load_state_dict(state)
        got += list(loader)
    with make_loader(graph, make_service(None, 2)) as reference:
        assert got == list(reference)


def die_at_20(item: int) -> int:
    if item == 20:
        os._exit(3)
    return item


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_two_loaders_of_which_one_keeps_dying(context: str) -> None:
    (expected,) = oracle(RICH, 2, epochs=1)
    dying = IterableWrapper(range(60)).sharding_filter().map(die_at_20)
    with (
        make_loader(RICH, make_service(2, 2, context=context)) as sound,
        make_loader(dying, make_service(2, 2, context=context, on_worker_death=Restart(max_deaths=2))) as other,
    ):
        got, stream, broken = [], iter(sound), iter(other)
        with pytest.raises(WorkerDiedError, match="exited with code 3"):
            for item in broken:
                assert item < 20
                got += [repr(item) for item in islice(stream, 1)]
        got += [repr(item) for item in stream]
        assert got == expected
        assert [sound.reading_service.restarts, other.reading_service.restarts] == [0, 1]  # type: ignore[attr-defined]
