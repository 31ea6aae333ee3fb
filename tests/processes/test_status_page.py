"""The page of shared memory: written by one process, read by another, also after the writer was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from reading_services.processes.status_page import Field, PageTrace, StatusPage
from tests import leaks
from tests.laws.executors import PROCESSES
from tests.sources import wait_until
from torchpipe.stats.sheet import IDLE, STARTING


def fields(page: StatusPage) -> list[int]:
    return [page[field] for field in Field]


@pytest.fixture
def page() -> Iterator[StatusPage]:
    page = StatusPage()
    yield page
    page.close()


def test_a_fresh_board_says_that_nothing_has_begun(page: StatusPage) -> None:
    assert fields(page) == [0, -1, 0, 1, -1, 0, 0, 0]
    for field in Field:
        page[field] = 7 + field
    assert fields(page) == [7, 8, 9, 10, 11, 12, 13, 14]
    page.clear()
    assert fields(page) == [0, -1, 0, 1, -1, 0, 0, 14]  # whether each item is looked at is the main process's to say


def test_items_are_begun_when_they_are_made_and_not_on_the_way_there(page: StatusPage) -> None:
    page.skipping_to(2, 17)
    assert fields(page)[:-2] == [0, 2, 17, 1, -1, 0]
    with page.waiting():
        assert not page[Field.BEGUN]
    assert not page[Field.BEGUN]  # it had not begun before
    page.making(2, 17, 4)
    begun = page[Field.BEGUN]
    assert fields(page)[:-3] == [0, 2, 17, 4, -1]
    assert begun > 0
    with page.waiting():
        assert not page[Field.BEGUN]
        assert page[Field.INDEX] == 17
    assert page[Field.BEGUN] >= begun
    page.idle()
    assert page[Field.LANE] == -1


def test_each_item_that_is_made_or_made_again_is_a_step_and_waiting_for_others_is_none(page: StatusPage) -> None:
    page.times.turn_to(IDLE)
    assert page.step is None
    steps = []
    page.times.turn_to(STARTING)
    steps.append(page.step)
    for _ in range(2):
        page.remade()
        steps.append(page.step)
    page.making(0, 0, 1)
    steps.append(page.step)
    with page.waiting():
        assert page.step is None
    steps.append(page.step)
    assert None not in steps
    assert len(set(steps)) == len(steps)


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 2**63 - 1])
def test_slots_hold_64_bits(page: StatusPage, value: int) -> None:
    page[Field.INDEX] = value
    assert page[Field.INDEX] == value
    assert page[Field.COUNT] == 1  # the neighbours are untouched
    assert page[Field.NODE] == -1
    assert page[Field.LANE] == -1


def write_until_killed(page: StatusPage) -> None:
    page[Field.LANE] = 3
    page[Field.NODE] = 5
    while True:
        page[Field.INDEX] += 1


@pytest.mark.parametrize("method", PROCESSES)
def test_what_a_killed_process_had_noted_stays_readable(page: StatusPage, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    writer = context.Process(target=write_until_killed, args=(page,), daemon=True)
    writer.start()
    wait_until(lambda: page[Field.INDEX] > 1000)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    writer.close()
    noted = fields(page)
    assert noted[Field.LANE] == 3
    assert noted[Field.NODE] == 5
    assert noted[Field.INDEX] > 1000
    assert fields(page) == noted


def answer(page: StatusPage) -> None:
    wait_until(lambda: page[Field.BEAT] == 1)
    page[Field.INDEX] = os.getpid()
    page.close()
    page.close()


def test_both_sides_see_what_the_other_writes(page: StatusPage) -> None:
    process = multiprocessing.get_context("fork").Process(target=answer, args=(page,))
    process.start()
    assert page[Field.INDEX] == 0
    page[Field.BEAT] = 1
    process.join()
    assert page[Field.INDEX] == process.pid
    assert process.exitcode == 0
    process.close()


def test_two_boards_are_two_pages() -> None:
    one, two = StatusPage(), StatusPage()
    one[Field.INDEX] = 4
    assert two[Field.INDEX] == 0
    one.close()
    two[Field.INDEX] = 5
    assert two[Field.INDEX] == 5
    two.close()


def test_closing_leaves_nothing() -> None:
    before = leaks.Footprint.take()
    pages = [StatusPage() for _ in range(20)]
    assert leaks.left_since(before)
    for page in pages:
        page.close()
        page.close()  # idempotent
    assert leaks.left_since(before) == []
    for use in (lambda: pages[0][Field.BEAT], pages[0].clear):
        with pytest.raises(ValueError, match="released"):
            use()


# -- the node at work --------------------------------------------------------------------------------------------------


def test_the_trace_notes_the_innermost_node_at_work(page: StatusPage) -> None:
    trace = PageTrace(page)
    noted = []

    def inner() -> Iterator[int]:
        for number in range(3):
            noted.append(page[Field.NODE])
            yield number

    def outer() -> Iterator[int]:
        for number in trace.watch(inner(), 1):
            noted.append(page[Field.NODE])
            yield number

    assert list(trace.watch(outer(), 2)) == [0, 1, 2]
    assert noted == [1, 2] * 3
    assert page[Field.NODE] == -1


def test_the_trace_forgets_a_node_that_raised(page: StatusPage) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    stream = PageTrace(page).watch(failing(), 4)
    assert next(stream) == 1
    assert page[Field.NODE] == -1
    with pytest.raises(ValueError, match="broken"):
        next(stream)
    assert page[Field.NODE] == -1


def test_the_trace_closes_what_it_watches(page: StatusPage) -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.append(True)

    stream: Any = PageTrace(page).watch(source(), 0)
    next(stream)
    stream.close()
    assert closed == [True]
