"""A batch that a forked child holds stays what it was, whatever the parent does; later its memory is used again."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from reading_services.processes.arena import Arena, Fork, SlotReader, SlotWriter
from torchpipe import DataLoader

SIZE = 100_000
FORK: Any = multiprocessing.get_context("fork")


class Child:
    """A forked process that holds ``seen``, and says which values are in it each time it is asked.

    Without torch's threads, which a forked process does not have.
    """

    def __init__(self, seen: Any) -> None:
        self.ours, theirs = FORK.Pipe()
        self.process = FORK.Process(target=self.answer, args=(seen, theirs))
        self.process.start()
        theirs.close()

    def answer(self, seen: Any, theirs: Connection) -> None:
        self.ours.close()
        while theirs.recv():
            theirs.send(sorted({int(value) for value in np.asarray(seen).flat}))

    def looks(self) -> Any:
        self.ours.send(True)
        return self.ours.recv()

    def end(self) -> None:
        self.ours.send(False)
        self.process.join()
        assert self.process.exitcode == 0
        self.process.close()
        self.ours.close()


# -- of a loader ------------------------------------------------------------------------------


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SIZE,), index)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_batch_of_a_forked_child_stays_what_it_was(persistent: bool) -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, persistent_workers=persistent)
    children, seen = [], []
    for number, batch in enumerate(loader):
        seen.append(batch[:, 0].tolist())
        if number < 3:
            children.append(Child(batch))
    expected = [[first, first + 1] for first in range(0, 40, 2)]
    assert seen == expected
    assert [child.looks() for child in children] == expected[:3]
    loader.shutdown()
    gc.collect()
    assert [child.looks() for child in children] == expected[:3]
    for child in children:
        child.end()


class Holding(Dataset[int]):
    """Of a second loader, whose forked workers have a batch of the first one."""

    def __init__(self, batch: torch.Tensor) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return int(self.batch.numpy().max())


def test_workers_of_a_second_loader_hold_a_batch() -> None:
    with DataLoader(Numbers(), batch_size=1, num_workers=1) as first:
        stream = iter(first)
        held = Holding(next(stream))
        options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
        with DataLoader(held, **options) as second:
            assert [int(number) for number in second] == [0, 0, 0]
            del held.batch
            assert len(list(stream)) == 39  # whose memory is used again and again
            assert [int(number) for number in second] == [0, 0, 0]


# -- of slots ---------------------------------------------------------------------------------


@pytest.fixture
def slots() -> Iterator[tuple[Arena, SlotWriter, SlotReader]]:
    arena = Arena()
    both = SlotWriter(arena), SlotReader(arena)
    yield arena, *both
    for end in both:
        vars(end).clear()
    arena.close()


def filled(writer: SlotWriter, reader: SlotReader, content: int) -> torch.Tensor:
    slot = writer.allocate(4096)
    assert slot is not None
    slot.memory[:] = bytes([content]) * 4096
    view = torch.frombuffer(reader.lease(slot.index, slot.offset, 4096), dtype=torch.uint8)
    reader.opened(slot.index)
    return view


def test_a_slot_is_used_again_when_the_child_has_ended(slots: tuple[Arena, SlotWriter, SlotReader]) -> None:
    arena, writer, reader = slots
    view = filled(writer, reader, 1)
    first, second = Child(view), Child(view)
    assert reader.held == 1
    del view
    assert reader.held == 1  # whoever takes more of them gets copies in the end
    for content in (2, 3):
        filled(writer, reader, content)
    assert arena.flags[0] == 1
    assert (first.looks(), second.looks()) == ([1], [1])
    first.end()
    filled(writer, reader, 4)
    assert (arena.flags[0], second.looks()) == (1, [1])
    second.end()
    filled(writer, reader, 5)
    assert (arena.flags[0], reader.held) == (0, 0)


def test_what_was_let_go_of_before_a_fork_is_free(slots: tuple[Arena, SlotWriter, SlotReader]) -> None:
    arena, writer, reader = slots
    filled(writer, reader, 1)
    child = Child(())
    filled(writer, reader, 2)
    assert arena.flags[0] == 0
    child.end()


def test_a_closed_reader_keeps_no_memory_but_the_childs(slots: tuple[Arena, SlotWriter, SlotReader]) -> None:
    arena, writer, reader = slots

    def used() -> int:
        return os.fstat(arena.fd).st_blocks * 512

    views = [filled(writer, reader, content) for content in range(20)]
    kept = views[2]
    views.clear()  # else the child has them all
    child = Child(kept)
    assert used() >= 20 * 4096
    reader.close()
    del kept
    assert used() <= 4 * 4096
    assert child.looks() == [2]
    child.end()


def test_what_is_made_in_a_slot_is_copied_where_a_child_looks_at_it(
    slots: tuple[Arena, SlotWriter, SlotReader],
) -> None:
    _, writer, _ = slots
    made = writer.reserve(4096)
    made[:] = 7
    found = writer.find(memoryview(made))
    assert found is not None
    child = Child(made)
    del made
    assert found[0].open
    again = writer.reserve(4096)
    again[:] = 8
    assert child.looks() == [7]
    child.end()
    assert not found[0].open


def with_a_child_of_its_own(fork: Fork, connection: Connection) -> None:
    """Send the child's pid and end; the child ends when it is told to."""
    fork.go_on_in_child()
    pid = os.fork()
    if pid:
        connection.send(pid)
        os._exit(0)
    connection.recv()
    os.execv("/bin/sleep", ["sleep", "60"])


def test_a_fork_is_over_with_its_last_child_or_when_that_runs_another_program() -> None:
    fork = Fork()
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=with_a_child_of_its_own, args=(fork, theirs))
    process.start()
    fork.go_on_in_parent()
    grandchild = ours.recv()
    process.join()
    process.close()
    assert not fork.over
    ours.send(True)
    with contextlib.suppress(EOFError):
        theirs.close()
        ours.recv()  # it begins to run the other program, which gets neither connection nor pipe
    while not fork.over:
        os.sched_yield()
    os.kill(grandchild, signal.SIGKILL)
    ours.close()


def test_children_that_have_ended_leave_no_descriptor() -> None:
    with DataLoader(Numbers(), batch_size=2, num_workers=1) as loader:
        kept = next(iter(loader))
        counts = []
        for _ in range(3):
            for _ in range(5):
                pid = os.fork()
                if not pid:
                    os._exit(0)
                os.waitpid(pid, 0)
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[0] == counts[1] == counts[2]
        assert int(kept[0][0]) == 0
