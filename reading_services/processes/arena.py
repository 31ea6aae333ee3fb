"""Shared memory through which one process hands large data to another: slots that are filled, read in place and reused.

An arena is an anonymous file that the main process makes, one for each process that sends; it has no name, so nothing
is left behind whoever dies. It is sparse and mapped once on each side: only what is written takes memory. The writer
lays out slots in it (:class:`SlotWriter`); the reader hands out views (:class:`SlotReader`). A slot is free again when
the last view of it is gone.

::

    offset 0      one byte for each slot: 1 from the writer's allocation until the reader's last view dies, then 0
    offset 4096   slot after slot, each of 2^k pages, at offsets that the messages carry

A slot can also be reserved: memory in which an item is made, by ``collate`` say, so that it need not be copied there
later. The writer alone knows of that; the byte is set when the item is sent.

A process that is forked while views are out sees them in the same memory: their slots are not used again before it has
ended (:class:`Fork`).

A byte has one writer at a time, so there is no lock. If the sending process dies, its successor gets another arena: the
views into the old one stay good, since the mapping lives as long as a view of it; slots without one give their memory
back.

**Forks of this process by the user's code**: what a child sees of shared memory stays as it was at the fork. A child
that holds an item of shared memory looks at the same pages as this process, and nobody may write there while it lives.
At a fork, all memory that is lent out is noted; when it comes back it is kept until the child is gone.

A pipe tells: the child, and what it forks itself, keep its end for writing; this process reads the end of file when the
last of them has ended, or runs another program. At each fork, those that are over are forgotten: there are never more
pipes than children that live. A child that closes all its descriptors counts as ended; one that another thread forks in
the same moment keeps this fork's pipe as well, and memory is kept until both have ended.
"""

from __future__ import annotations

import errno
import mmap
import multiprocessing.reduction
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchpipe.state.shared_list import anonymous_file

__all__ = ["Arena", "Fork", "Lent", "Reservation", "SharedFile", "Slot", "SlotReader", "SlotWriter"]


class Fork:
    """A fork: ``over`` when no process that came of it is left."""

    def __init__(self) -> None:
        self._is_over = False
        self._read_fd = self._write_fd = -1
        try:
            self._read_fd, self._write_fd = os.pipe()
        except OSError:  # no descriptor is left: the child counts as one that does not end
            return
        os.set_blocking(self._read_fd, False)
        self._close = weakref.finalize(self, os.close, self._read_fd)
        self._close.atexit = False  # what is let go of at exit still asks

    @property
    def over(self) -> bool:
        if self._is_over or self._read_fd < 0:
            return self._is_over
        try:
            self._is_over = os.read(self._read_fd, 1) == b""
        except BlockingIOError:
            return False
        self._close()
        return True

    def go_on_in_parent(self) -> None:
        if self._write_fd >= 0:
            os.close(self._write_fd)

    def go_on_in_child(self) -> None:
        """The other end stays open as long as the process lives."""
        if self._read_fd >= 0:
            self._read_fd = -1
            self._close()


class Lent:
    """Memory that users look at, between :meth:`lend` and :meth:`take_back`, and perhaps in forked children longer."""

    def __init__(self) -> None:
        self._forks: list[Fork] = []

    def lend(self) -> None:
        _lent[id(self)] = self
        self._forks += _under_way.values()

    def take_back(self) -> None:
        """Nobody in this process looks at it any more. Idempotent."""
        _lent.pop(id(self), None)

    def note(self, fork: Fork) -> None:
        self._forks = [other for other in self._forks if not other.over]
        self._forks.append(fork)

    @property
    def seen_by_children(self) -> bool:
        """True while a forked child lives that may look at it."""
        self._forks = [fork for fork in self._forks if not fork.over]
        return bool(self._forks)


_lent: dict[int, Lent] = {}  # what is lent out, by id
_under_way: dict[int, Fork] = {}  # by thread: other threads lend and take back meanwhile


def _before() -> None:
    if not _lent:
        return
    fork = _under_way[threading.get_ident()] = Fork()
    for lent in list(_lent.values()):
        lent.note(fork)


def _in_parent() -> None:
    fork = _under_way.pop(threading.get_ident(), None)
    if fork is not None:
        fork.go_on_in_parent()


def _in_child() -> None:
    fork = _under_way.get(threading.get_ident())
    _under_way.clear()
    _lent.clear()  # the parent takes it back
    if fork is not None:
        fork.go_on_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


class SharedFile:
    """``size_bytes`` of zeros, or the file that ``fd`` is of; ``view`` shows it as items of ``form``. It owns ``fd``.

    Passed to a process as an argument, under every start method. Raises: OSError if there is no room.
    """

    def __init__(self, name: str, size_bytes: int, form: str, fd: int | None) -> None:
        new = fd is None
        self.fd = anonymous_file(name) if fd is None else fd
        # At once: one that is not finished, for an error or a Ctrl-C, is closed as well
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        if new:
            os.pwrite(self.fd, bytes(size_bytes), 0)  # not only sized: no room is an error here, and SIGBUS later
        self._map = mmap.mmap(self.fd, size_bytes)
        self.view: memoryview = memoryview(self._map).cast(form)  # type: ignore[call-overload]

    def close(self) -> None:
        """Let go of the file on this side; other mappings of it stay good. Idempotent."""
        if self.fd >= 0:
            self.view.release()
            self._map.close()
            self._finalizer()
            self.fd = -1

    def __reduce__(self) -> Any:
        return _received, (type(self), multiprocessing.reduction.DupFd(self.fd))


def _received(kind: Any, duplicate: Any) -> SharedFile:
    return kind(duplicate.detach())  # type: ignore[no-any-return]


_PAGE_BYTES = 4096
_MAX_SLOTS = _PAGE_BYTES
_SIZES_BYTES = (1 << 36, 1 << 33, 1 << 30)  # the first that may be had
_WASTE = 8  # a slot may be so many times larger than what is put into it
_MOST_RESERVED = 8  # whoever keeps more items than that, in a shuffle buffer say, keeps them in ordinary memory


class Arena(SharedFile):
    """The shared file. ``flags`` is its first page."""

    def __init__(self, fd: int | None = None) -> None:
        super().__init__("torchpipe-arena", _PAGE_BYTES, "B", fd)
        self.flags = self.view
        self._all: mmap.mmap | None = None

    def mapped(self) -> mmap.mmap:
        """All of it. Raises: OSError if this process may not map or have so large a file."""
        if self._all is None:
            if os.fstat(self.fd).st_size == _PAGE_BYTES:
                _make_large(self.fd)
            self._all = mmap.mmap(self.fd, os.fstat(self.fd).st_size)
        return self._all

    def close(self) -> None:
        self._all = None  # it lives as long as its views
        super().close()


def _make_large(fd: int) -> None:
    """Make the file as large as it may be: nothing of it takes memory yet. Raises: OSError."""
    for size_bytes in _SIZES_BYTES:
        try:
            os.ftruncate(fd, size_bytes)
            mmap.mmap(fd, size_bytes).close()  # as large as this process may map
            return
        except (OSError, ValueError) as error:
            failure = error
    os.ftruncate(fd, _PAGE_BYTES)
    raise OSError(errno.ENOMEM, f"no shared file of {_SIZES_BYTES[-1]} bytes can be had: {failure}") from failure


@dataclass(slots=True)
class Slot:
    """A slot as its writer has it. ``memory`` is its content."""

    index: int
    offset: int
    memory: memoryview


class _Lease(Lent):
    """Memory that ``owner`` looks at first; ``released`` is called with this when the last view of it is gone."""

    def __init__(self, owner: Any, released: Callable[[Any], None]) -> None:
        super().__init__()
        self._owner = weakref.ref(owner, lambda _: released(self))

    @property
    def open(self) -> bool:
        """True if anything in this process still looks at it."""
        return self._owner() is not None


class Reservation(_Lease):
    """A slot in which an item is being made, or has been: ``address`` is where its memory begins in this process."""

    def __init__(self, slot: Slot, owner: Any) -> None:
        super().__init__(owner, Lent.take_back)
        self.slot, self.address = slot, owner.ctypes.data
        self.lend()

    @property
    def open(self) -> bool:
        """True if anything still looks into the slot, in this process or in a forked one."""
        return super().open or self.seen_by_children


class SlotWriter:
    """The writer's side: :meth:`allocate`, fill, tell the reader. ``shortage`` says why there was no slot, if so."""

    def __init__(self, arena: Arena) -> None:
        self.shortage: OSError | None = None
        self._arena = arena
        self._slots: list[Slot] = []
        self._reserved: dict[int, Reservation] = {}
        self._end = _PAGE_BYTES

    def allocate(self, size_bytes: int) -> Slot | None:
        """A free slot for ``size_bytes``, or None if there is no room for another one.

        Of those that are free it is the first, so that as few as possible are in use, and they stay in the cache.
        """
        slot = self._free_slot(size_bytes)
        if slot is not None:
            self._arena.flags[slot.index] = 1
        return slot

    def reserve(self, size_bytes: int) -> Any:
        """An array of ``size_bytes`` in a free slot, for making an item in; None if there is no room, or enough is out.

        The slot is free again when the last view of the array is gone; or it is sent: see :meth:`find` and
        :meth:`send`.
        """
        self._reserved = {index: item for index, item in self._reserved.items() if item.open}
        slot = self._free_slot(size_bytes) if len(self._reserved) < _MOST_RESERVED else None
        if slot is None:
            return None
        owner = np.frombuffer(slot.memory, np.uint8, size_bytes)
        self._reserved[slot.index] = Reservation(slot, owner)
        return owner

    def find(self, buffer: memoryview) -> tuple[Reservation, int] | None:
        """The reservation that ``buffer`` lies in, if it lies in one, and where in it."""
        if not self._reserved:
            return None
        address = np.frombuffer(buffer, np.uint8).ctypes.data
        for item in self._reserved.values():
            if item.address <= address < item.address + len(item.slot.memory):
                return item, address - item.address
        return None

    def send(self, item: Reservation) -> None:
        """Hand the slot over to the reader, when nothing in this process looks into it any more."""
        assert not item.open
        self._arena.flags[item.slot.index] = 1

    def _free_slot(self, size_bytes: int) -> Slot | None:
        flags, reserved = self._arena.flags, self._reserved
        for slot in self._slots:
            fits = size_bytes <= len(slot.memory) <= max(_PAGE_BYTES, _WASTE * size_bytes)
            if fits and not flags[slot.index] and not (slot.index in reserved and reserved[slot.index].open):
                return slot
        return self._grow(size_bytes)

    def _grow(self, size_bytes: int) -> Slot | None:
        if len(self._slots) == _MAX_SLOTS:
            return None
        capacity = max(_PAGE_BYTES, 1 << (size_bytes - 1).bit_length())
        try:
            mapped = self._arena.mapped()
            if self._end + capacity > len(mapped):
                raise OSError(errno.ENOSPC, f"{len(mapped)} bytes are in use")
        except OSError as error:
            self.shortage = error
            return None
        memory = memoryview(mapped)[self._end : self._end + capacity]
        slot = Slot(len(self._slots), self._end, memory)
        self._slots.append(slot)
        self._end += capacity
        return slot


class _View(_Lease):
    """A lease of a slot that a reader has handed out."""

    def __init__(self, index: int, owner: Any, released: Callable[[Any], None]) -> None:
        super().__init__(owner, released)
        self.index = index


class SlotReader:
    """The reader's side. Views may die in any thread."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._mapped: mmap.mmap | None = None
        self._slots_at: dict[int, tuple[int, int]] = {}  # slot -> where it is
        self._closed = False
        self._leases: dict[int, _View] = {}
        self._opened: set[int] = set()
        self._retired: dict[int, _View] = {}  # nobody here looks at these, but a forked child may
        self._pid = os.getpid()

    @property
    def held(self) -> int:
        """The number of slots that have been opened and not let go of, by this process and those that were forked."""
        return len(self._opened) + len(self._retired)

    def opened(self, *indices: int) -> None:
        """From now on these slots are in a user's hands."""
        self._opened.update(indices)
        for index in indices:
            self._leases[index].lend()

    def lease(self, index: int, offset: int, capacity: int) -> memoryview:
        """The content of a slot, writable; the slot is free again when the last view of this is gone.

        Raises: OSError if the arena cannot be mapped.
        """
        if self._mapped is None:
            self._mapped = self._arena.mapped()
        self._reclaim()
        self._slots_at[index] = offset, capacity
        owner = np.frombuffer(self._mapped, np.uint8, capacity, offset)
        self._leases[index] = _View(index, owner, self._release)
        return memoryview(owner)  # type: ignore[arg-type]

    def close(self) -> None:
        """No more slots are leased: let go of the memory of those that nobody sees. Views stay good. Idempotent."""
        self._closed = True
        self._reclaim()
        for index in self._slots_at.keys() - self._leases.keys() - self._retired.keys():
            self._give_back(index)
        self._retired.clear()  # their memory goes with the last process that has it
        if not self._leases:
            self._mapped = None

    def _release(self, view: _View) -> None:
        """Called in any thread, in the middle of anything. A forked child has copies of the views, not the slots."""
        if os.getpid() != self._pid:
            return
        view.take_back()
        self._leases.pop(view.index, None)
        self._opened.discard(view.index)
        if not view.seen_by_children:
            self._free(view.index)
        elif not self._closed:
            self._retired[view.index] = view

    def _reclaim(self) -> None:
        """Free the slots that forked children looked at: those that have ended."""
        for index, view in list(self._retired.items()):
            if not view.seen_by_children and self._retired.pop(index, None) is not None:
                self._free(index)

    def _free(self, index: int) -> None:
        if self._closed:
            self._give_back(index)
            return
        try:
            self._arena.flags[index] = 0
        except ValueError:  # closed meanwhile: nobody writes there any more
            pass

    def _give_back(self, index: int) -> None:
        """The memory of a slot that nobody will write to or look at again."""
        position, mapped = self._slots_at.pop(index, None), self._mapped
        if position is not None and mapped is not None:
            mapped.madvise(mmap.MADV_REMOVE, *position)
