"""The engine that runs ahead: order, bounds, errors in their place, and an end to every wait."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources import Script, feed_threads, start, wait_idle, wait_until
from tests.warm import Warm
from torchpipe.ahead import background, waiting
from torchpipe.ahead.background import RunAhead
from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.ahead.stage import Stage
from torchpipe.errors import IteratorInvalidated, WorkerDiedError
from torchpipe.iter.running import Prefetcher
from torchpipe.state import Cursor, SnapshotPolicy

EVERY = st.sampled_from([1, 3, None])


class Mover:
    """Doubles items on their way, and says where each step ran."""

    def __init__(self, fail_at: Any = None, error: BaseException | None = None) -> None:
        self.fail_at = fail_at
        self.error = error
        self.threads: dict[str, threading.Thread] = {}
        self.closed = 0

    def prepare(self) -> None:
        self.threads["prepare"] = threading.current_thread()

    def transfer(self, item: Any, /) -> Any:
        self.threads["transfer"] = threading.current_thread()
        if self.error is not None and item == self.fail_at:
            raise self.error
        return [item]

    def receive(self, moved: Any, /) -> Any:
        self.threads["receive"] = threading.current_thread()
        return moved[0] * 2

    def close(self) -> None:
        self.closed += 1


def run_ahead(node: Script, depth: int, mover: Mover | None = None) -> RunAhead:
    return RunAhead(start(node), Stage(depth=depth, mover=mover), SnapshotPolicy(every=1), "stage")


def resumed(source: Script, cursor: Cursor) -> list[Any]:
    return list(start(source, state=cursor.to_state()))


def ahead_of(iterator: Any) -> RunAhead:
    assert isinstance(iterator, RunAheadIterator)
    return iterator._ahead


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_items_are_moved_and_handed_out_in_order(depth: int) -> None:
    mover = Mover()
    ahead = run_ahead(Script(range(50)), depth, mover)
    assert list(ahead.items()) == [2 * value for value in range(50)]
    here = threading.current_thread()
    assert mover.threads["prepare"] is mover.threads["receive"] is here
    assert (mover.threads["transfer"] is here) == (depth == 0)
    assert ahead.stats().items == 50
    ahead.close()
    ahead.close()
    assert mover.closed == 1


@given(depth=st.integers(1, 9), taken=st.integers(0, 12))
def test_L5_no_more_than_depth_items_are_ahead(depth: int, taken: int) -> None:
    source = Script(range(100))
    with start(Prefetcher(source, depth)) as iterator:
        if taken:
            assert [next(iterator) for _ in range(taken)] == list(range(taken))
            wait_idle(iterator, depth)
        assert len(source.journal.pulled) == (taken + depth if taken else 0)


def test_the_first_item_comes_although_the_second_does_not() -> None:
    source = Script(range(3), block_at=1)
    with start(Prefetcher(source, 10)) as iterator:
        assert next(iterator) == 0
        assert ahead_of(iterator).stats().items == 1
        source.gate.set()
        assert list(iterator) == [1, 2]


@given(items=st.lists(st.sampled_from([None, 0, StopIteration(), ValueError("an item"), KeyboardInterrupt()])))
def test_L7_none_and_exceptions_are_ordinary_items(items: list[Any]) -> None:
    for depth in (0, 3):
        with contextlib.closing(run_ahead(Script(items), depth)) as ahead:
            received = list(ahead.items())
        assert len(received) == len(items)
        assert all(left is right for left, right in zip(received, items))


class Unusual(BaseException):
    pass


@given(
    length=st.integers(1, 12),
    fail_at=st.integers(0, 11),
    depth=st.integers(0, 5),
    in_mover=st.booleans(),
    kind=st.sampled_from([ValueError, KeyboardInterrupt, SystemExit, Unusual, GeneratorExit]),
)
def test_L7_an_error_is_raised_at_its_place(
    length: int, fail_at: int, depth: int, in_mover: bool, kind: type[BaseException]
) -> None:
    fail_at %= length
    error = kind("planted")
    source = Script(range(length)) if in_mover else Script(range(length), fail_at=fail_at, error=error)
    ahead = run_ahead(source, depth, Mover(fail_at, error) if in_mover else Mover())
    stream = ahead.items()
    assert [next(stream) for _ in range(fail_at)] == [2 * value for value in range(fail_at)]
    with pytest.raises(kind) as caught:
        next(stream)
    assert caught.value is error
    assert resumed(Script(range(length)), ahead.cursor) == list(range(fail_at, length))
    assert list(stream) == []
    assert resumed(Script(range(length)), ahead.cursor) == list(range(fail_at, length))
    ahead.close()


def test_an_error_keeps_its_traceback_and_says_where_it_was() -> None:
    node = Prefetcher(Script(range(5), fail_at=3, error=ValueError("planted")), 2)
    with start(node) as iterator, pytest.raises(ValueError, match="planted") as caught:
        list(iterator)
    text = "".join(traceback.format_exception(caught.value))
    assert "sources.py" in text  # the source's own frame
    assert "raised in the thread of Prefetcher, while it pulled item 3 since its start or restore" in text


@pytest.mark.parametrize("depth", [0, 2])
def test_L7_a_mover_that_raises_stop_iteration_does_not_end_the_stream(depth: int) -> None:
    ahead = run_ahead(Script(range(5)), depth, Mover(3, StopIteration()))
    stream = ahead.items()
    assert [next(stream) for _ in range(3)] == [0, 2, 4]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(stream)
    ahead.close()


def test_L6_close_before_the_start_closes_the_source() -> None:
    source = Script(range(5))
    start(Prefetcher(source, 2)).close()
    assert source.journal.closed_in == [threading.current_thread()]


def test_L6_close_while_the_thread_waits_for_room() -> None:
    source = Script(range(5))
    iterator = start(Prefetcher(source, 2))
    next(iterator)
    wait_idle(iterator, 2)
    iterator.close()
    assert feed_threads() == []
    assert source.journal.pulled == [0, 1, 2]  # nothing more once it was asked to stop
    assert len(source.journal.closed_in) == 1
    assert list(iterator) == []


@given(length=st.integers(0, 6), taken=st.integers(0, 6), depth=st.integers(1, 4))
def test_L6_close_at_any_position_ends_the_thread_and_closes_the_source_once(
    length: int, taken: int, depth: int
) -> None:
    source = Script(range(length))
    iterator = start(Prefetcher(source, depth))
    received = [item for item, _ in zip(iterator, range(taken))]
    iterator.close()
    iterator.close()
    assert received == list(range(length))[:taken]
    assert feed_threads() == []
    assert len(source.journal.closed_in) == 1


def test_L6_close_gives_up_on_a_source_that_blocks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_JOIN_S", 0.05)
    source = Script(range(5), block_at=1)
    iterator = start(Prefetcher(source, 2))
    next(iterator)
    source.journal.blocked.wait()
    (thread,) = feed_threads()
    with caplog.at_level(logging.WARNING, "torchpipe"):
        iterator.close()
    assert "'torchpipe Prefetcher' still runs the input of Prefetcher" in caplog.text
    assert source.journal.closed_in == []
    source.gate.set()
    thread.join()
    assert source.journal.closed_in == [thread]  # it closes the source itself when it comes back


def test_L6_closing_a_stage_wakes_a_stage_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Script(range(5), block_at=1)
    inner = Prefetcher(source, 2)
    iterator = start(Prefetcher(inner, 2))
    next(iterator)
    source.journal.blocked.wait()
    (outer_thread,) = ahead_of(iterator)._feed.threads
    monkeypatch.setattr(waiting, "_JOIN_S", 0.2)
    iterator.close()
    outer_thread.join()
    assert not outer_thread.is_alive()
    source.gate.set()
    wait_until(lambda: feed_threads() == [])
    assert len(source.journal.closed_in) == 1


def test_an_interrupted_wait_ends_with_an_error() -> None:
    source = Script(range(5), block_at=1)
    iterator = start(Prefetcher(source, 2))
    next(iterator)

    def interrupt() -> None:
        source.journal.blocked.wait()
        iterator.interrupt()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(IteratorInvalidated, match="stopped from another thread"):
        next(iterator)
    interrupter.join()
    source.gate.set()
    iterator.close()


@pytest.mark.parametrize("place", [1, 2])
def test_L7_without_a_thread_an_interrupt_forgets_no_item_in_silence(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's comes between the pull of an item and its handing out: neither an item nor an end follows."""
    ahead = run_ahead(Script(range(3)), 0)
    pull = ahead._feed.pull
    pulled = []

    def pull_and_be_interrupted(stream: Any) -> bool:
        more = pull(stream)
        if more:
            pulled.append(more)
            if len(pulled) == place + 1:
                ahead.interrupt()
        return more

    monkeypatch.setattr(ahead._feed, "pull", pull_and_be_interrupted)
    found = []
    with pytest.raises(IteratorInvalidated, match="stopped from another thread"):
        for item in ahead.items():
            found.append(item)
    assert found == list(range(place))
    ahead.close()


@pytest.mark.parametrize("collect", [False, True])
def test_L6_an_abandoned_iterator_ends_its_thread(collect: bool) -> None:
    source = Script(range(100))
    iterator: Any = start(Prefetcher(source, 2))
    next(iterator)
    (thread,) = feed_threads()
    if collect:
        iterator.cycle = iterator
    else:
        gc.disable()  # nothing needs the collector: the pass is in no cycle
    try:
        del iterator
        if collect:
            gc.collect()
        thread.join()
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert source.journal.closed_in == [thread]


def test_L6_an_abandoned_loop_ends_its_thread() -> None:
    for item in start(Prefetcher(Script(range(100)), 2)):
        if item == 3:
            break
    wait_until(lambda: feed_threads() == [])


def test_L7_a_thread_that_is_gone_becomes_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LIVENESS_S", 0.01)
    iterator = start(Prefetcher(Script(range(5)), 2))
    monkeypatch.setattr(ahead_of(iterator)._feed, "_run", lambda work: None)
    with pytest.raises(WorkerDiedError, match="thread of Prefetcher is gone"):
        next(iterator)
    iterator.close()


def test_L6_ctrl_c_while_waiting_leaves_all_closable_and_the_state_exact() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    source = Script(range(5), block_at=2)
    iterator = start(Prefetcher(source, 2))
    assert [next(iterator), next(iterator)] == [0, 1]
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    state = iterator.state_dict()
    source.gate.set()
    iterator.close()
    assert feed_threads() == []
    assert list(start(Script(range(5)), state=state)) == [2, 3, 4]


@pytest.mark.parametrize("started", [False, True])
def test_an_error_while_closing_is_raised_by_close(started: bool) -> None:
    class Stubborn(Mover):
        def close(self) -> None:
            raise OSError("planted")

    ahead = run_ahead(Script(range(50)), 2, Stubborn())
    if started:
        next(ahead.items())
    with pytest.raises(OSError, match="planted"):
        ahead.close()
    ahead.close()


class Counted:
    alive = 0

    def __init__(self) -> None:
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


class Makes(Mover):
    """Every item becomes a :class:`Counted`."""

    def transfer(self, item: Any, /) -> Any:
        return Counted()

    def receive(self, moved: Any, /) -> Any:
        return moved


def test_L5_items_live_no_longer_than_the_consumer_wants() -> None:
    ahead = run_ahead(Script(range(20)), 2, Makes())
    stream = ahead.items()
    for _ in range(5):
        item = next(stream)
        wait_idle(ahead, 2)
        assert Counted.alive == 3  # two ahead and the consumer's
        del item
        assert Counted.alive == 2
    ahead.close()
    assert Counted.alive == 0


def alive_now() -> int:
    """How many items there are. Without the interpreter's lock, what another thread lets go of may be freed by the
    thread that made it, once that runs again; or by the collector."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        gc.collect()
    return Counted.alive


def test_L5_a_thread_that_waits_for_its_source_holds_no_item() -> None:
    source = Script(range(9), block_at=2)
    ahead = run_ahead(source, 5, Makes())
    stream = ahead.items()
    next(stream)
    source.journal.blocked.wait()
    assert alive_now() == 1
    next(stream)
    assert alive_now() == 0
    source.gate.set()
    ahead.close()


def test_stats_say_who_waited() -> None:
    source = Script(range(4), block_at=2)
    with start(Prefetcher(source, 1)) as iterator:
        assert isinstance(iterator, RunAheadIterator)
        assert [next(iterator), next(iterator)] == [0, 1]
        feed = ahead_of(iterator)._feed

        def let_go() -> None:
            wait_until(lambda: feed.consumer_waits)
            time.sleep(0.05)
            source.gate.set()

        helper = threading.Thread(target=let_go)
        helper.start()
        next(iterator)
        helper.join()
        wait_until(lambda: iterator.stats().ready == 1)
        stats = iterator.stats()
    assert stats.items == 3
    assert stats.consumer_wait_s >= 0.05


SCRIPT = """
import os, sys, threading
sys.path.insert(0, {root!r})
from tests.sources import Script, start
from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.iter.running import Prefetcher
iterator = start(Prefetcher(Script(range(10), block_at=4), 2))
print([next(iterator) for _ in range(2)], flush=True)
"""

FORKED = """
# A lock held at the fork stays locked in the child.
held, release, changed = threading.Event(), threading.Event(), iterator._ahead._feed.changed
def hold():
    with changed:
        held.set()
        release.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    try:
        list(iterator)
    except Exception as error:
        print(type(error).__name__, flush=True)
    iterator.close()
    del iterator
    print("closed", flush=True)
    os._exit(7)
release.set()
holder.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
iterator.node.source.gate.set()
print(list(iterator))
"""

EXITING = """
gate = iterator.node.source.gate
iterator.node.source.journal.blocked.wait() if next(iterator) == 2 else None
threading.Timer(0.3, gate.set).start()
import atexit
atexit.register(lambda: print("last"))
"""


def script_of(rest: str, root: str) -> str:
    # What newer Pythons say of a fork in a process with threads, which is what is tested here
    quiet = "import warnings\nwarnings.filterwarnings('ignore', 'This process', DeprecationWarning)\n"
    return quiet + SCRIPT.format(root=root) + rest


def test_L7_a_forked_copy_raises_and_the_parent_goes_on(
    warm: Warm, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    script = tmp_path / "script.py"
    script.write_text(script_of(FORKED, str(pytestconfig.rootpath)))
    done = warm.run([str(script)], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.split("\n")
    assert lines == ["[0, 1]", "WorkerDiedError", "closed", "7", "[2, 3, 4, 5, 6, 7, 8, 9]", ""]


def test_L6_a_process_exits_cleanly_while_a_thread_is_in_user_code(pytestconfig: pytest.Config) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", script_of(EXITING, str(pytestconfig.rootpath))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["[0, 1]", "last", ""]
