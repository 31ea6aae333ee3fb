"""What is decided after a worker has ended: charged to an item, to a start, or to nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_services.engine.recovery import Decision, Recovery, restart_delay_s
from reading_services.engine.workers import End


def at(items: range, *, own: bool = False, lane: int = 0) -> End:
    """While it made these."""
    return End(cause="ended", own=own, lane=lane, items=items, begun=True)


def idle(*, own: bool, lane: int = -1) -> End:
    """While it made nothing."""
    return End(cause="ended", own=own, lane=lane)


ONE, OTHER, MANY = range(20, 21), range(21, 22), range(64)


@pytest.mark.parametrize(
    ("ends", "charged"),
    [
        ([at(ONE)] * 3, [1, 2, 3]),
        ([at(ONE, own=True)] * 3, [1, 2, 3]),
        # One of many is to blame; made one by one, the same one is found
        ([at(MANY), at(ONE), at(OTHER), at(ONE), at(range(64, 65))], [1, 2, 2, 3, 1]),
        ([at(ONE), at(ONE, lane=1), at(ONE)], [1, 1, 2]),
        ([idle(own=True)] * 3, [1, 2, 3]),
        ([idle(own=True), idle(own=True, lane=2), idle(own=True)], [1, 1, 2]),
        ([idle(own=False)] * 9, [0] * 9),
        ([idle(own=False, lane=3), at(ONE), idle(own=False), at(ONE)], [0, 1, 0, 2]),
    ],
)
def test_what_a_death_is_charged_to(ends: list[End], charged: list[int]) -> None:
    recovery = Recovery(3)
    decisions = [recovery.record(0, end, 0, dispatcher=False) for end in ends]
    assert [decision.deaths for decision in decisions] == charged
    assert [decision.give_up for decision in decisions] == [deaths >= 3 for deaths in charged]


def test_deaths_at_an_item_add_up_over_workers_and_those_at_starts_do_not() -> None:
    recovery = Recovery(3)
    assert [recovery.record(number, at(ONE), 0, dispatcher=False).deaths for number in range(3)] == [1, 2, 3]
    assert [recovery.record(number, idle(own=True), 0, dispatcher=False).deaths for number in range(3)] == [1, 1, 1]
    assert recovery.record(0, idle(own=True), 1, dispatcher=False).deaths == 1  # it got on in between
    assert recovery.record(-1, at(ONE), 0, dispatcher=True).deaths == 1  # another stream


def test_the_next_epoch_has_other_items() -> None:
    recovery = Recovery(3)
    for _ in range(2):
        recovery.record(0, at(ONE), 0, dispatcher=False)
    recovery.begin_epoch()
    assert not recovery.isolate_items(0)
    assert recovery.record(0, at(ONE), 0, dispatcher=False) == Decision(deaths=1)


def test_the_node_at_work_is_noted_before_the_death_that_may_be_the_last() -> None:
    recovery = Recovery(3)
    recovery.record(0, at(ONE), 0, dispatcher=False)
    assert not recovery.isolate_items(0)
    recovery.record(0, at(ONE), 0, dispatcher=False)
    assert recovery.isolate_items(0)
    assert not recovery.isolate_items(0)  # of the worker that begins now


def test_one_that_gets_nowhere_rests_before_it_is_opened_anew() -> None:
    recovery = Recovery(1000)
    delays = [recovery.record(0, idle(own=False), 7, dispatcher=False).delay_s for _ in range(9)]
    assert delays == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3, 3, 3]
    assert recovery.record(1, idle(own=False), 7, dispatcher=False).delay_s == 0  # of another worker
    assert recovery.record(0, at(ONE), 8, dispatcher=False).delay_s == 0  # it got on
    assert restart_delay_s(10_000) == 3


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans(), st.booleans(), st.integers(0, 1))),
    st.integers(1, 4),
)
def test_nobody_is_given_up_for_accidents_alone(
    deaths: list[tuple[int, int, bool, bool, int]], max_deaths: int
) -> None:
    recovery = Recovery(max_deaths)
    for number, item, own, begun, progress in deaths:
        end = at(range(item, item + 1), own=own) if begun else idle(own=own)
        decision = recovery.record(number, end, progress, dispatcher=False)
        assert decision.give_up == (decision.deaths >= max_deaths)
        assert bool(decision.deaths) == (own or begun)


def test_deaths_of_a_dispatcher_of_which_nobody_knows_what_it_was_at_count_for_the_item_that_is_found() -> None:
    recovery = Recovery(3)
    ends = [idle(own=True, lane=-1), idle(own=True, lane=-1), at(ONE, own=True)]
    assert [recovery.record(-1, end, 7, dispatcher=True).deaths for end in ends] == [1, 2, 3]
    assert recovery.isolate_items(-1)
    recovery.begin_epoch()
    progress = [6, 6, 7]  # it has got on since
    assert [recovery.record(-1, end, at, dispatcher=True).deaths for end, at in zip(ends, progress)] == [1, 2, 1]
