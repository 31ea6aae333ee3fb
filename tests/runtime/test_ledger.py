"""The ledger against a simple model: nothing exceeds the window, and a restart begins exactly behind what arrived."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reading_services._runtime.ledger import DeathLedger, ShardLedger
from reading_services._runtime.messages import ShardStart
from torchpipe.merge import ShardPosition
from torchpipe.shard import Chunk
from torchpipe.state import Cursor


def at(index: int) -> bytes:
    return b"snapshot behind %d" % index


def resume(start: ShardStart) -> int:
    """The index of the item that a worker makes first: it goes to the snapshot and drops ``skip`` items."""
    taken = 0 if start.snapshot is None else int(start.snapshot.split()[-1])
    return taken + start.skip


class ShardMachine(RuleBasedStateMachine):
    """One shard whose items are 0, 1, 2, ...: a worker that makes them, may die, and has what it sent on its way."""

    @initialize(window=st.integers(1, 6), count=st.integers(0, 4), snapshot=st.booleans(), length=st.integers(4, 40))
    def begin(self, window: int, count: int, snapshot: bool, length: int) -> None:
        self.window, self.length = window, length
        cursor = Cursor(at(count), 0) if snapshot else Cursor(None, count)
        self.ledger = ShardLedger.begin(ShardPosition(lane=2, shard=2, cursor=cursor, count=count), window)
        self.delivered = self.arrived = count  # the next item that the consumer takes, and that main receives
        self.in_hand = 0
        self.on_the_way: deque[Chunk] = deque()
        self.granted = 0
        self.alive = False
        self.over = False  # by what has arrived
        self.restart()

    @precondition(lambda self: not self.alive and not self.over)
    @rule()
    def restart(self) -> None:
        start = self.ledger.restart()
        assert start.shard == 2
        assert resume(start) == start.count == self.arrived
        self.made, self.credit, self.alive, self.sent_end = start.count, start.credit, True, False

    @precondition(lambda self: self.alive and self.credit > 0 and not self.sent_end)
    @rule(items=st.integers(1, 4), snapshot=st.booleans())
    def produce(self, items: int, snapshot: bool) -> None:
        items = min(items, self.credit, self.length - self.made)
        chunk = Chunk(items=list(range(self.made, self.made + items)))
        self.made += items
        self.credit -= items
        self.sent_end = chunk.ended = self.made == self.length
        if snapshot and not chunk.ended:
            chunk.snapshot = at(self.made)
        self.on_the_way.append(chunk)

    @precondition(lambda self: self.alive and self.credit > 0 and not self.sent_end)
    @rule()
    def fail(self) -> None:
        self.on_the_way.append(Chunk(error=ValueError("broken")))
        self.sent_end = True

    @precondition(lambda self: self.on_the_way)
    @rule()
    def arrive(self) -> None:
        chunk = self.on_the_way.popleft()
        self.arrived += len(chunk.items)
        self.over = chunk.ended or chunk.error is not None
        self.ledger.arrive(chunk)

    @precondition(lambda self: self.alive)
    @rule()
    def die(self) -> None:
        """What it had sent whole arrives or not: both happen, since the connection may break first."""
        self.on_the_way.clear()
        self.alive = False

    @rule()
    def pull(self) -> None:
        released = self.ledger.release()
        assert released == (0 if self.over else self.in_hand)
        if self.alive:
            self.credit += released  # to a dead one, it is lost
        self.in_hand = 0
        chunk = self.ledger.take()
        if chunk is None:
            assert self.delivered == self.arrived
            return
        assert chunk.items == list(range(self.delivered, self.delivered + len(chunk.items)))
        self.delivered += len(chunk.items)
        self.in_hand = len(chunk.items)

    @invariant()
    def the_window_is_never_exceeded(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ready = self.arrived - self.delivered
        assert ready + self.in_hand <= self.window
        if self.alive:
            way = sum(len(chunk.items) for chunk in self.on_the_way)
            total = ready + self.in_hand + way + self.credit
            assert total <= self.window
            assert self.sent_end or total == self.window  # nor does any of it get lost
            assert self.sent_end or self.credit or ready or self.in_hand or way  # so that it never comes to a halt

    @invariant()
    def the_ledger_knows_what_arrived(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.over == self.over
        assert self.ledger.count == self.arrived
        assert resume(self.ledger.restart()) == self.arrived


ShardMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestShardLedger = ShardMachine.TestCase


def test_a_chunk_in_hand_counts_for_the_window() -> None:
    ledger = ShardLedger.begin(ShardPosition(lane=0, shard=0, cursor=Cursor(), count=0), 4)
    ledger.arrive(Chunk(items=["a", "b", "c"]))
    assert ledger.restart().credit == 1
    assert ledger.take() is not None
    assert ledger.restart().credit == 1
    assert ledger.release() == 3
    assert ledger.release() == 0  # once
    assert ledger.restart().credit == 4


def test_no_credit_is_given_for_a_shard_that_is_over() -> None:
    ledger = ShardLedger.begin(ShardPosition(lane=0, shard=0, cursor=Cursor(), count=0), 4)
    ledger.arrive(Chunk(items=["a", "b"], ended=True))
    assert ledger.take() is not None
    assert ledger.release() == 0


@given(st.lists(st.sampled_from([(0, 1), (0, 2), (1, -1), (1, (3, 4))])))
def test_deaths_are_counted_by_position(positions: list[tuple[object, ...]]) -> None:
    ledger = DeathLedger(3)
    for index, position in enumerate(positions):
        assert ledger.record(*position) == positions[: index + 1].count(position)
