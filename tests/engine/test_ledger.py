"""The ledger against a simple model: no more chunks than the window, and a restart exactly after what arrived."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reading_services.engine.ledger import ShardLedger
from reading_services.engine.messages import ShardStart
from reading_services.engine.workers import Arrival
from tests.tries import tries
from torchpipe.state import Cursor


def at(index: int) -> bytes:
    return b"snapshot after %d" % index


def resume(start: ShardStart) -> int:
    """The index of the item that a worker makes first: it goes to the snapshot and drops ``skip`` items."""
    taken = 0 if start.cursor.snapshot is None else int(start.cursor.snapshot.split()[-1])
    return taken + start.cursor.skip


def ledger_of(lane: int, cursor: Cursor, window: int) -> ShardLedger:
    return ShardLedger(lane=lane, branch=0, shard=lane, window=window, cursor=cursor)


class ShardMachine(RuleBasedStateMachine):
    """One shard whose items are 0, 1, 2, ...: a worker that makes them, may die, and has what it sent on its way.

    A worker has the rule of its own that ``ahead``, the chunks not used up as far as it knows, stays in the window.
    """

    @initialize(window=st.integers(1, 6), count=st.integers(0, 4), snapshot=st.booleans(), length=st.integers(4, 40))
    def begin(self, window: int, count: int, snapshot: bool, length: int) -> None:
        self.window, self.length = window, length
        cursor = Cursor(at(count), 0, count) if snapshot else Cursor(None, count)
        self.ledger = ledger_of(2, cursor, window)
        self.delivered = self.arrived = count  # the next item that the consumer takes, and that main receives
        self.ready: deque[Arrival] = deque()
        self.in_hand = False
        self.on_the_way: deque[Arrival] = deque()
        self.alive = False
        self.over = False  # by what has arrived
        self.restart()

    @precondition(lambda self: not self.alive and not self.over)
    @rule()
    def restart(self) -> None:
        start = self.ledger.restart()
        assert (start.lane, start.shard) == (2, 2)
        assert resume(start) == start.cursor.count == self.arrived
        assert start.held == self.in_hand + len(self.ready)
        self.made, self.ahead, self.alive, self.sent_end = start.cursor.count, start.held, True, False

    @precondition(lambda self: self.alive and self.ahead < self.window and not self.sent_end)
    @rule(items=st.integers(1, 4), snapshot=st.booleans())
    def produce(self, items: int, snapshot: bool) -> None:
        items = min(items, self.length - self.made)
        self.made += items
        self.sent_end = self.made == self.length
        self.send(items, ended=self.sent_end, snapshot=at(self.made) if snapshot and not self.sent_end else None)

    @precondition(lambda self: self.alive and self.ahead < self.window and not self.sent_end)
    @rule()
    def fail(self) -> None:
        self.sent_end = True
        self.send(0, error=ValueError("broken"))

    def send(
        self, items: int, *, ended: bool = False, snapshot: bytes | None = None, error: BaseException | None = None
    ) -> None:
        self.ahead += 1
        self.on_the_way.append(Arrival(count=items, snapshot=snapshot, ended=ended, error=error))

    @precondition(lambda self: self.on_the_way)
    @rule()
    def arrive(self) -> None:
        arrival = self.on_the_way.popleft()
        self.arrived += arrival.count
        self.over = arrival.ended or arrival.error is not None
        self.ready.append(arrival)
        self.ledger.arrive(arrival)

    @precondition(lambda self: self.alive)
    @rule()
    def die(self) -> None:
        """What it had sent whole arrives or not: both happen, since the connection may break first."""
        self.on_the_way.clear()
        self.alive = False

    @rule()
    def pull(self) -> None:
        released = self.ledger.release()
        assert released == (0 if self.over else int(self.in_hand))
        if self.alive:
            self.ahead -= released  # to a dead one, it is lost
        self.in_hand = False
        arrival = self.ledger.take()
        if arrival is None:
            assert self.delivered == self.arrived
            assert not self.ready
            return
        assert arrival is self.ready.popleft()
        self.delivered += arrival.count
        self.in_hand = True

    @invariant()
    def the_window_is_never_exceeded(self) -> None:
        if not hasattr(self, "ledger"):
            return
        kept = len(self.ready) + self.in_hand
        assert kept <= self.window
        if self.alive:
            total = kept + len(self.on_the_way)
            assert total <= self.window
            if not self.over:  # what is used up after the end need not be granted
                assert self.ahead == total  # the worker counts all of it: none is granted twice, and none gets lost
            # So it never comes to a halt: with nothing on its way or in the consumer's hands, there is room
            assert self.sent_end or kept or self.on_the_way or self.ahead < self.window

    @invariant()
    def the_ledger_knows_what_arrived(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.over == self.over
        assert self.ledger.count == self.arrived
        assert resume(self.ledger.restart()) == self.arrived


ShardMachine.TestCase.settings = settings(max_examples=tries(60), stateful_step_count=60)
TestShardLedger = ShardMachine.TestCase


def test_a_chunk_in_hand_counts_for_the_window() -> None:
    ledger = ledger_of(0, Cursor(), 4)
    for _ in range(2):
        ledger.arrive(Arrival(count=3))
    assert ledger.restart().held == 2  # chunks, however many items they have
    assert ledger.take() is not None
    assert ledger.restart().held == 2
    assert ledger.release() == 1
    assert ledger.release() == 0  # once
    assert ledger.restart().held == 1
    assert ledger.restart().cursor.count == 6


def test_no_credit_is_given_for_a_shard_that_is_over() -> None:
    for last in (
        Arrival(count=2, ended=True),
        Arrival(count=2, error=ValueError("broken")),
        Arrival(error=ValueError("broken")),
    ):
        ledger = ledger_of(0, Cursor(), 4)
        ledger.arrive(last)
        assert ledger.take() is last
        assert ledger.release() == 0


def test_an_error_in_place_of_an_item_does_not_exceed_the_window() -> None:
    """The supervisor puts one after a window that may be full: it is no chunk of a worker."""
    ledger = ledger_of(0, Cursor(), 1)
    ledger.arrive(Arrival(count=1))
    ledger.arrive(Arrival(error=ValueError("died")))
    assert ledger.restart().held == 1


def test_a_restart_says_which_items_are_suspect() -> None:
    ledger = ledger_of(0, Cursor(), 4)
    assert ledger.restart().isolate_before == 0
    ledger.isolate_before = 17
    assert ledger.restart().isolate_before == 17


def test_behind_an_error_nothing_counts_any_more() -> None:
    """What the worker had sent besides is on its way still: it must not come in the place of what was lost."""
    ledger = ledger_of(0, Cursor(), 4)
    ledger.arrive(Arrival(error=OSError("could not be mapped")))
    ledger.arrive(Arrival(count=3))
    assert ledger.count == 0
    assert ledger.take() is not None
    assert ledger.take() is None
