"""Kills at drawn positions of a stream, and the pass over a loader during which they are carried out."""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.laws.executors import pids

__all__ = ["Kill", "kills_in", "run_with_kills"]


class Kill(NamedTuple):
    """Before which item of which epoch (or after its last one), which of the processes, and how."""

    epoch: int
    item: int
    victim: int
    how: str


def kills_in(streams: list[list[str]], most: int) -> st.SearchStrategy[list[Kill]]:
    """Up to ``most`` kills in the epochs ``streams``. The first one is not in the last epoch, so that somebody misses
    the process that it kills: one that dies after all that it had to do is not replaced."""

    def in_epoch(number: int) -> st.SearchStrategy[Kill]:
        how = st.sampled_from(["SIGKILL", "SIGSEGV", "SIGTERM"])
        return st.builds(Kill, st.just(number), st.integers(0, len(streams[number])), st.integers(0, 3), how)

    first = st.one_of([in_epoch(number) for number in range(len(streams) - 1)])
    more = st.lists(st.one_of([in_epoch(number) for number in range(len(streams))]), max_size=most - 1)
    return st.builds(lambda kill, others: [kill, *others], first, more)


def run_with_kills(loader: Any, epochs: int, kills: list[Kill]) -> list[list[str]]:
    """The streams of the first epochs, as text. Raises AssertionError if no process had to be replaced."""

    def strike(epoch: int, item: int) -> None:
        running = pids(loader)
        for kill in kills:
            if (kill.epoch, kill.item) == (epoch, item) and running:
                try:
                    os.kill(running[kill.victim % len(running)], getattr(signal, kill.how))
                except ProcessLookupError:
                    pass

    streams: list[list[str]] = []
    for epoch in range(epochs):
        iterator = iter(loader)
        streams.append([])
        strike(epoch, 0)
        for item in iterator:
            streams[-1].append(repr(item))
            strike(epoch, len(streams[-1]))
    assert loader.reading_service.restarts > 0, "nobody was missed"
    return streams
