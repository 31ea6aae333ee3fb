"""Several devices in one process: who gets which batch, in any order of draining, from any checkpoint."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.device.loaders import Plain, Saved, index_of, indices
from tests.sources import feed_threads, wait_until
from torchpipe.device.several import SeveralDevices
from torchpipe.errors import IteratorInvalidated, ReplayWarning, StateError, StateMismatchError, UnsafeStateError
from torchpipe.state import SnapshotPolicy
from torchpipe.testing.devices import FakeBackend

replays = pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")


def several(loader: Any, count: int, every: int | None = 1, **options: Any) -> SeveralDevices:
    return SeveralDevices(
        loader, [FakeBackend() for _ in range(count)], policy=lambda: SnapshotPolicy(every=every), **options
    )


def expected(order: list[int], devices: int, tail: str) -> list[list[int]]:
    """What each device gets of an epoch's batches."""
    short = len(order) % devices
    if short and tail == "drop":
        order = order[:-short]
    if short and tail == "pad":
        order = order + [order[-1]] * (devices - short)
    return [order[index::devices] for index in range(devices)]


def drain(streams: Any, turns: list[int]) -> list[list[int]]:
    """Take one batch for each turn, of the device that it names; a stream at its end is asked once."""
    got: list[list[int]] = [[] for _ in streams]
    for turn in turns:
        item = next(streams[turn % len(streams)], None)
        if item is not None:
            got[turn % len(streams)].append(index_of(item))
    return got


TAILS = st.sampled_from(["drop", "pad"])
DEPTHS = st.sampled_from([(0, 0), (0, 2), (2, 0), (1, 1), (4, 3)])


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


@given(
    length=st.integers(0, 14),
    devices=st.integers(1, 3),
    tail=TAILS,
    every=st.sampled_from([1, 3, None]),
    legs=st.lists(st.tuples(DEPTHS, st.lists(st.integers(0, 2), max_size=9), st.booleans()), min_size=1, max_size=4),
)
def test_L2_one_checkpoint_for_all_devices_loses_and_repeats_nothing(
    length: int, devices: int, tail: Any, every: int | None, legs: Any
) -> None:
    """Against one pass without interruption: devices drained unevenly, restored again and again, at any depth."""
    got: list[list[int]] = [[] for _ in range(devices)]
    state = None
    for depths, turns, closed_first in legs:
        group = several(Saved(length), devices, every, tail=tail, host_prefetch=depths[0], device_prefetch=depths[1])
        if state is not None:
            group.load_state_dict(state)
        for mine, more in zip(got, drain(group.epoch(), turns)):
            mine += more
        if closed_first:
            group.close()
        state = group.state_dict()
        group.close()
    last = several(Saved(length), devices, tail=tail)
    last.load_state_dict(state)
    for _ in range(2):  # if the epoch was over, this is the next one
        for mine, stream in zip(got, last.epoch()):
            mine += indices(stream)
    epochs = [expected(Saved(length).order(epoch), devices, tail) for epoch in range(len(legs) + 3)]
    for index in range(devices):
        reference = [item for epoch in epochs for item in epoch[index]]
        assert got[index] == reference[: len(got[index])]
        assert len(got[index]) == len(got[0]) >= 2 * len(epochs[0][0])
        assert len(got[index]) % max(1, len(epochs[0][0])) == 0
    last.close()


@replays
@given(length=st.integers(1, 9), devices=st.integers(1, 3), cut=st.integers(0, 9), uneven=st.integers(0, 3))
def test_L2_a_loader_without_state_is_replayed(length: int, devices: int, cut: int, uneven: int) -> None:
    group = several(Plain(length), devices)
    turns = [*range(devices)] * cut + [0] * uneven
    got = drain(group.epoch(), turns)
    state = group.state_dict()
    group.close()
    again = several(Plain(length), devices)
    again.load_state_dict(state)
    rest = [indices(stream) for stream in again.epoch()]
    again.close()
    whole = expected(list(range(length)), devices, "drop")
    for index in range(devices):
        # Behind the last batch the next epoch follows; the new object does not know that it is the second.
        assert [item % 1000 for item in got[index] + rest[index]] in (whole[index], whole[index] * 2)


@pytest.mark.parametrize("depth", [0, 1, 8])
def test_a_replay_is_announced_with_its_length(depth: int) -> None:
    group = several(Plain(9), 1, host_prefetch=depth, device_prefetch=depth)
    (stream,) = group.epoch()
    assert drain([stream], [0] * 5) == [[0, 1, 2, 3, 4]]
    state = group.state_dict()
    group.close()
    again = several(Plain(9), 1)
    again.load_state_dict(state)
    with pytest.warns(ReplayWarning, match="Plain keeps no state: reading its first 5 batches again"):
        (stream,) = again.epoch()
    assert indices(stream) == [5, 6, 7, 8]


@replays
@pytest.mark.parametrize("cut", [0, 1, 5, 8])
def test_the_generator_of_a_torch_dataloader_is_put_back(cut: int) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(7)
        data = [{"index": index} for index in range(8)]
        return torch.utils.data.DataLoader(data, batch_size=None, shuffle=True, generator=generator)

    reference = make()
    epochs = [indices(reference) for _ in range(3)]
    assert epochs[0] != epochs[1]
    group = several(make(), 1)
    assert indices(group.epoch()[0]) == epochs[0]
    assert drain(group.epoch(), [0] * cut) == [epochs[1][:cut]]
    state = group.state_dict()
    group.close()
    again = several(make(), 1)
    again.load_state_dict(state)
    rest = indices(again.epoch()[0])
    assert rest == (epochs[1][cut:] or epochs[2])
    again.close()


def test_a_shuffle_that_cannot_be_repeated_is_said_to_be() -> None:
    loader: Any = torch.utils.data.DataLoader([{"index": index} for index in range(8)], batch_size=None, shuffle=True)
    group = several(loader, 1)
    next(group.epoch()[0])
    state = group.state_dict()
    group.load_state_dict(state)
    with pytest.warns(ReplayWarning, match=r"global random state.*generator=torch.Generator\(\)"):
        group.epoch()
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
        thread.join(60)
    assert got == expected(Saved(300).order(0), 3, "drop")


def test_the_state_of_each_device_counts_what_it_received() -> None:
    group = several(Saved(30), 3, host_prefetch=4, device_prefetch=4)
    got = drain(group.epoch(), [0, 0, 0, 0, 2, 2])
    state = group.state_dict()
    assert (state["devices"], state["delivered"]) == (3, 6)
    group.close()
    again = several(Saved(30), 3)
    again.load_state_dict(state)
    rest = [indices(stream) for stream in again.epoch()]
    assert [mine + more for mine, more in zip(got, rest)] == expected(Saved(30).order(0), 3, "drop")


def test_a_level_state_loads_with_another_number_of_devices() -> None:
    group = several(Saved(12), 3)
    got = drain(group.epoch(), [0, 1, 2, 2, 1, 0])
    state = group.state_dict()
    group.close()
    again = several(Saved(12), 2)
    again.load_state_dict(state)
    streams = again.epoch()
    assert again.state_dict()["delivered"] == 6
    rest = [indices(stream) for stream in streams]
    order = Saved(12).order(0)
    assert sorted(item for mine in got for item in mine) == sorted(order[:6])
    assert rest == [order[6::2], order[7::2]]


def test_L7_an_uneven_state_is_refused_by_another_number_of_devices() -> None:
    group = several(Saved(12), 3)
    drain(group.epoch(), [0, 0])
    state = group.state_dict()
    group.close()
    with pytest.raises(
        StateMismatchError, match=r"saved with 3 devices, which had received \[2, 0, 0\].*this loader has 2"
    ):
        several(Saved(12), 2).load_state_dict(state)


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
    assert loader.blocked.wait(20)
    for stream in streams:
        stream.interrupt()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in caught] == [IteratorInvalidated] * 2
    loader.gate.set()
    group.close()


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
    assert loader.blocked.wait(20)
    group.close()
    group.close()
    reader.join(20)
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


def test_L2_a_state_behind_the_last_batch_goes_on_with_the_next_epoch() -> None:
    """Whether or not the end was noticed, and with batches that were dropped at the end."""
    for length, devices, asked in ((6, 2, 3), (6, 2, 4), (7, 3, 2), (7, 3, 3), (5, 1, 5), (5, 1, 6)):
        group = several(Saved(length), devices)
        drain(group.epoch(), [*range(devices)] * asked)
        state = group.state_dict()
        group.close()
        again = several(Saved(length), devices)
        again.load_state_dict(state)
        streams = again.epoch()
        got = [indices(stream) for stream in streams]
        assert got == expected(Saved(length).order(1), devices, "drop")
        assert again.state_dict()["delivered"] == 0
        again.close()


def test_state_before_the_first_epoch_and_before_the_first_batch() -> None:
    group = several(Saved(4), 1)
    for epoch in range(3):
        for state in (group.state_dict(), (group.epoch(), group.state_dict())[1]):
            again = several(Saved(4), 1)
            again.load_state_dict(state)
            assert again.state_dict() == state
            assert indices(again.epoch()[0]) == Saved(4).order(epoch)
            again.close()
        group.close()
        group.load_state_dict(state)
        list(group.epoch()[0])
    group.close()


class Custom:
    """No plain data."""


class Opaque(Saved):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "custom": Custom()}


def test_L8_a_loader_state_that_only_pickle_can_rebuild_needs_consent() -> None:
    group = several(Opaque(6), 1)
    got = drain(group.epoch(), [0, 0])
    state = group.state_dict()
    group.close()
    again = several(Opaque(6), 1)
    with pytest.raises(UnsafeStateError, match="allow_pickle=True"):
        again.load_state_dict(state)
    again.load_state_dict(state, allow_pickle=True)
    assert got[0] + indices(again.epoch()[0]) == Saved(6).order(0)
    again.close()


class Unsaveable(Saved):
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not today")


def test_L7_a_loader_whose_state_fails_still_runs_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    group = several(Unsaveable(6), 1)
    (stream,) = group.epoch()
    assert indices(stream) == Saved(6).order(0)
    assert "state_dict() of the Unsaveable failed with RuntimeError: not today" in caplog.text
    with pytest.raises(StateError, match="not today"):
        group.state_dict()


@pytest.mark.parametrize("state", [{}, None, {"version": 1}, {"_snapshot": 3}])
def test_L7_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="not a state of a device loader"):
        several(Saved(3), 1).load_state_dict(state)


def test_L7_a_state_that_does_not_fit_is_refused() -> None:
    group = several(Saved(3), 1)
    state = group.state_dict()
    with pytest.raises(
        StateMismatchError, match="saved over a Saved with state_dict.., this loader is a Plain without"
    ):
        several(Plain(3), 1).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="version 9"):
        group.load_state_dict({**state, "version": 9})
    with pytest.raises(StateError, match="damaged"):
        group.load_state_dict({**state, "payload": state["payload"][:-3]})


def test_L7_a_shorter_loader_is_noticed() -> None:
    group = several(Saved(9), 1, every=None)
    drain(group.epoch(), [0] * 7)
    state = group.state_dict()
    group.close()

    class Rewound(Saved):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.epoch, self.position, self.loaded = 0, 0, True

    again = several(Rewound(3), 1)
    again.load_state_dict(state)
    (stream,) = again.epoch()
    with pytest.raises(StateError, match=r"Rewound ended after 3 of \d batches to be read again"):
        next(stream)
    again.close()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"devices": []}, ValueError, "at least one device"),
        ({"devices": "cpu"}, TypeError, r"write \['cpu'\]"),
        ({"devices": ["cuda:0", torch.device("cuda:0")]}, ValueError, "cuda:0 is given twice"),
        ({"devices": ["tpu"]}, ValueError, "'cpu', 'cuda'"),
        ({"tail": "keep"}, ValueError, '"drop", "pad" or "raise"'),
        ({"host_prefetch": -1}, ValueError, "host_prefetch"),
        ({"device_prefetch": "2"}, TypeError, "device_prefetch"),
        ({"policy": SnapshotPolicy()}, TypeError, "makes a SnapshotPolicy"),
    ],
)
def test_L7_bad_arguments_are_refused_at_once(options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        SeveralDevices(Saved(3), **{"devices": ["cpu"], **options})


def test_per_device_samples_needs_a_length() -> None:
    with pytest.raises(TypeError):
        several(iter([]), 2).per_device_samples()
