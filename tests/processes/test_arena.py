"""Slots of shared memory: filled, read in place, and used again when, and only when, the last view of them is gone."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reading_services.processes.arena import Arena, Slot, SlotReader, SlotWriter
from tests.laws.executors import PROCESSES
from tests.tries import tries

PAGE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena()
    yield arena
    arena.close()


@pytest.fixture
def writer(arena: Arena) -> Iterator[SlotWriter]:
    writer = SlotWriter(arena)
    yield writer
    vars(writer).clear()  # pytest keeps it until what was left behind has been looked for: its mappings have to go


@pytest.fixture
def reader(arena: Arena) -> Iterator[SlotReader]:
    reader = SlotReader(arena)
    yield reader
    vars(reader).clear()


def allocated(writer: SlotWriter, size_bytes: int) -> Slot:
    slot = writer.allocate(size_bytes)
    assert slot is not None
    return slot


def give_back(writer: SlotWriter, slot: Slot) -> None:
    """What the reader does when the last view dies."""
    writer._arena.flags[slot.index] = 0


def lease(reader: SlotReader, slot: Slot) -> memoryview:
    return reader.lease(slot.index, slot.offset, len(slot.memory))


# -- the writer's side ------------------------------------------------------------------------


def test_slots_are_whole_pages_of_two_to_some_power_side_by_side(arena: Arena, writer: SlotWriter) -> None:
    sizes = [1, PAGE, PAGE + 1, 100_000, 1 << 20]
    slots = [allocated(writer, size) for size in sizes]
    assert [len(slot.memory) for slot in slots] == [PAGE, PAGE, 2 * PAGE, 1 << 17, 1 << 20]
    assert [slot.index for slot in slots] == [0, 1, 2, 3, 4]
    end = PAGE  # the first page says which are in use
    for slot in slots:
        assert slot.offset == end
        end += len(slot.memory)
    assert os.fstat(arena.fd).st_blocks * 512 <= 2 * PAGE  # nothing of it takes memory yet
    assert bytes(arena.flags[:6]) == b"\1\1\1\1\1\0"


def test_the_first_free_slot_is_taken(writer: SlotWriter) -> None:
    slots = [allocated(writer, 10_000) for _ in range(4)]
    for number in (2, 0, 3):
        give_back(writer, slots[number])
    assert [allocated(writer, 10_000).index for _ in range(4)] == [0, 2, 3, 4]


def test_a_slot_is_not_wasted_on_what_is_much_smaller(writer: SlotWriter) -> None:
    large = allocated(writer, 1 << 16)
    give_back(writer, large)
    small = allocated(writer, (1 << 13) - 1)  # an eighth is still good enough, less is not
    assert (small.index, len(small.memory)) == (1, 1 << 13)
    assert allocated(writer, 1 << 13).index == large.index


def test_a_page_is_good_enough_for_anything_small(writer: SlotWriter) -> None:
    slot = allocated(writer, PAGE)
    give_back(writer, slot)
    assert allocated(writer, 1).index == slot.index


def test_a_slot_that_is_too_small_is_not_taken(writer: SlotWriter) -> None:
    give_back(writer, allocated(writer, PAGE))
    assert allocated(writer, PAGE + 1).index == 1


def test_there_are_no_more_slots_than_the_first_page_has_bytes(
    writer: SlotWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reading_services.processes.arena._MAX_SLOTS", 5)
    slots = [allocated(writer, 100) for _ in range(5)]
    assert writer.allocate(100) is None
    assert writer.shortage is None  # nothing that a user could do about it
    give_back(writer, slots[3])
    assert allocated(writer, 100).index == 3


def run_short(connection: Any) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))
    writer = SlotWriter(Arena())
    none = [writer.allocate(1 << 20) for _ in range(3)]
    assert writer.shortage is not None
    connection.send((writer.shortage.errno, none))


def test_a_file_that_cannot_be_large_is_a_shortage() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run_short, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == (errno.ENOMEM, [None] * 3)
    process.join()
    assert process.exitcode == 0
    process.close()
    ours.close()


def test_an_arena_that_is_used_up_is_a_shortage_and_what_there_is_stays_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reading_services.processes.arena._SIZES_BYTES", (3 << 20,))
    with contextlib.closing(Arena()) as arena:
        writer = SlotWriter(arena)
        first, second = allocated(writer, 1 << 20), allocated(writer, 1 << 20)
        assert writer.allocate(1 << 20) is None
        assert writer.shortage is not None
        assert writer.shortage.errno == errno.ENOSPC
        small = allocated(writer, 100)  # for which there is room
        give_back(writer, first)
        assert [second.index, small.index, allocated(writer, 1 << 20).index] == [1, 2, 0]
        del first, second, small, writer


# -- views ------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[memoryview], list[Any]]] = {
    "the lease": lambda lease: [lease],
    "a slice": lambda lease: [lease[64:128]],
    "an array": lambda lease: [np.frombuffer(lease[64:], dtype=np.float32)],
    "a part of an array": lambda lease: [np.frombuffer(lease, dtype=np.uint8)[5:9].reshape(2, 2).T],
    "a tensor": lambda lease: [torch.frombuffer(lease, dtype=torch.float32)],
    "a part of a tensor": lambda lease: [torch.frombuffer(lease[128:256], dtype=torch.uint8)[3:5]],
    "a tensor of an array": lambda lease: [torch.from_numpy(np.frombuffer(lease, dtype=np.uint8))],
    "an array of a tensor": lambda lease: [torch.frombuffer(lease, dtype=torch.int64).numpy()[1:]],
    "several": lambda lease: [np.frombuffer(lease, dtype=np.uint8), torch.frombuffer(lease, dtype=torch.uint8), lease],
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_slot_is_free_when_its_last_view_is_gone(
    arena: Arena, writer: SlotWriter, reader: SlotReader, kind: str
) -> None:
    slot = allocated(writer, PAGE)
    views = VIEWS[kind](lease(reader, slot))
    while views:
        assert arena.flags[slot.index] == 1
        assert allocated(writer, PAGE).index != slot.index
        views.pop()
    assert arena.flags[slot.index] == 0
    assert allocated(writer, PAGE).index == slot.index


def test_views_are_of_the_memory_itself(writer: SlotWriter, reader: SlotReader) -> None:
    slot = allocated(writer, PAGE)
    slot.memory[:4] = b"abcd"
    view = lease(reader, slot)
    tensor = torch.frombuffer(view, dtype=torch.uint8)
    assert bytes(view[:4]) == b"abcd"
    slot.memory[0] = 7
    assert tensor[0] == 7
    tensor[1] = 8
    assert bytes(slot.memory[:4]) == b"\7\x08cd"
    assert not view.readonly


def test_a_slot_can_be_leased_again_and_again(arena: Arena, writer: SlotWriter, reader: SlotReader) -> None:
    for number in range(20):
        slot = allocated(writer, PAGE)
        slot.memory[0] = number
        assert slot.index == 0
        view = lease(reader, slot)
        reader.opened(slot.index)
        assert (view[0], reader.held) == (number, 1)
        del view
        assert (arena.flags[0], reader.held) == (0, 0)


def test_only_slots_that_were_opened_are_held(writer: SlotWriter, reader: SlotReader) -> None:
    slots = [allocated(writer, PAGE) for _ in range(3)]
    views = [lease(reader, slot) for slot in slots]
    assert reader.held == 0
    reader.opened(1)
    reader.opened(2)
    assert reader.held == 2
    del views[0]  # of one that was not
    assert reader.held == 2
    views.clear()
    assert reader.held == 0


def test_views_may_die_in_any_thread(arena: Arena, writer: SlotWriter, reader: SlotReader) -> None:
    views = [lease(reader, allocated(writer, PAGE)) for _ in range(8)]
    assert bytes(arena.flags[:8]) == b"\1" * 8
    threads = [threading.Thread(target=views.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(arena.flags[:8]) == bytes(8)


def test_views_in_a_cycle_die_with_it(arena: Arena, writer: SlotWriter, reader: SlotReader) -> None:
    gc.disable()
    try:
        cycle: list[Any] = [torch.frombuffer(lease(reader, allocated(writer, PAGE)), dtype=torch.uint8)]
        cycle.append(cycle)
        del cycle
        assert arena.flags[0] == 1
        gc.collect()
        assert arena.flags[0] == 0
    finally:
        gc.enable()


def test_views_outlive_both_ends(arena: Arena, writer: SlotWriter, reader: SlotReader) -> None:
    slot = allocated(writer, PAGE)
    slot.memory[:] = b"x" * PAGE
    tensor = torch.frombuffer(lease(reader, slot), dtype=torch.uint8)
    arena.close()
    arena.close()  # idempotent
    del slot, writer, reader
    assert (tensor == ord("x")).all()
    tensor.zero_()
    assert not tensor.any()
    del tensor  # nor does its end disturb anybody


def descriptors() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found += "torchpipe-arena" in os.readlink(f"/proc/self/fd/{name}")
    return found


def test_a_view_keeps_no_memory_but_its_own(arena: Arena, writer: SlotWriter, reader: SlotReader) -> None:
    before = descriptors()
    slots = [allocated(writer, 100 * PAGE) for _ in range(5)]
    views = [lease(reader, slot) for slot in slots]
    for view in views:
        view[:] = b"x" * len(view)
    del view
    assert descriptors() <= before + 1  # one mapping, whatever the number of slots
    capacity = len(views[0])

    def used() -> int:
        return os.fstat(arena.fd).st_blocks * 512

    del views[1:]
    assert used() >= 5 * capacity  # for the next ones
    reader.close()
    reader.close()  # idempotent
    assert used() <= capacity + 2 * PAGE
    assert bytes(views[0][:3]) == b"xxx"
    views.clear()
    assert used() <= 2 * PAGE


# -- several processes ------------------------------------------------------------------------


def drop_views(views: list[Any], arena: Arena) -> None:
    views.clear()
    gc.collect()
    os._exit(0 if bytes(arena.flags[:2]) == b"\1\1" else 1)


def test_views_that_die_in_a_forked_child_free_nothing(arena: Arena, writer: SlotWriter, reader: SlotReader) -> None:
    views = [torch.frombuffer(lease(reader, allocated(writer, PAGE)), dtype=torch.uint8) for _ in range(2)]
    process = multiprocessing.get_context("fork").Process(target=drop_views, args=(views, arena))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    assert bytes(arena.flags[:2]) == b"\1\1"
    views.clear()
    assert bytes(arena.flags[:2]) == b"\0\0"


def write_from_another_process(arena: Arena, connection: Any) -> None:
    """Fill a slot each time it is told to, and say which."""
    writer = SlotWriter(arena)
    while (number := connection.recv()) is not None:
        slot = allocated(writer, 3 * PAGE)
        slot.memory[:] = bytes([number]) * len(slot.memory)
        connection.send((slot.index, slot.offset, len(slot.memory)))
    arena.close()


@pytest.mark.parametrize("method", PROCESSES)
def test_from_one_process_to_another(arena: Arena, reader: SlotReader, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=write_from_another_process, args=(arena, theirs))
    process.start()
    theirs.close()
    views: dict[int, memoryview] = {}
    # None: the oldest view is dropped, and its slot is the one that is used next
    for number, (drop, index) in enumerate([(None, 0), (None, 1), (0, 0), (None, 2), (1, 1)], start=1):
        if drop is not None:
            del views[drop]
        ours.send(number)
        place = ours.recv()
        assert place[0] == index
        views[index] = reader.lease(*place)
        assert bytes(views[index]) == bytes([number]) * 4 * PAGE
    ours.send(None)
    process.join()
    assert process.exitcode == 0
    process.close()
    ours.close()
    assert [view[-1] for _, view in sorted(views.items())] == [3, 5, 4]  # the writer's end changes nothing


# -- a model ----------------------------------------------------------------------------------


class ArenaMachine(RuleBasedStateMachine):
    """Slots in any order: filled, leased, looked at in many ways, dropped. No slot is handed out that can be seen."""

    @initialize()
    def begin(self) -> None:
        self.arena = Arena()
        self.writer, self.reader = SlotWriter(self.arena), SlotReader(self.arena)
        self.filled: list[tuple[Slot, int]] = []  # by the writer, not leased yet: (slot, what each byte of it is)
        self.views: list[tuple[int, int, Any]] = []  # (index of the slot, what each byte is, view)
        self.reserved: list[tuple[np.ndarray[Any, Any], int]] = []  # arrays of the writer's, and what each byte is
        self.count = 0

    def used(self) -> set[int]:
        return {slot.index for slot, _ in self.filled} | {index for index, _, _ in self.views}

    @rule(size=st.sampled_from([1, 100, PAGE, PAGE + 1, 3 * PAGE, 20 * PAGE]))
    def allocate(self, size: int) -> None:
        slot = allocated(self.writer, size)
        assert slot.index not in self.used()
        assert size <= len(slot.memory) <= max(PAGE, 8 * size)
        self.count += 1
        slot.memory[:] = bytes([self.count % 251]) * len(slot.memory)
        self.filled.append((slot, self.count % 251))

    @precondition(lambda self: self.filled)
    @rule(data=st.data(), kind=st.sampled_from(sorted(VIEWS)), opened=st.booleans())
    def lease(self, data: st.DataObject, kind: str, opened: bool) -> None:
        slot, content = self.filled.pop(data.draw(st.integers(0, len(self.filled) - 1)))
        self.views += [(slot.index, content, view) for view in VIEWS[kind](lease(self.reader, slot))]
        if opened:
            self.reader.opened(slot.index)

    @rule(size=st.sampled_from([1, PAGE, 3 * PAGE]))
    def reserve(self, size: int) -> None:
        made = self.writer.reserve(size)
        assert (made is None) == (len(self.reserved) == 8)
        if made is not None:
            self.count += 1
            made[:] = self.count % 251
            self.reserved.append((made[: size // 2 + 1], self.count % 251))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), send=st.booleans())
    def send_or_drop_what_was_reserved(self, data: st.DataObject, send: bool) -> None:
        made, content = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        found = self.writer.find(memoryview(made))
        assert found is not None
        reservation, start = found
        assert start == 0
        assert reservation.open
        del made
        assert not reservation.open
        if send:
            self.writer.send(reservation)
            slot = reservation.slot
            view = np.asarray(lease(self.reader, slot)[:1])
            self.views.append((slot.index, content, view))

    @precondition(lambda self: self.filled)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        slot, _ = self.filled.pop(data.draw(st.integers(0, len(self.filled) - 1)))
        give_back(self.writer, slot)

    @precondition(lambda self: self.views)
    @rule(data=st.data(), elsewhere=st.booleans())
    def drop(self, data: st.DataObject, elsewhere: bool) -> None:
        place = data.draw(st.integers(0, len(self.views) - 1))
        if elsewhere:
            thread = threading.Thread(target=self.views.pop, args=(place,))
            thread.start()
            thread.join()
        else:
            self.views.pop(place)

    @invariant()
    def flags_are_those_of_slots_in_use(self) -> None:
        if hasattr(self, "arena"):
            assert {index for index, flag in enumerate(self.arena.flags) if flag} == self.used()
            assert self.reader.held <= len({index for index, _, _ in self.views})

    @invariant()
    def nothing_that_can_be_seen_has_changed(self) -> None:
        for made, content in getattr(self, "reserved", ()):
            assert set(made.tobytes()) == {content}
        for _, content, view in getattr(self, "views", ()):
            assert set(np.asarray(view).tobytes()) == {content}

    def teardown(self) -> None:
        if hasattr(self, "arena"):
            self.arena.close()


ArenaMachine.TestCase.settings = settings(max_examples=tries(40), stateful_step_count=40)
TestArena = ArenaMachine.TestCase
