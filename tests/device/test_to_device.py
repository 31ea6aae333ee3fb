"""The device stage over a device in memory: what the state counts, where errors appear, how it ends."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.sources import Script, feed_threads, start, wait_idle, wait_until
from torchpipe import DataLoader2
from torchpipe import device as devices
from torchpipe.device import Backend, resolve
from torchpipe.device.backend import CpuBackend
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.iter.running import Prefetcher
from torchpipe.iter.sources import IterableWrapper
from torchpipe.iter.to_device import ToDevice
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.state import Cursor, decode, encode
from torchpipe.testing.fakes import FakeBackend

EVERY = st.sampled_from([1, 3, None])


def batches(length: int) -> list[dict[str, Any]]:
    return [{"x": torch.full((3,), float(index)), "index": index} for index in range(length)]


def indices(items: Any) -> list[int]:
    return [item["index"] for item in items]


def take(iterator: Any, count: int) -> list[int]:
    return indices(item for _, item in zip(range(count), iterator))


@given(length=st.integers(0, 12), depth=st.integers(0, 4), threads=st.booleans())
def test_L1_all_batches_arrive_in_order(length: int, depth: int, threads: bool) -> None:
    fake = FakeBackend()
    with start(ToDevice(Script(batches(length)), fake, depth), threads=threads) as iterator:
        for number, batch in enumerate(iterator):
            assert batch["index"] == number
            assert batch["x"].tolist() == [number] * 3
            assert batch["x"].data_ptr() != fake.transferred[number]["x"].data_ptr()
        assert fake.calls.count("transfer") == fake.calls.count("receive") == length
    assert fake.calls[0] == "prepare"
    assert fake.calls[-1] == "close"
    assert fake.calls.count("prepare") == fake.calls.count("close") == 1


def stage(length: int, depth: int | None, below: int = 0, fake: FakeBackend | None = None) -> IterDataPipe[Any]:
    """``length`` batches; no device stage if ``depth`` is None; with a prefetch of ``below`` in front of it."""
    node: IterDataPipe[Any] = Script(batches(length))
    if below:
        node = Prefetcher(node, below)
    return node if depth is None else ToDevice(node, fake or FakeBackend(), depth)


@st.composite
def legs(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [
        {
            "count": draw(st.integers(0, 7)),
            "depth": draw(st.none() | st.integers(0, 4)),
            "below": draw(st.integers(0, 2)),
            "threads": draw(st.booleans()),
            "every": draw(EVERY),
        }
        for _ in range(draw(st.integers(1, 4)))
    ]


@given(length=st.integers(0, 16), parts=legs())
def test_L2_a_checkpoint_loses_and_repeats_nothing(length: int, parts: list[dict[str, Any]]) -> None:
    received: list[int] = []
    state = None
    for part in parts:
        node = stage(length, part["depth"], part["below"])
        with start(node, threads=part["threads"], every=part["every"], state=state) as iterator:
            received += take(iterator, part["count"])
            state = decode(encode(iterator.state_dict()))
    with start(stage(length, 2), state=state) as iterator:
        received += indices(iterator)
    assert received == list(range(length))


@given(length=st.integers(1, 10), data=st.data(), depth=st.integers(0, 3), every=EVERY)
def test_L7_a_failed_transfer_is_raised_at_its_place_and_taken_again(
    length: int, data: st.DataObject, depth: int, every: int | None
) -> None:
    fail_at = data.draw(st.integers(0, length - 1))
    iterator = start(stage(length, depth, fake=FakeBackend(fail_at=fail_at)), every=every)
    assert take(iterator, fail_at) == list(range(fail_at))
    with pytest.raises(RuntimeError, match="as it was told to") as caught:
        next(iterator)
    assert f"raised in ToDevice, while it moved item {fail_at} " in caught.value.__notes__[0]
    assert list(iterator) == []
    state = iterator.state_dict()
    iterator.close()
    with start(stage(length, 2), state=state) as again:
        assert indices(again) == list(range(fail_at, length))


def test_dropped_batches_of_a_restore_are_not_transferred() -> None:
    fake = FakeBackend()
    with start(stage(9, 2, fake=fake), state=Cursor(None, 6).to_state()) as iterator:
        assert indices(iterator) == [6, 7, 8]
    assert indices(fake.transferred) == [6, 7, 8]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_L5_no_more_than_depth_batches_are_on_the_device(depth: int) -> None:
    source = Script(batches(20))
    fake = FakeBackend()
    with start(ToDevice(source, fake, depth)) as iterator:
        for taken in range(1, 5):
            next(iterator)
            wait_idle(iterator, depth)
            assert len(source.journal.pulled) == len(fake.transferred) == taken + depth


def test_the_first_batch_comes_before_the_second_is_moved() -> None:
    fake = FakeBackend(block_at=1)
    with start(stage(3, 2, fake=fake)) as iterator:
        assert next(iterator)["index"] == 0
        fake.gate.set()


def test_L7_none_is_a_batch() -> None:
    with start(ToDevice(Script([None, torch.ones(1), None]), FakeBackend())) as iterator:
        assert [item is None for item in iterator] == [True, False, True]


def test_L6_close_waits_for_a_transfer_and_then_closes_the_device() -> None:
    fake = FakeBackend(block_at=1)
    iterator = start(stage(9, 2, fake=fake))
    next(iterator)
    fake.blocked.wait()
    fake.gate.set()
    iterator.close()
    iterator.close()
    assert feed_threads() == []
    assert fake.calls.count("close") == 1


def test_L6_an_abandoned_pass_ends_its_thread_and_closes_the_device() -> None:
    fake = FakeBackend()
    for batch in start(stage(99, 2, fake=fake)):
        if batch["index"] == 3:
            break
    del batch
    wait_until(lambda: feed_threads() == [])
    assert fake.calls[-1] == "close"


def test_the_transfer_alone_runs_in_the_thread() -> None:
    fake = FakeBackend()
    with start(stage(3, 1, fake=fake)) as iterator:
        next(iterator)
        (thread,) = feed_threads()
        assert fake.threads == {thread}
        assert thread.name == "torchpipe ToDevice"


def test_it_is_a_description() -> None:
    node = ToDevice(IterableWrapper(batches(5)), "cpu")
    assert node.prefetch_count == 2
    assert len(node) == 5
    assert not node.alters_stream
    assert node.runs_in_main
    with start(pickle.loads(pickle.dumps(node))) as iterator:
        assert indices(iterator) == list(range(5))
    assert indices(IterableWrapper(batches(3)).to_device(torch.device("cpu"), prefetch=1)) == [0, 1, 2]


def test_names_resolve_to_backends() -> None:
    fake = FakeBackend()
    assert isinstance(fake, Backend)
    assert resolve(fake) is fake
    for name in ("cpu", "cuda", "cuda:1", torch.device("cpu"), torch.device("cuda", 1)):
        assert resolve(name).name == torch.device(name).type
    assert isinstance(resolve("cpu"), CpuBackend)
    assert resolve("cpu") is not resolve("cpu")


def test_L7_missing_torch_xla_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.xla.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=r"pip install torch==2\.9\.0 torch_xla==2\.9\.0"):
        ToDevice(IterableWrapper([1]), "xla:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_L7_missing_cuda_is_reported_at_the_first_batch() -> None:
    with start(ToDevice(IterableWrapper([1]), "cuda")) as iterator, pytest.raises(RuntimeError, match="no CUDA device"):
        next(iterator)


def in_loader(graph: Any, **options: Any) -> DataLoader2[Any]:
    return DataLoader2(graph, reading_service=InProcessReadingService(**options))


def test_L7_a_loader_in_process_says_once_that_nothing_overlaps(caplog: pytest.LogCaptureFixture) -> None:
    graph = IterableWrapper(batches(5)).to_device(FakeBackend(), prefetch=8)
    for loader in (DataLoader2(graph), DataLoader2(graph)):
        with loader:
            assert indices(loader) == indices(loader) == list(range(5))
    (record,) = caplog.records
    assert "to_device(prefetch=8) moves each batch when it is asked for" in record.getMessage()
    assert "InProcessReadingService(prefetch_cnt=1)" in record.getMessage()
    caplog.clear()
    for said in (
        DataLoader2(IterableWrapper(batches(5)).to_device(FakeBackend(), prefetch=0)),
        DataLoader2(IterableWrapper(batches(5)).to_device("cpu")),
        in_loader(IterableWrapper(batches(5)).to_device(FakeBackend()), prefetch_cnt=1),
    ):
        with said:
            assert indices(said) == list(range(5))
    assert caplog.records == []


def test_prefetch_cnt_lets_the_device_stage_run_ahead_in_its_own_thread() -> None:
    """Also with sync="loader", which must not be read by another thread that runs ahead."""
    fake = FakeBackend(block_at=3)
    graph = IterableWrapper(batches(9)).to_device(fake, prefetch=3, sync="loader")
    with in_loader(graph, prefetch_cnt=1) as loader:
        assert "Prefetcher" not in loader.explain()
        iterator = iter(loader)
        assert next(iterator)["index"] == 0
        assert fake.blocked.wait(20)  # three more are moved without being asked for
        (thread,) = feed_threads()
        assert (thread.name, {thread}) == ("torchpipe ToDevice", fake.threads)
        fake.gate.set()
        assert indices(iterator) == list(range(1, 9))
    assert fake.calls.count("sync") == 9


@pytest.mark.parametrize("cnt", [0, 1])
def test_the_loaders_iterator_offers_the_stats_of_the_stage(cnt: int) -> None:
    fake = FakeBackend(delay_s=0.001)
    with in_loader(IterableWrapper(batches(9)).to_device(fake, prefetch=2).map(dict), prefetch_cnt=cnt) as loader:
        iterator = iter(loader)
        assert iterator.stats().items == 0
        assert len(list(iterator)) == 9
        stats = iterator.stats()
    assert (stats.items, stats.moved_bytes) == (9, 9 * 12)
    assert stats.transfer_s >= 0.009
    assert stats.pull_s > 0
    assert stats.consumer_wait_s > (0.009 if cnt == 0 else 0)


def test_where_nothing_runs_ahead_there_are_no_stats() -> None:
    iterator = iter(DataLoader2(IterableWrapper(batches(3)).prefetch(2)))
    with pytest.raises(RuntimeError, match="nothing runs ahead or moves batches"):
        iterator.stats()
    with in_loader(IterableWrapper(batches(3)), prefetch_cnt=2) as loader:
        iterator = iter(loader)
        next(iterator)
        assert iterator.stats().items == 1
