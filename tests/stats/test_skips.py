"""Items that ``on_error("skip")`` leaves out are events: of every service, bounded, and wherever events are shown."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reading_services import InProcessReadingService, MultiProcessingReadingService, SequentialReadingService
from tests.measured import measured
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.stats import Event, LoaderStats


def fail_at_7(item: int) -> int:
    if item % 50 == 7:
        raise ValueError(f"bad <{item}>")
    return item


def fail_at_odd(item: int) -> int:
    if item % 2:
        raise ValueError(f"odd {item}")
    return item


class Behind:
    """``fn``, from item 60 on once the flag is there: what was sent before does not reach over all items."""

    def __init__(self, flag: Path, fn: Callable[[int], int], seconds: float = 0.0005) -> None:
        self.flag = flag
        self.fn = fn
        self.seconds = seconds

    def __call__(self, item: int) -> int:
        time.sleep(self.seconds)
        while item >= 60 and not self.flag.exists():
            time.sleep(0.002)
        return self.fn(item)


def skips(stats: LoaderStats) -> list[Event]:
    return [event for event in stats.events if event.kind == "skip"]


def graph(fn: Any = fail_at_7, length: int = 10) -> Any:
    return IterableWrapper(range(length)).sharding_filter().map(fn).on_error("skip", budget=None)


SERVICES = {
    "in process": (InProcessReadingService, "main"),
    "workers": (lambda: MultiProcessingReadingService(2, "fork"), "worker 1"),
    "sequential": (lambda: SequentialReadingService(MultiProcessingReadingService(2, "fork")), "worker 1"),
    "sequential in process": (lambda: SequentialReadingService(InProcessReadingService(num_shards=2)), "main"),
}


@pytest.mark.parametrize("measure", [False, True], ids=["", "measured"])
@pytest.mark.parametrize("name", SERVICES)
def test_an_item_that_is_left_out_is_an_event(name: str, measure: bool) -> None:
    make, process = SERVICES[name]
    with measured(DataLoader2(graph(), reading_service=make()), measure) as loader:
        before = time.time()
        assert len(list(loader)) == 9
        (event,) = skips(loader.stats())
        shards = loader.stats().shards
    assert (event.process, event.node, event.error) == (process, "Mapper(fail_at_7)", "ValueError: bad <7>")
    assert event.shard == 7 % shards
    assert f"of shard {event.shard} left out an item: ValueError: bad <7> (for 7)" in event.text
    assert before <= event.at <= time.time()


def test_before_items_are_dealt_and_after_the_merge_there_is_no_shard() -> None:
    before = IterableWrapper(range(10)).map(fail_at_7).on_error("skip").sharding_round_robin_dispatch().map(abs)
    after = IterableWrapper(range(10)).sharding_filter().to_device("cpu").map(fail_at_7).on_error("skip")
    for given, process in ((before, "dispatcher"), (after, "main")):
        with DataLoader2(given, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
            assert len(list(loader)) == 9
            (event,) = skips(loader.stats())
            assert (event.process, event.shard, event.error) == (process, None, "ValueError: bad <7>")
    with DataLoader2(before) as loader:
        assert len(list(loader)) == 9
        (event,) = skips(loader.stats())
        assert (event.process, event.shard) == ("main", None)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}],
    ids=["here", "workers", "threads"],
)
def test_a_dataloader_over_a_graph_has_them_too(options: dict[str, Any]) -> None:
    with DataLoader(graph(), batch_size=3, **options) as loader:
        list(loader)
        (event,) = skips(loader.stats())
        assert event.node == "Mapper(fail_at_7)"
        assert event.error == "ValueError: bad <7>"


def test_they_are_bounded_and_push_out_no_restart(tmp_path: Path) -> None:
    service = MultiProcessingReadingService(2, "fork")
    with DataLoader2(graph(Behind(tmp_path / "flag", fail_at_odd, 0), 2000), reading_service=service) as loader:
        stream = iter(loader)
        next(stream)
        os.kill(service.worker_pids()[0], signal.SIGKILL)
        (tmp_path / "flag").touch()
        assert 1 + len(list(stream)) == 1000
        stats = loader.stats()
    assert len(skips(stats)) == 100
    assert [event.kind for event in stats.events if event.kind != "skip"] == ["restart"]
    assert [event.at for event in stats.events] == sorted(event.at for event in stats.events)


def test_what_a_new_worker_makes_again_is_not_told_again(tmp_path: Path) -> None:
    service = MultiProcessingReadingService(1, "fork")
    with DataLoader2(graph(Behind(tmp_path / "flag", fail_at_7), 120), reading_service=service) as loader:
        stream = iter(loader)
        for _ in range(40):
            next(stream)
        os.kill(service.worker_pids()[0], signal.SIGKILL)
        (tmp_path / "flag").touch()
        assert 40 + len(list(stream)) == 117
        assert [event.error for event in skips(loader.stats())] == [f"ValueError: bad <{n}>" for n in (7, 57, 107)]


def test_a_resume_tells_of_what_it_leaves_out_itself() -> None:
    service = InProcessReadingService
    with DataLoader2(graph(length=120), reading_service=service()) as loader:
        stream = iter(loader)
        for _ in range(40):
            next(stream)
        state = loader.state_dict()
    with DataLoader2(graph(length=120), reading_service=service()) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 77
        assert [event.error for event in skips(loader.stats())] == [f"ValueError: bad <{n}>" for n in (57, 107)]
