"""``stats()`` of loaders: what is known when, of whom, and that it can be asked for at any time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService, SequentialReadingService
from tests.measured import measured
from tests.sources import wait_until
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper
from torchpipe.stats import FeedStats, LoaderStats, ProcessStats


def double(item: int) -> int:
    return 2 * item


def slow(item: int) -> int:
    time.sleep(0.01)
    return item


def fail_at_7(item: int) -> int:
    if item == 7:
        raise ValueError("seven")
    return item


def graph(length: int = 100) -> Any:
    return IterableWrapper(range(length)).sharding_filter().map(double).batch(4)


def workers_of(stats: LoaderStats) -> list[ProcessStats]:
    return [process for process in stats.processes if process.kind == "worker"]


def test_before_the_first_item_and_after_the_end() -> None:
    loader: DataLoader2[Any] = measured(DataLoader2(graph(), reading_service=MultiProcessingReadingService(2, "fork")))
    new = loader.stats()
    assert (new.state, new.delivered) == ("new", 0)
    iterator = iter(loader)
    assert loader.stats().state == "running"
    assert len(list(iterator)) == 26
    done = loader.stats()
    assert (done.state, done.delivered, done.total, done.epoch) == ("finished", 26, 26, 0)
    assert [node.items for node in done.nodes] == [100, 100, 100, 26]
    assert all(node.exact for node in done.nodes)
    next(iter(loader))
    loader.shutdown()
    closed = loader.stats()
    assert (closed.state, closed.delivered, closed.epoch) == ("closed", 1, 1)


def test_an_epoch_has_figures_of_its_own() -> None:
    with measured(DataLoader2(graph(), reading_service=MultiProcessingReadingService(2, "fork"))) as loader:
        for epoch in range(2):
            assert len(list(loader)) == 26
            stats = loader.stats()
            assert stats.epoch == epoch
            assert sum(worker.items for worker in workers_of(stats)) == 26
            assert stats.nodes[2].items == 100
            assert stats.consumer.items == 26


def test_each_process_says_what_it_does() -> None:
    service = MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=1)
    with DataLoader2(graph(1000), reading_service=service) as loader:
        stream = iter(loader)
        next(stream)
        wait_until(lambda: all(worker.doing == "awaiting credit" for worker in workers_of(loader.stats())))
        stats = loader.stats()
        assert [worker.pid for worker in workers_of(stats)] == service.worker_pids()
        assert [worker.shards for worker in workers_of(stats)] == [(0,), (1,)]
        assert not stats.measured
        assert stats.nodes[2].items is None
        assert all(0 <= queue.fill <= 1 == queue.limit for queue in stats.queues)
        assert stats.processes[0].pid == os.getpid()
        assert stats.workers == stats.shards == 2
        assert len(list(stream)) == 249
        ended = loader.stats()
        for worker in workers_of(ended):  # however short the epoch was
            assert 0 < (worker.cpu_s or 0.0) <= (ended.consumer.start_s or 0.0) + ended.consumer.elapsed_s + 0.1
            assert (worker.memory_bytes or 0) > 1e7
            assert worker.memory_bytes > (worker.private_bytes or 0) > 1e5
        assert stats.method == "fork"


def test_a_replaced_worker_is_an_event_and_keeps_its_figures() -> None:
    service = MultiProcessingReadingService(2, "fork")
    with measured(DataLoader2(graph(4000), reading_service=service)) as loader:
        stream = iter(loader)
        next(stream)
        os.kill(service.worker_pids()[0], signal.SIGKILL)
        assert 1 + len(list(stream)) == 1000
        stats = loader.stats()
        assert stats.restarts == 1
        assert workers_of(stats)[0].restarts == 1
        assert [(event.kind, event.process) for event in stats.events] == [("restart", "worker 0")]
        assert "SIGKILL" in stats.events[0].text
        made = sum(worker.items for worker in workers_of(stats))
        assert made == 1000
        assert (stats.nodes[3].items or 0) >= made  # some were made twice


def test_errors_are_counted_where_they_were_raised() -> None:
    failing = IterableWrapper(range(10)).sharding_filter().map(fail_at_7).map(double)
    with measured(DataLoader2(failing)) as loader:
        with pytest.raises(ValueError, match="seven"):
            list(loader)
        stats = loader.stats()
        assert [node.errors for node in stats.nodes] == [0, 0, 1, 0]
        assert stats.state == "closed"


def test_items_left_out_are_counted_where_they_were() -> None:
    graph = IterableWrapper(range(10)).sharding_filter().map(fail_at_7).map(double).on_error("skip")
    for service in (None, MultiProcessingReadingService(2, "fork")):
        with measured(DataLoader2(graph, reading_service=service)) as loader:
            assert len(list(loader)) == 9
            nodes = loader.stats().nodes
            assert [(node.skipped, node.errors) for node in nodes] == [(0, 0), (0, 0), (1, 0), (0, 0), (0, 0)]


def test_a_dispatcher_and_services_in_a_row() -> None:
    dispatched = IterableWrapper(range(50)).map(double).sharding_round_robin_dispatch().map(double)
    service = SequentialReadingService(MultiProcessingReadingService(2, "fork"))
    with measured(DataLoader2(dispatched, reading_service=service)) as loader:
        assert loader.measuring
        assert len(list(loader)) == 50
        stats = loader.stats()
        assert [process.kind for process in stats.processes] == ["main", "dispatcher", "worker", "worker"]
        assert [(node.section, node.items) for node in stats.nodes] == [
            ("dispatch", 50),
            ("dispatch", 50),
            ("dispatch", 50),
            ("shard", 50),
        ]


def test_stages_are_those_that_the_iterator_knows() -> None:
    with DataLoader2(graph().to_device("cpu"), reading_service=MultiProcessingReadingService(1, "fork")) as loader:
        stream = iter(loader)
        for _ in range(3):
            next(stream)
        stage = loader.stats().stages[0]
        assert isinstance(stage.feed, FeedStats)
        assert (stage.name, stage.node, stage.device) == ("ToDevice", 5, True)
        assert stage.feed.items == stream.stats().items == 3


def test_other_threads_may_ask_at_any_time() -> None:
    loader: DataLoader2[Any] = DataLoader2(graph(2000), reading_service=MultiProcessingReadingService(2, "fork"))
    told: list[LoaderStats] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            told.append(loader.stats())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with loader:
            for _ in range(3):
                assert len(list(loader)) == 500
    finally:
        over.set()
        asking.join()
    assert len(told) > 3
    assert all(0 <= stats.consumer.wait_share <= 1 for stats in told)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=repr)
def test_a_dataloader_knows_its_steps(options: dict[str, Any]) -> None:
    with measured(DataLoader(list(range(40)), 4, **options)) as loader:  # type: ignore[arg-type]
        assert loader.stats().state == "new"
        for epoch in range(2):
            assert len(list(loader)) == 10
            stats = loader.stats()
            assert (stats.state, stats.epoch, stats.delivered, stats.total) == ("finished", epoch, 10, 10)
            assert [node.items for node in stats.nodes] == [10, 40, 10]
            assert [node.name for node in stats.nodes] == ["SequentialSampler", "list[...]", "default_collate"]
            assert stats.workers == options.get("num_workers", 0)
            assert len(stats.processes) == 1 + stats.workers


def test_the_environment_may_ask_for_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPIPE_MEASURE", "1")
    assert DataLoader2(graph()).measuring
    assert DataLoader([1]).measuring  # type: ignore[arg-type]
    assert not measured(DataLoader2(graph()), False).measuring
    monkeypatch.setenv("TORCHPIPE_MEASURE", "0")
    assert not DataLoader2(graph()).measuring


def test_a_forked_child_has_no_figures_of_its_parents_loader() -> None:
    """A worker among them, whose function asks for the stats of the loader that it works for."""
    loaders: list[Any] = [
        DataLoader2(graph(), reading_service=MultiProcessingReadingService(1, "fork")),
        DataLoader([1, 2], num_workers=1, multiprocessing_context="fork"),  # type: ignore[arg-type]
    ]
    for loader in loaders:
        with loader:
            stream = iter(loader)
            next(stream)
            reader, writer = multiprocessing.Pipe(duplex=False)

            def ask(loader: Any = loader, writer: Any = writer) -> None:
                try:
                    loader.stats()
                except RuntimeError as error:
                    writer.send(str(error))

            child = multiprocessing.get_context("fork").Process(target=ask)
            child.start()
            child.join()
            assert reader.poll()
            assert "does not work in its forked child" in reader.recv()
            assert loader.stats().state == "running"
            assert list(stream)


def test_figures_of_a_closed_loader_are_those_of_its_last_epoch() -> None:
    loader: DataLoader2[Any] = DataLoader2(graph(), reading_service=MultiProcessingReadingService(2, "fork"))
    with loader:
        stream = iter(loader)
        next(stream)
    stats = loader.stats()
    assert (stats.state, stats.delivered, stats.consumer.items) == ("closed", 1, 1)


def test_what_others_use_of_the_machine_is_a_part_of_it() -> None:
    loader = DataLoader(range(20), 2, collate_fn=slow, num_workers=1)  # type: ignore[arg-type]
    assert loader.stats().others is None
    list(loader)
    others = loader.stats().others
    assert others is None or 0 <= others <= 1


def test_a_loop_that_was_left_does_not_get_slower_or_quicker_with_time() -> None:
    """What it does after an item counts when it asks for the next one."""
    with DataLoader2(IterableWrapper(range(10))) as loader:
        for item in loader:
            if item == 5:
                break
        left = loader.stats()
        assert (left.consumer.items, left.state) == (6, "running")
        assert loader.stats().consumer == left.consumer
        iter(loader)
    assert loader.stats().consumer.items == 0


def test_nodes_before_a_cache_have_figures() -> None:
    with measured(DataLoader2(IterableWrapper(range(10)).map(str).cache().map(len))) as loader:
        assert len(list(loader)) == 10
        assert [node.items for node in loader.stats().nodes] == [10, 10, 10, 10]
        assert len(list(loader)) == 10
        assert [node.items or 0 for node in loader.stats().nodes] == [0, 0, 10, 10]


@pytest.mark.parametrize("workers", [0, 2])
def test_explain_has_the_shards_that_a_state_has_brought(workers: int) -> None:
    graph = IterableWrapper(range(8)).sharding_filter()
    with DataLoader2(graph, reading_service=InProcessReadingService(num_shards=4)) as four:
        state = four.state_dict()
    service = MultiProcessingReadingService(workers, "fork") if workers else InProcessReadingService()
    with DataLoader2(graph, reading_service=SequentialReadingService(service)) as loader:
        assert "4 shards" not in loader.explain()
        loader.load_state_dict(state)
        assert "4 shards" in loader.explain()
        loader.load_state_dict(state)
        assert sorted(loader) == list(range(8))


class Hoard:
    """Keeps 4 MB of each item, as a worker does that copies what it reads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: list[bytes] = []

    def __call__(self, item: int) -> int:
        time.sleep(0.04)
        self.kept.append(b"x" * self.size)
        return item


@pytest.mark.parametrize("size", [4 << 20, 1])
def test_a_worker_whose_own_memory_has_grown_is_told_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody has asked before it has."""
    monkeypatch.setattr("torchpipe.stats.sheet._PRIVATE_EVERY_S", 0.0)
    monkeypatch.setattr("reading_services.engine.worker_stats._MUCH_GROWTH_BYTES", 60_000_000)
    source = IterableWrapper(range(60)).sharding_filter().map(Hoard(size))
    with DataLoader2(source, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
        assert list(loader) == list(range(60))
        for _ in range(2):
            events = loader.stats().events
            assert [event.kind for event in events] == ["memory"] * (size > 1)
            assert all("its own memory has grown from" in event.text for event in events)
