"""Several devices in one process: who gets which batch, in any order of draining, where errors appear, how it ends."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.device.loaders import Plain, Saved, index_of, indices
from tests.sources import feed_threads, wait_until
from tests.xla.dealing import DEPTHS, TAILS, drain, expected, several
from torchpipe.errors import IteratorInvalidated


@given(length=st.integers(0, 14), devices=st.integers(1, 4), tail=TAILS, depths=DEPTHS, data=st.data())
def test_every_device_gets_its_batches_in_order(
    length: int, devices: int, tail: Any, depths: tuple[int, int], data: st.DataObject
) -> None:
    turns = data.draw(st.lists(st.integers(0, devices - 1), max_size=20))
    group = several(Saved(length), devices, tail=tail, host_prefetch=depths[0], device_prefetch=depths[1])
    for epoch in range(2):
        streams = group.epoch()
        got = drain(streams, turns)
        for mine, stream in zip(got, streams):  # one after the other to its end
            mine += indices(stream)
        assert got == expected(Saved(length).order(epoch), devices, tail)
        assert [len(mine) for mine in got] == [group.per_device_samples()] * devices
    group.close()


def test_a_device_that_is_not_drained_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    group = several(Saved(200), 2, host_prefetch=1, device_prefetch=1)
    first, second = group.epoch()
    with caplog.at_level(logging.WARNING, "torchpipe"):
        mine = indices(first)
    assert len(mine) == 100
    assert group.waiting()[1] >= 98
    assert "wait on the host for device 1 of 2" in caplog.text
    assert indices(second) == expected(Saved(200).order(0), 2, "drop")[1]
    assert group.waiting() == [0, 0]


def test_a_thread_for_each_device() -> None:
    group = several(Saved(300), 3)
    got: list[list[int]] = [[], [], []]
    streams = group.epoch()
    threads = [
        threading.Thread(target=lambda index=index: got[index].extend(indices(streams[index]))) for index in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected(Saved(300).order(0), 3, "drop")


def test_L7_a_last_group_that_is_too_small_can_be_an_error() -> None:
    group = several(Saved(7), 3, tail="raise")
    streams = group.epoch()
    for stream in streams:
        assert len(list(zip(range(2), stream))) == 2
        with pytest.raises(ValueError, match=r"the last 1 of 7 batches are too few for 3 devices"):
            next(stream)
    group.close()
    assert several(Saved(7), 3, tail="raise").per_device_samples() == 2
    assert several(Saved(7), 3, tail="pad").per_device_samples() == 3


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_L7_an_error_of_the_loader_is_raised_to_each_device_at_its_place(devices: int, depth: int) -> None:
    group = several(Saved(12, fail_at=6), devices, host_prefetch=depth, device_prefetch=depth)
    streams = group.epoch()
    for stream in streams:
        got = [index_of(next(stream)) for _ in range(6 // devices)]
        with pytest.raises(OSError, match="planted"):
            next(stream)
        assert list(stream) == []
    assert got == Saved(12).order(0)[devices - 1 : 6 : devices]
    state = group.state_dict()
    group.close()
    again = several(Saved(12), devices)
    again.load_state_dict(state)
    rest = [indices(stream) for stream in again.epoch()]
    assert rest == [Saved(12).order(0)[6 + index :: devices] for index in range(devices)]


def test_L7_an_iter_that_raises_is_raised_in_epoch() -> None:
    class Broken:
        def __iter__(self) -> Any:
            raise RuntimeError("no data today")

    with pytest.raises(RuntimeError, match="no data today"):
        several(Broken(), 2).epoch()


def test_L7_a_new_epoch_invalidates_the_last_ones_streams() -> None:
    group = several(Saved(9), 2)
    old = group.epoch()
    next(old[0])
    new = group.epoch()
    for stream in old:
        with pytest.raises(IteratorInvalidated, match="replaced by a new epoch"):
            next(stream)
    next(new[1])
    group.load_state_dict(group.state_dict())
    with pytest.raises(IteratorInvalidated):
        next(new[1])
    group.close()


def test_L7_a_wait_in_another_thread_ends_when_the_loader_is_closed() -> None:
    loader = Plain(5, block_at=0)
    group = several(loader, 2, host_prefetch=0)
    streams = group.epoch()
    caught: list[BaseException] = []

    def wait(index: int) -> None:
        try:
            next(streams[index])
        except BaseException as error:
            caught.append(error)

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    assert loader.blocked.wait()
    for stream in streams:
        stream.interrupt()
    for thread in threads:
        thread.join()
    assert [type(error) for error in caught] == [IteratorInvalidated] * 2
    loader.gate.set()
    group.close()


@pytest.mark.nightly
@pytest.mark.parametrize("read", [0, 2])
def test_L6_close_does_not_wait_for_a_loader_that_blocks(read: int, caplog: pytest.LogCaptureFixture) -> None:
    loader = Plain(9, block_at=read)
    group = several(loader, 1)
    (stream,) = group.epoch()
    caught: list[BaseException] = []

    def drain_it() -> None:
        try:
            list(stream)
        except IteratorInvalidated as error:
            caught.append(error)

    reader = threading.Thread(target=drain_it)
    reader.start()
    assert loader.blocked.wait()
    group.close()
    group.close()
    reader.join()
    assert len(caught) == 1
    assert caplog.text.count("still runs the input of Plain") == 1
    loader.gate.set()
    wait_until(lambda: feed_threads() == [])


@pytest.mark.parametrize("host", [0, 2])
@pytest.mark.parametrize("how", ["end", "close", "drop", "error"])
def test_L6_the_loader_is_let_go_of_without_the_garbage_collector(how: str, host: int) -> None:
    """Its worker processes would live on in a cycle of references."""
    gc.collect()
    gc.disable()
    try:
        loader = Saved(30, fail_at=5 if how == "error" else None)
        gone = weakref.ref(loader)
        group = several(loader, 2, host_prefetch=host)
        streams = group.epoch()
        if how == "error":
            for stream in streams:
                with pytest.raises(OSError, match="planted"):
                    list(stream)
        else:
            drain(streams, [0, 1, 0] if how != "end" else [0, 1] * 16)
        if how == "close":
            group.close()
        del loader, group, streams
        if how == "error":
            del stream
        wait_until(lambda: feed_threads() == [])
        wait_until(lambda: gone() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_L6_dropping_the_streams_ends_their_threads_and_keeps_the_position(taken: int) -> None:
    group = several(Saved(99), 2)
    streams = group.epoch()
    drain(streams, [0] * taken)
    del streams
    gc.collect()
    wait_until(lambda: feed_threads() == [])
    assert group.state_dict()["delivered"] == taken


def test_L6_closing_one_device_leaves_the_others_running() -> None:
    group = several(Saved(40), 2)
    first, second = group.epoch()
    next(first)
    first.close()
    assert indices(second) == expected(Saved(40).order(0), 2, "drop")[1]
    with pytest.raises(IteratorInvalidated):
        next(first)
    wait_until(lambda: feed_threads() == [])
    assert group.state_dict()["delivered"] == 21


@pytest.mark.parametrize(("host", "device"), [(0, 0), (0, 2), (3, 0), (2, 2)])
def test_L5_no_more_is_read_ahead_than_was_asked_for(host: int, device: int) -> None:
    loader = Saved(99)
    group = several(loader, 1, host_prefetch=host, device_prefetch=device)
    (stream,) = group.epoch()
    for taken in range(1, 4):
        next(stream)
        bound = taken + host + device
        wait_until(lambda bound=bound: len(loader.read) == bound)
    group.close()
    assert len(loader.read) <= bound


def test_per_device_samples_needs_a_length() -> None:
    with pytest.raises(TypeError):
        several(iter([]), 2).per_device_samples()
