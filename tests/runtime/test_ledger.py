"""The ledger against a model of a worker and a consumer: nothing lost or repeated, and never more than the window."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from reading_services._runtime.ledger import DeathLedger, ShardLedger, restart_delay_s
from torchpipe.merge import ShardPosition
from torchpipe.shard import Chunk
from torchpipe.state import Cursor

LENGTH = 40


class Stream(RuleBasedStateMachine):
    """Items are their own indices; a snapshot is its position as text. Messages are on their way in ``sent``."""

    chunks = Bundle("chunks")

    @initialize(window=st.integers(1, 7), at=st.integers(0, 5), skip=st.integers(0, 3))
    def begin(self, window: int, at: int, skip: int) -> None:
        snapshot = None if at == 0 else str(at).encode()
        self.window = window
        self.delivered = at + skip
        position = ShardPosition(shard=4, cursor=Cursor(snapshot, skip), count=at + skip)
        self.ledger = ShardLedger.begin(position, window)
        self.sent: deque[Chunk] = deque()
        self.in_hand = 0
        self.ended = False
        self.deaths = 0
        self.start_worker()

    def start_worker(self) -> None:
        start = self.ledger.restart()
        assert start.shard == 4
        # It begins exactly behind what has arrived, whatever was on its way
        at = int(start.snapshot or b"0") + start.skip
        assert at == start.count == self.ledger.count
        self.position, self.credit, self.done = at, start.credit, False
        self.sent.clear()

    @precondition(lambda self: self.credit > 0 and not self.done)
    @rule(count=st.integers(1, 5), with_snapshot=st.booleans())
    def produce(self, count: int, with_snapshot: bool) -> None:
        """As a worker does: no more than its credit; the end comes with the last items or alone behind them."""
        stop = min(LENGTH, self.position + min(count, self.credit))
        items = list(range(self.position, stop))
        self.credit -= len(items)
        self.position = stop
        self.done = len(items) < count and stop == LENGTH
        snapshot = str(stop).encode() if with_snapshot and items and not self.done else None
        self.sent.append(Chunk(items=items, snapshot=snapshot, ended=self.done))

    @precondition(lambda self: self.sent)
    @rule()
    def arrive(self) -> None:
        self.ledger.arrive(self.sent.popleft())

    @rule()
    def pull(self) -> None:
        """The consumer has used up its chunk and asks for the next one."""
        self.credit += self.ledger.release()
        self.in_hand = 0
        chunk = self.ledger.take()
        if chunk is None:
            assert not self.ledger.ready
            return
        assert chunk.items == list(range(self.delivered, self.delivered + len(chunk.items)))
        self.delivered += len(chunk.items)
        self.in_hand = len(chunk.items)
        self.ended = chunk.ended

    @precondition(lambda self: not self.ledger.over and self.deaths < 8)
    @rule(arrived=st.integers(0, 3))
    def die(self, arrived: int) -> None:
        """What was sent whole arrives, the rest is lost, and another worker goes on."""
        self.deaths += 1
        while self.sent and arrived:
            self.ledger.arrive(self.sent.popleft())
            arrived -= 1
        if not self.ledger.over:
            self.start_worker()

    @invariant()
    def never_more_than_the_window(self) -> None:
        if hasattr(self, "ledger"):
            waiting = sum(len(chunk.items) for chunk in (*self.sent, *self.ledger.ready))
            assert self.credit + waiting + self.in_hand <= self.window

    @invariant()
    def a_live_stream_can_always_go_on(self) -> None:
        if hasattr(self, "ledger") and not self.ledger.over and not self.done:
            assert self.credit or self.sent or self.ledger.ready or self.in_hand

    def teardown(self) -> None:
        """Left alone, the stream comes to its end, complete."""
        if not hasattr(self, "ledger"):
            return
        for _ in range(4 * LENGTH):
            if self.ended:
                break
            if self.credit and not self.done:
                self.produce(3, True)
            while self.sent:
                self.arrive()
            self.pull()
        assert self.ended
        assert self.delivered == LENGTH


TestStream = Stream.TestCase


@pytest.mark.parametrize("end", [Chunk(items=[], ended=True), Chunk(items=[1], error=ValueError("x"))])
def test_after_the_end_or_an_error_nothing_more_is_granted(end: Chunk) -> None:
    ledger = ShardLedger.begin(ShardPosition(shard=0, cursor=Cursor(), count=0), window=2)
    ledger.arrive(Chunk(items=[0]))
    ledger.arrive(end)
    assert ledger.over
    assert ledger.take() is not None
    assert ledger.release() == 0
    assert ledger.take() is end
    assert ledger.take() is None


def test_deaths_are_counted_by_position() -> None:
    deaths = DeathLedger(3)
    assert [deaths.record(0, 1, 7), deaths.record(0, 1, 8), deaths.record(0, 1, 7), deaths.record(1, 1, 7)] == [
        1,
        1,
        2,
        1,
    ]
    assert deaths.record(0, -1, (3, 4)) == 1  # idle, at this progress


def test_the_delays_begin_at_none_grow_and_stay_bounded() -> None:
    delays = [restart_delay_s(deaths) for deaths in range(1, 200)]
    assert delays[:3] == [0, 0.1, 0.2]
    assert delays == sorted(delays)
    assert max(delays) <= 3
