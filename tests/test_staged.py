"""The engine with two queues: order, bounds in batches and bytes, errors in their place, with any number of threads."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources import Script, feed_threads, start, wait_until
from torchpipe.ahead import background, waiting
from torchpipe.ahead.background import RunAhead
from torchpipe.ahead.stage import Admitted, Stage, StageLimits
from torchpipe.errors import WorkerDiedError
from torchpipe.state import Cursor, SnapshotPolicy

EVERY = st.sampled_from([1, 3, None])
LIMITS = st.builds(
    StageLimits,
    host_depth=st.integers(0, 4),
    host_bytes=st.none() | st.integers(1, 9),
    device_bytes=st.none() | st.integers(1, 9),
    threads=st.integers(1, 4),
)


class Mover:
    """Hands items on. Fails at the item ``fail_at``; waits at those in ``holds`` until ``release`` is called for it."""

    def __init__(self, fail_at: Any = None, error: BaseException | None = None, holds: Any = ()) -> None:
        self.fail_at = fail_at
        self.error = error
        self.gates = {item: threading.Event() for item in holds}
        self.begun: list[Any] = []
        self.moved: list[Any] = []
        self.closed = 0

    def prepare(self) -> None:
        return

    def transfer(self, item: Any, /) -> Any:
        self.begun.append(item)
        if item in self.gates:
            assert self.gates[item].wait(20)
        if self.error is not None and item == self.fail_at:
            raise self.error
        self.moved.append(item)
        return [item]

    def release(self, *items: Any) -> None:
        for item in items:
            self.gates[item].set()

    def receive(self, moved: Any, /) -> Any:
        return moved[0]

    def close(self) -> None:
        self.closed += 1


class Pairs(Mover):
    """Every even item is finished only after the odd one after it."""

    def __init__(self, length: int) -> None:
        super().__init__(holds=range(0, length - 1, 2))

    def transfer(self, item: Any, /) -> Any:
        moved = super().transfer(item)
        if item % 2:
            self.release(item - 1)
        return moved


class Weigh:
    """A gate that says every item has ``nbytes``, and leaves out the multiples of ``drop``."""

    new_shapes = 0

    def __init__(self, nbytes: int = 1, drop: int | None = None) -> None:
        self.nbytes = nbytes
        self.drop = drop

    def admit(self, item: Any, /) -> Admitted | None:
        if self.drop is not None and item % self.drop == 0:
            return None
        return Admitted(item, self.nbytes, mark=item)


def stage(
    node: Script,
    depth: int,
    limits: StageLimits,
    mover: Any = None,
    *,
    gate: Any = None,
    every: int | None = 1,
    state: Any = None,
) -> RunAhead:
    ahead = RunAhead(
        start(node, state=state),
        Stage(depth=depth, mover=mover or Mover(), limits=limits, gate=gate),
        SnapshotPolicy(every=every),
        "stage",
    )
    if state is not None:
        ahead.cursor = Cursor.from_state(state) or Cursor()
    return ahead


@given(length=st.integers(0, 20), depth=st.integers(0, 4), limits=LIMITS, drop=st.none() | st.integers(2, 5))
def test_L1_items_arrive_in_order_under_all_limits(
    length: int, depth: int, limits: StageLimits, drop: int | None
) -> None:
    mover = Mover()
    with contextlib.closing(stage(Script(range(length)), depth, limits, mover, gate=Weigh(2, drop))) as ahead:
        expected = [item for item in range(length) if drop is None or item % drop]
        assert list(ahead.items()) == expected
        assert ahead.stats().moved_bytes == 2 * len(expected)
        assert ahead.stats().dropped == length - len(expected)
    assert mover.closed == 1
    assert feed_threads() == []


@pytest.mark.parametrize(("depth", "threads", "host_depth"), [(2, 2, 0), (4, 2, 3), (6, 4, 0), (6, 4, 9)])
def test_L1_transfers_that_overtake_each_other_keep_the_order(depth: int, threads: int, host_depth: int) -> None:
    mover = Pairs(40)
    limits = StageLimits(threads=threads, host_depth=host_depth)
    with contextlib.closing(stage(Script(range(40)), depth, limits, mover)) as ahead:
        assert list(ahead.items()) == list(range(40))
    assert mover.moved != list(range(40))


@given(
    length=st.integers(0, 16),
    parts=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), LIMITS, EVERY), min_size=1, max_size=4),
    drop=st.none() | st.integers(2, 4),
)
def test_L2_a_checkpoint_loses_and_repeats_nothing(length: int, parts: list[Any], drop: int | None) -> None:
    received: list[int] = []
    state = None
    for count, depth, limits, every in [*parts, (99, 2, StageLimits(threads=3), None)]:
        ahead = stage(Script(range(length)), depth, limits, every=every, state=state, gate=Weigh(1, drop))
        with contextlib.closing(ahead):
            received += [item for _, item in zip(range(count), ahead.items())]
            state = ahead.cursor.to_state()
    assert received == [item for item in range(length) if drop is None or item % drop]


@given(
    length=st.integers(1, 12),
    fail_at=st.integers(0, 11),
    depth=st.integers(1, 4),
    limits=LIMITS,
    in_mover=st.booleans(),
    kind=st.sampled_from([ValueError, KeyboardInterrupt, SystemExit, GeneratorExit]),
)
def test_L7_an_error_is_raised_at_its_place(
    length: int, fail_at: int, depth: int, limits: StageLimits, in_mover: bool, kind: type[BaseException]
) -> None:
    fail_at %= length
    error = kind("planted")
    source = Script(range(length)) if in_mover else Script(range(length), fail_at=fail_at, error=error)
    ahead = stage(source, depth, limits, Mover(fail_at, error) if in_mover else None)
    stream = ahead.items()
    assert [next(stream) for _ in range(fail_at)] == list(range(fail_at))
    with pytest.raises(kind) as caught:
        next(stream)
    assert caught.value is error
    assert f"item {fail_at} since its start or restore" in caught.value.__notes__[0]
    assert list(stream) == []
    assert list(start(Script(range(length)), state=ahead.cursor.to_state())) == list(range(fail_at, length))
    ahead.close()
    assert feed_threads() == []


def test_L7_the_first_of_two_errors_counts_although_the_second_was_earlier() -> None:
    class Failing(Mover):
        def transfer(self, item: Any, /) -> Any:
            if item in (3, 4):
                if item == 3:
                    assert self.gates["4 has failed"].wait(20)
                else:
                    self.release("4 has failed")
                raise ValueError(f"planted at {item}")
            return super().transfer(item)

    ahead = stage(Script(range(9)), 6, StageLimits(threads=2), Failing(holds=["4 has failed"]))
    stream = ahead.items()
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="planted at 3"):
        next(stream)
    ahead.close()


def test_L7_an_error_of_the_gate_is_raised_at_its_place() -> None:
    class Refusing(Weigh):
        def admit(self, item: Any, /) -> Admitted | None:
            if item == 2:
                raise ValueError("planted")
            return super().admit(item)

    for limits in (StageLimits(), StageLimits(host_depth=2)):
        ahead = stage(Script(range(5)), 2, limits, gate=Refusing())
        stream = ahead.items()
        assert [next(stream), next(stream)] == [0, 1]
        with pytest.raises(ValueError, match="planted") as caught:
            next(stream)
        assert "while it moved item 2 " in caught.value.__notes__[0]
        assert ahead.cursor.skip == 0
        ahead.close()


def test_L7_none_and_exceptions_are_ordinary_items() -> None:
    items = [None, 0, StopIteration(), ValueError("an item"), None]
    with contextlib.closing(stage(Script(items), 2, StageLimits(host_depth=2, threads=2))) as ahead:
        received = list(ahead.items())
    assert len(received) == len(items)
    assert all(left is right for left, right in zip(received, items))


def wait_full(ahead: RunAhead, source: Script, pulled: int, at_work: int = 0) -> None:
    """Until, with ``pulled`` items read, all threads wait but the ``at_work`` that a mover holds."""
    feed = ahead._feed
    wait_until(lambda: len(source.journal.pulled) == pulled and feed.idle == len(feed.threads) - at_work)


@pytest.mark.parametrize(
    ("host_depth", "depth", "threads"), [(0, 1, 2), (0, 4, 3), (1, 1, 1), (1, 1, 3), (3, 2, 1), (3, 2, 2)]
)
def test_L5_each_queue_keeps_its_own_depth(host_depth: int, depth: int, threads: int) -> None:
    source, mover = Script(range(99)), Mover()
    with contextlib.closing(stage(source, depth, StageLimits(host_depth=host_depth, threads=threads), mover)) as ahead:
        stream = ahead.items()
        for item in range(4):
            assert next(stream) == item
            wait_full(ahead, source, item + 1 + host_depth + depth)
            moving = list(range(item + 1 + depth))
            wait_until(functools.partial(lambda moving: sorted(mover.begun) == moving, moving))
            stats = ahead.stats()
            assert (stats.waiting, stats.ready) == (host_depth, depth)


def test_the_host_queue_fills_while_the_device_is_busy() -> None:
    source, mover = Script(range(20)), Mover(holds=[1])
    with contextlib.closing(stage(source, 2, StageLimits(host_depth=3), mover)) as ahead:
        stream = ahead.items()
        assert next(stream) == 0
        wait_full(ahead, source, 5, at_work=1)  # 0 was taken, 1 is moving, three wait
        mover.release(1)
        assert list(stream) == list(range(1, 20))


def test_the_first_batch_comes_although_the_second_does_not() -> None:
    source = Script(range(3), block_at=1)
    with contextlib.closing(stage(source, 8, StageLimits(host_depth=8, threads=2))) as ahead:
        stream = ahead.items()
        assert next(stream) == 0
        source.gate.set()
        assert list(stream) == [1, 2]


@pytest.mark.parametrize(
    ("device_bytes", "on_device"),
    [(1, 1), (9, 1), (10, 1), (20, 2), (29, 2), (1000, 5)],
)
def test_L5_the_device_queue_keeps_its_bytes(device_bytes: int, on_device: int) -> None:
    """Batches of 10 bytes; one that is larger than the budget passes alone."""
    source, mover = Script(range(30)), Mover()
    limits = StageLimits(host_depth=2, device_bytes=device_bytes, threads=2)
    with contextlib.closing(stage(source, 5, limits, mover, gate=Weigh(10))) as ahead:
        stream = ahead.items()
        next(stream)
        wait_full(ahead, source, 1 + on_device + 2)
        stats = ahead.stats()
        assert (stats.ready, stats.ready_bytes) == (on_device, 10 * on_device)
        assert list(stream) == list(range(1, 30))


@pytest.mark.parametrize(("host_bytes", "waiting"), [(1, 1), (10, 1), (11, 2), (30, 3), (31, 4), (1000, 5)])
def test_L5_the_host_queue_keeps_its_bytes(host_bytes: int, waiting: int) -> None:
    """The size of a batch is known once it is there: the one that reaches the budget is the last."""
    source = Script(range(30))
    with contextlib.closing(
        stage(source, 1, StageLimits(host_depth=5, host_bytes=host_bytes), gate=Weigh(10))
    ) as ahead:
        stream = ahead.items()
        next(stream)
        wait_full(ahead, source, 2 + waiting)
        stats = ahead.stats()
        assert (stats.waiting, stats.waiting_bytes) == (waiting, 10 * waiting)
        assert list(stream) == list(range(1, 30))


def test_L6_close_while_all_threads_are_at_work() -> None:
    source, mover = Script(range(50)), Mover(holds=[3, 4])
    ahead = stage(source, 6, StageLimits(host_depth=3, threads=2), mover)
    stream = ahead.items()
    next(stream)
    wait_until(lambda: {3, 4} <= set(mover.begun))
    mover.release(3, 4)
    ahead.close()
    ahead.close()
    assert feed_threads() == []
    assert len(source.journal.closed_in) == mover.closed == 1
    assert list(stream) == []


def test_L6_close_gives_up_on_a_source_that_blocks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_JOIN_S", 0.05)
    source, mover = Script(range(5), block_at=1), Mover()
    ahead = stage(source, 2, StageLimits(host_depth=2, threads=2), mover)
    next(ahead.items())
    source.journal.blocked.wait()
    (thread,) = [thread for thread in feed_threads() if "transfer" not in thread.name]
    with caplog.at_level(logging.WARNING, "torchpipe"):
        ahead.close()
    assert "thread 'torchpipe stage' still runs the input of stage" in caplog.text
    assert mover.closed == 0
    source.gate.set()
    thread.join()
    assert source.journal.closed_in == [thread]  # it closes the source itself when it comes back
    assert mover.closed == 1


def test_L6_an_abandoned_pass_ends_its_threads_and_closes_the_source() -> None:
    source, mover = Script(range(100)), Mover()
    ahead: Any = stage(source, 2, StageLimits(host_depth=2, threads=3), mover)
    stream = ahead.items()
    next(stream)
    gc.disable()  # nothing needs the collector: the pass is in no cycle
    try:
        del ahead, stream
        wait_until(lambda: feed_threads() == [])
    finally:
        gc.enable()
    assert len(source.journal.closed_in) == mover.closed == 1


def test_L6_a_pass_that_failed_closes_although_its_source_still_works() -> None:
    source = Script(range(9), block_at=3)
    ahead = stage(source, 4, StageLimits(threads=2), Mover(1, ValueError("planted")))
    stream = ahead.items()
    assert next(stream) == 0
    with pytest.raises(ValueError, match="planted"):
        next(stream)
    source.gate.set()
    ahead.close()
    assert feed_threads() == []
    assert len(source.journal.closed_in) == 1


@pytest.mark.parametrize("which", ["_pull_all", "_transfer_all"])
def test_L7_a_thread_that_is_gone_becomes_an_error(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setattr(background, "_LIVENESS_S", 0.01)
    ahead = stage(Script(range(5)), 2, StageLimits(host_depth=1))
    run = ahead._feed._run
    monkeypatch.setattr(ahead._feed, "_run", lambda work: work.__name__ == which or run(work))
    with pytest.raises(WorkerDiedError, match="thread of stage is gone"):
        next(ahead.items())
    ahead.close()


class Counted:
    alive = 0

    def __init__(self) -> None:
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


class Makes(Mover):
    def transfer(self, item: Any, /) -> Any:
        super().transfer(item)
        return [Counted()]


def test_L5_batches_live_no_longer_than_the_consumer_wants() -> None:
    mover = Makes()
    ahead = stage(Script(range(20)), 2, StageLimits(host_depth=1, threads=2), mover)
    stream = ahead.items()
    for _ in range(5):
        item = next(stream)
        wait_until(lambda: Counted.alive == 3)  # two ahead and the consumer's
        del item
        wait_until(lambda: Counted.alive == 2)
    ahead.close()
    assert Counted.alive == 0


class Steps:
    """A pacer that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.syncs = self.waits = 0

    def begin(self) -> None:
        self.told.append("begin")

    def returned(self) -> None:
        self.told.append("returned")
        self.syncs += 1

    def ended(self) -> None:
        self.told.append("ended")


@pytest.mark.parametrize("depth", [0, 2])
def test_the_pacer_is_told_before_the_wait_for_the_next_item(depth: int) -> None:
    source, steps = Script(range(3), block_at=2), Steps()
    ahead = RunAhead(start(source), Stage(depth=depth, mover=Mover(), pacer=steps), SnapshotPolicy())
    stream = ahead.items()
    assert next(stream) == 0
    assert steps.told == ["begin"]
    assert next(stream) == 1
    assert steps.told == ["begin", "returned"]

    def open_gate() -> None:
        wait_until(lambda: len(steps.told) == 3)
        source.gate.set()

    opener = threading.Thread(target=open_gate)
    opener.start()
    assert list(stream) == [2]  # the source waits until the pacer has been told
    opener.join()
    assert steps.told == ["begin", "returned", "returned", "returned", "ended"]
    assert ahead.stats().syncs == 3
    ahead.close()
