"""The page of shared memory: written by one process, read by another, also after the writer was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from reading_services._runtime.board import Board, BoardTrace, Slot
from tests import leaks
from tests.laws.executors import PROCESSES
from tests.sources import wait_until


def slots(board: Board) -> list[int]:
    return [board[slot] for slot in Slot]


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board()
    yield board
    board.close()


def test_a_fresh_board_says_that_nothing_has_begun(board: Board) -> None:
    assert slots(board) == [0, -1, 0, 1, -1, 0]
    for slot in Slot:
        board[slot] = 7 + slot
    assert slots(board) == [7, 8, 9, 10, 11, 12]
    board.clear()
    assert slots(board) == [0, -1, 0, 1, -1, 0]


def test_items_are_begun_when_they_are_made_and_not_on_the_way_there(board: Board) -> None:
    board.approach(2, 17)
    assert slots(board) == [0, 2, 17, 1, -1, 0]
    with board.waiting():
        assert not board[Slot.BEGUN]
    assert not board[Slot.BEGUN]  # it had not begun before
    board.begin(2, 17, 4)
    begun = board[Slot.BEGUN]
    assert slots(board)[:-1] == [0, 2, 17, 4, -1]
    assert begun > 0
    with board.waiting():
        assert not board[Slot.BEGUN]
        assert board[Slot.INDEX] == 17
    assert board[Slot.BEGUN] >= begun
    board.rest()
    assert board[Slot.LANE] == -1


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 2**63 - 1])
def test_slots_hold_64_bits(board: Board, value: int) -> None:
    board[Slot.INDEX] = value
    assert board[Slot.INDEX] == value
    assert board[Slot.COUNT] == 1  # the neighbours are untouched
    assert board[Slot.NODE] == -1
    assert board[Slot.LANE] == -1


def write_until_killed(board: Board) -> None:
    board[Slot.LANE] = 3
    board[Slot.NODE] = 5
    while True:
        board[Slot.INDEX] += 1


@pytest.mark.parametrize("method", PROCESSES)
def test_what_a_killed_process_had_noted_stays_readable(board: Board, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    writer = context.Process(target=write_until_killed, args=(board,), daemon=True)
    writer.start()
    wait_until(lambda: board[Slot.INDEX] > 1000)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    writer.close()
    noted = slots(board)
    assert noted[Slot.LANE] == 3
    assert noted[Slot.NODE] == 5
    assert noted[Slot.INDEX] > 1000
    assert slots(board) == noted


def answer(board: Board) -> None:
    wait_until(lambda: board[Slot.BEAT] == 1)
    board[Slot.INDEX] = os.getpid()
    board.close()
    board.close()


def test_both_sides_see_what_the_other_writes(board: Board) -> None:
    process = multiprocessing.get_context("fork").Process(target=answer, args=(board,))
    process.start()
    assert board[Slot.INDEX] == 0
    board[Slot.BEAT] = 1
    process.join()
    assert board[Slot.INDEX] == process.pid
    assert process.exitcode == 0
    process.close()


def test_two_boards_are_two_pages() -> None:
    one, two = Board(), Board()
    one[Slot.INDEX] = 4
    assert two[Slot.INDEX] == 0
    one.close()
    two[Slot.INDEX] = 5
    assert two[Slot.INDEX] == 5
    two.close()


def test_closing_leaves_nothing() -> None:
    before = leaks.Footprint.take()
    boards = [Board() for _ in range(20)]
    assert leaks.left_since(before)
    for board in boards:
        board.close()
        board.close()  # idempotent
    assert leaks.left_since(before) == []
    for use in (lambda: boards[0][Slot.BEAT], boards[0].clear):
        with pytest.raises(ValueError, match="released"):
            use()


# -- the node at work --------------------------------------------------------------------------------------------------


def test_the_trace_notes_the_innermost_node_at_work(board: Board) -> None:
    trace = BoardTrace(board)
    noted = []

    def inner() -> Iterator[int]:
        for number in range(3):
            noted.append(board[Slot.NODE])
            yield number

    def outer() -> Iterator[int]:
        for number in trace.watch(inner(), 1):
            noted.append(board[Slot.NODE])
            yield number

    assert list(trace.watch(outer(), 2)) == [0, 1, 2]
    assert noted == [1, 2] * 3
    assert board[Slot.NODE] == -1


def test_the_trace_forgets_a_node_that_raised(board: Board) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    stream = BoardTrace(board).watch(failing(), 4)
    assert next(stream) == 1
    assert board[Slot.NODE] == -1
    with pytest.raises(ValueError, match="broken"):
        next(stream)
    assert board[Slot.NODE] == -1


def test_the_trace_closes_what_it_watches(board: Board) -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.append(True)

    stream: Any = BoardTrace(board).watch(source(), 0)
    next(stream)
    stream.close()
    assert closed == [True]
