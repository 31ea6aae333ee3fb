"""Nodes and helpers for tests of what runs ahead: a scripted source that can fail, block and tell what was pulled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torchpipe.ahead.background import RunAhead
from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.host import Host
from torchpipe.node.iterator import NodeIterator
from torchpipe.state import SnapshotPolicy

__all__ = ["Journal", "Script", "feed_threads", "start", "wait_idle", "wait_until"]

DEADLINE_S = 250.0  # a little less than a test's own limit


@dataclass
class Journal:
    """What happened to a :class:`Script`, over all its passes."""

    pulled: list[int] = field(default_factory=list)
    closed_in: list[threading.Thread] = field(default_factory=list)
    blocked: threading.Event = field(default_factory=threading.Event)


class Script(IterDataPipe[Any]):
    """Yields ``items`` by index; raises ``error`` at ``fail_at`` instead, waits for ``gate`` before ``block_at``."""

    def __init__(
        self,
        items: Any,
        *,
        fail_at: int | None = None,
        error: BaseException | None = None,
        block_at: int | None = None,
        gate: threading.Event | None = None,
        extra_state: Callable[[], Any] | None = None,
    ) -> None:
        self.fail_at = fail_at
        self.block_at = block_at
        self.extra_state = extra_state
        shared = SimpleNamespace(items=items, error=error, gate=gate or threading.Event(), journal=Journal())
        self.shared = lambda: shared  # a function goes by reference into the copy that a pass works on

    @property
    def script(self) -> dict[str, Any]:
        return {"items": self.shared().items}

    @property
    def error(self) -> BaseException | None:
        return self.shared().error  # type: ignore[no-any-return]

    @property
    def gate(self) -> threading.Event:
        return self.shared().gate  # type: ignore[no-any-return]

    @property
    def journal(self) -> Journal:
        return self.shared().journal  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.script["items"])

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _ScriptIterator(self, context)


class _ScriptIterator(NodeIterator[Any]):
    node: Script

    def __init__(self, node: Script, context: Context) -> None:
        super().__init__(node, context)
        self.index = 0

    def get_state(self) -> dict[str, Any]:
        extra = self.node.extra_state
        return {"index": self.index} | ({"extra": extra()} if extra else {})

    def set_state(self, state: dict[str, Any]) -> None:
        self.index = state["index"]

    def run(self) -> Iterator[Any]:
        node, journal = self.node, self.node.journal
        items = node.script["items"]
        while self.index < len(items):
            if self.index == node.block_at:
                journal.blocked.set()
                node.gate.wait(DEADLINE_S)
            if self.index == node.fail_at and node.error is not None:
                raise node.error
            journal.pulled.append(self.index)
            self.index += 1
            yield items[self.index - 1]

    def close(self) -> None:
        if not self.pass_engine.is_closed:
            self.node.journal.closed_in.append(threading.current_thread())
        super().close()


def start(
    node: IterDataPipe[Any],
    *,
    threads: bool = True,
    every: int | None = None,
    state: dict[str, Any] | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
) -> NodeIterator[Any]:
    """A pass over ``node``, from ``state`` on; a snapshot after each ``every`` items, by cost if None."""
    context = Context.for_graph(
        node,
        seed=seed,
        host=Host(threads=threads, allow_pickle=allow_pickle, policy=lambda: SnapshotPolicy(every=every)),
    )
    iterator = context.iterate(node)
    if state is not None:
        iterator.load_state_dict(state)
    return iterator


def feed_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("torchpipe ")]


def wait_until(condition: Callable[[], bool]) -> None:
    """For what other threads do in their own time; fails shortly before the test's time is up."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def wait_idle(ahead: NodeIterator[Any] | RunAhead, depth: int) -> None:
    """Until the thread of a stage that runs ahead has filled its queue of ``depth`` items and waits for room."""
    if isinstance(ahead, RunAheadIterator):
        ahead = ahead._ahead
    assert isinstance(ahead, RunAhead)
    feed = ahead._feed
    wait_until(lambda: len(feed.ready) == depth and feed.idle)
