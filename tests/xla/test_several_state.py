"""Several devices in one process: one state for all, from any position, over loaders with state and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.data
from hypothesis import example, given
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from tests.device.loaders import Plain, Saved, indices
from tests.xla.dealing import DEPTHS, TAILS, drain, expected, replays, several
from torchpipe.errors import ReplayWarning, StateError, StateMismatchError, UnsafeStateError


@given(
    length=st.integers(0, 14),
    devices=st.integers(1, 3),
    tail=TAILS,
    every=st.sampled_from([1, 3, None]),
    legs=st.lists(st.tuples(DEPTHS, st.lists(st.integers(0, 2), max_size=9), st.booleans()), min_size=1, max_size=4),
)
@example(  # padding that was received before the restore is not in the loader
    length=7,
    devices=3,
    tail="pad",
    every=1,
    legs=[((0, 0), [0, 1, 1, 1, 2, 2, 2], False), ((0, 0), [0, 0], False)],
)
@example(  # a state of the midst of an epoch that was begun from the end of another
    length=1,
    devices=2,
    tail="pad",
    every=1,
    legs=[((0, 0), [0, 0, 1, 1], False), ((0, 0), [0, 1], False)],
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
    ended = all(turns.count(index) > len(whole[index]) for index in range(devices))  # then the next epoch follows
    for index in range(devices):
        assert [item % 1000 for item in got[index] + rest[index]] == whole[index] * (1 + ended)


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
    assert indices(again.epoch()[0]) == epochs[1][cut:]
    assert indices(again.epoch()[0]) == epochs[2]
    again.close()


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("replacement", "own_generator"),
    [(False, False), (False, True), (True, False)],  # with both, torchdata itself does not resume the epoch
)
def test_L2_the_epochs_behind_a_resumed_one_are_the_same(workers: int, replacement: bool, own_generator: bool) -> None:
    """The order of an epoch is in the state of a StatefulDataLoader; the generator that draws those of later ones is
    not put back by it, without workers."""

    def make() -> Any:
        generator = torch.Generator().manual_seed(7)
        data = list(range(80))
        sampler = RandomSampler(data, replacement=replacement, num_samples=80, generator=generator)
        return several(
            StatefulDataLoader(
                data, batch_size=4, sampler=sampler, num_workers=workers, generator=generator if own_generator else None
            ),
            1,
        )

    def read(group: Any, count: int = 99) -> Any:
        return [batch.tolist() for _, batch in zip(range(count), group.epoch()[0])]

    reference = make()
    torch.manual_seed(1)
    epochs = [read(reference) for _ in range(4)]
    assert epochs[0] != epochs[1]
    reference.close()
    for cut in (0, 1, 11, 20, 99):
        torch.manual_seed(1)
        group = make()
        begun = [read(group), read(group, cut)]
        state = group.state_dict()
        group.close()
        again = make()
        again.load_state_dict(state)
        rest = [] if cut > 20 else [read(again)]
        assert begun[1] + (rest[0] if rest else []) == epochs[1]
        assert [read(again), read(again)] == epochs[2:]
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


@pytest.mark.parametrize("depth", [0, 2])  # with 0, nobody has looked whether there is more
def test_L2_a_state_behind_the_last_batch_goes_on_with_the_next_epoch(depth: int) -> None:
    """With the empty rest, where the loops had not ended; also with batches that were dropped at the end."""
    for length, devices, asked, ended in (
        *((6, 2, 3, False), (6, 2, 4, True), (7, 3, 2, False), (7, 3, 3, True), (5, 1, 5, False), (5, 1, 6, True)),
    ):
        group = several(Saved(length), devices, host_prefetch=depth, device_prefetch=depth)
        drain(group.epoch(), [*range(devices)] * asked)
        state = group.state_dict()
        group.close()
        again = several(Saved(length), devices)
        again.load_state_dict(state)
        if not ended:
            assert [indices(stream) for stream in again.epoch()] == [[]] * devices
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


def test_L5_such_a_state_is_taken_with_each_batch_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    group = several(Opaque(6), 1)
    drain(group.epoch(), [0] * 4)
    group.close()
    assert not caplog.records  # that an older snapshot is kept


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
    group = several(Saved(9), 1, every=9)  # the one snapshot stands after the first batch
    drain(group.epoch(), [0] * 7)
    state = group.state_dict()
    group.close()

    class Rewound(Saved):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.epoch, self.position, self.loaded = 0, 0, True

    again = several(Rewound(3), 1)
    again.load_state_dict(state)
    (stream,) = again.epoch()
    with pytest.raises(StateError, match="Rewound ended after 3 of 6 batches to be read again"):
        next(stream)
    again.close()
