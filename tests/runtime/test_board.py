"""The board: what a process noted is there after its death, under every start method, and nothing is left."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from reading_services._runtime.board import Board, BoardTrace, Slot
from tests.laws.executors import PROCESSES

BIG = 2**62 + 1


def write_and_die(board: Board, beginning: list[int]) -> None:
    beginning.append(board[Slot.INDEX])
    board[Slot.SHARD] = 3
    board[Slot.INDEX] = BIG + beginning[0]
    board[Slot.NODE] = -7
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", PROCESSES)
def test_a_process_that_is_killed_leaves_what_it_wrote(method: str) -> None:
    context = multiprocessing.get_context(method)
    board = Board()
    board[Slot.INDEX] = 5
    process: Any = context.Process(target=write_and_die, args=(board, []))  # type: ignore[attr-defined]
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    assert [board[slot] for slot in Slot] == [0, 3, BIG + 5, -7]
    board.close()


def test_a_new_board_says_that_nothing_has_begun_and_takes_no_more_than_one_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    board = Board()
    assert [board[slot] for slot in Slot] == [0, -1, 0, -1]
    assert len(set(os.listdir("/proc/self/fd")) - before) == 2  # the page's, and mmap's copy of it
    board.close()
    board.close()  # idempotent
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="released"):
        board[Slot.BEAT]


def test_a_forgotten_board_leaves_no_file() -> None:
    board = Board()
    name = os.readlink(f"/proc/self/fd/{board._fd}")
    assert name.endswith("(deleted)")
    assert not os.path.exists(name.removesuffix(" (deleted)"))
    board.close()
    del board
    gc.collect()


def test_the_innermost_node_at_work_is_noted() -> None:
    board = Board()
    trace = BoardTrace(board)
    seen: list[int] = []

    def inner() -> Iterator[int]:
        for number in range(3):
            seen.append(board[Slot.NODE])
            yield number

    def outer(source: Iterator[int]) -> Iterator[int]:
        for number in source:
            seen.append(board[Slot.NODE])
            yield number

    stream = trace.watch(outer(trace.watch(inner(), 1)), 2)
    assert next(stream) == 0
    assert seen == [1, 2]
    assert board[Slot.NODE] == -1  # the consumer is at work
    assert list(stream) == [1, 2]
    assert board[Slot.NODE] == -1
    board.close()


def test_a_traced_stream_is_closed_with_its_watcher() -> None:
    board = Board()
    closed = []

    def inner() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    stream: Any = BoardTrace(board).watch(inner(), 0)
    next(stream)
    stream.close()
    assert closed == [True]
    board.close()
