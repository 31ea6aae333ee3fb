"""Timing the nodes of a pass: what is counted, what it costs, and that nothing else changes."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context
from torchpipe.node.host import Host
from torchpipe.stats import tracing
from torchpipe.stats.sheet import ERRORS, ITEMS, SELF_NS, Figures, NodeSheet, bucket_of
from torchpipe.stats.tracing import UNTIMED, ThreadTracing, Tracing

BUSY_S = 0.002


def burn(item: Any) -> Any:
    until = time.perf_counter() + BUSY_S
    while time.perf_counter() < until:
        pass
    return item


def traced(graph: Any) -> tuple[Iterator[Any], NodeSheet, Tracing]:
    sheet = NodeSheet.local(10)
    tracer = Tracing(sheet)
    return Context.for_graph(graph, seed=1, host=Host(trace=tracer)).iterate(graph).items(), sheet, tracer


def test_each_node_is_charged_with_its_own_time() -> None:
    began = time.perf_counter()
    stream, sheet, _ = traced(IterableWrapper(range(30)).map(lambda item: item).map(burn).batch(5))
    assert [list(batch) for batch in stream][0] == [0, 1, 2, 3, 4]
    elapsed_s = time.perf_counter() - began
    figures = sheet.read()
    assert [item[ITEMS] for item in figures[:4]] == [30, 30, 30, 6]
    own_s = [item[SELF_NS] / 1e9 for item in figures[:4]]
    assert own_s[2] >= 30 * BUSY_S
    assert sum(own_s) <= elapsed_s  # nobody is charged with what another one did, at whatever moment the process waits
    assert (figures[2].quantile(0.9) or 0) >= 0.9 * BUSY_S


def test_an_exception_is_counted_where_it_was_raised() -> None:
    stream, sheet, _ = traced(IterableWrapper(range(3)).map(lambda item: 1 // (item - 1)).map(burn))
    assert next(stream) == -1
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert [item[ERRORS] for item in sheet.read()[:3]] == [0, 1, 0]
    assert next(stream, "over") == "over"


def test_what_waits_for_others_is_nobodys_time() -> None:
    sheet = NodeSheet.local(1)
    tracer = Tracing(sheet)

    def outer(inner: Iterator[int]) -> Iterator[int]:
        yield from inner

    began = time.perf_counter()
    assert list(tracer.watch(outer(tracer.watch(map(burn, range(5)), UNTIMED)), 0)) == [0, 1, 2, 3, 4]
    elapsed_s = time.perf_counter() - began
    assert sheet.read()[0][SELF_NS] / 1e9 <= elapsed_s - 5 * BUSY_S


def test_quick_items_are_timed_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_AT_FIRST_NS", 100_000)
    stream, sheet, tracer = traced(IterableWrapper(range(100_000)).map(lambda item: item + 1))
    assert list(stream) == list(range(1, 100_001))
    assert not tracer.wanted
    timed = [item[ITEMS] for item in sheet.read()[:2]]
    assert 0 < timed[1] <= timed[0] < 50_000


def test_waiting_for_others_makes_timing_no_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the time that nodes take: who waits for the consumer may have no core to spare once it runs."""
    monkeypatch.setattr(tracing, "_AT_FIRST_NS", 100_000)
    stream, _, tracer = traced(IterableWrapper(range(2_000)).map(lambda item: item + 1))
    assert next(stream) == 1
    time.sleep(0.3)  # the consumer is at something else
    assert len(list(stream)) == 1_999
    assert not tracer.wanted


def test_a_traced_item_lives_as_long_as_its_taker_wants() -> None:
    class Large:
        pass

    stream, _, _ = traced(IterableWrapper(range(2)).map(lambda _: Large()))
    item = next(stream)
    alive = weakref.ref(item)
    del item
    assert alive() is None


def test_closing_a_pass_closes_what_is_traced() -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.append(True)

    sheet = NodeSheet.local(1)
    stream: Any = Tracing(sheet).watch(source(), 0)
    next(stream)
    stream.close()
    assert closed == [True]


def test_threads_have_a_tracing_each() -> None:
    sheet = NodeSheet.local(2)
    tracer = ThreadTracing(sheet)
    assert list(tracer.watch(iter(range(3)), 1)) == [0, 1, 2]
    tracer.wanted = False
    plain = iter(range(3))
    assert tracer.watch(plain, 1) is plain
    assert sheet.read()[1][ITEMS] == 3


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=30), st.floats(0.01, 1))
def test_as_many_items_as_it_says_took_no_longer_than_a_quantile(durations: list[int], part: float) -> None:
    sheet = NodeSheet.local(1)
    for duration_ns in durations:
        sheet.note(0, duration_ns)
    value_ns = round(1e9 * (sheet.read()[0].quantile(part) or 0))
    exact_ns = sorted(durations)[math.ceil(part * len(durations)) - 1]
    assert exact_ns <= value_ns <= max(128, exact_ns * 1.126)


def test_durations_fall_into_buckets_of_an_eighth_or_less() -> None:
    sheet = NodeSheet.local(1)
    for duration_ns in (50, 200, 1_000, 123_456, 10**9, 10**15):
        figures = Figures()
        figures.cells[bucket_of(duration_ns)] += 1
        value_s = figures.quantile(0.5)
        assert value_s is not None
        if 128 <= duration_ns < 10**12:
            assert value_s == pytest.approx(duration_ns / 1e9, rel=0.13)
    sheet.note(0, 1_000, items=4)
    assert sheet.read()[0][ITEMS] == 4
    assert Figures().quantile(0.9) is None


def test_who_can_change_over_pulls_past_what_is_left_of_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_AT_FIRST_NS", 100_000)
    stream, _, tracer = traced(IterableWrapper(range(10_000)).map(lambda item: item + 1))
    taken = [next(stream)]
    assert tracer.plain(stream) is stream
    while tracer.wanted:
        taken.append(next(stream))
    plain = tracer.plain(stream)
    assert plain is not stream
    assert taken + list(plain) == list(range(1, 10_001))
    assert tracer.plain(plain) is plain


def test_what_fills_a_buffer_does_not_end_the_timing() -> None:
    """It speaks for nothing that follows, and who waits for it would be charged with what follows."""

    def buffered() -> Iterator[int]:
        yield from list(inner)

    tracer = Tracing(NodeSheet.local(2))
    tracer._cost_ns = 10_000  # as on a busy machine
    inner = tracer.watch(iter(range(10_000)), 0)
    outer = tracer.watch(buffered(), 1)
    next(outer)
    assert tracer.wanted
    assert len(list(outer)) == 9_999
    assert not tracer.wanted
