"""How the items of a message travel: within the message, or in a slot of the sender's arena, read in place.

Runs in every process of the runtime. Imports ``arena``, ``items`` and ``messages``.

The data of a parcel is one block, wherever it lies: the pickle, then the large buffers, each at a multiple of 64 bytes.
A small block is the message's payload. A large one goes into a slot; if there is none to be had, it is the payload
after all: that is slower, and always possible.
"""

from __future__ import annotations

from typing import Any

from reading_services._runtime.arena import Arena, Slot, SlotReader, SlotWriter
from reading_services._runtime.items import dump_items, load_items
from reading_services._runtime.messages import Parcel

__all__ = ["Delivery", "Packer", "Receiver", "shortage_text"]

_INLINE_BYTES = 64 << 10
_ALIGNMENT = 64
_KEPT_SLOTS = 8  # more slots than this are not left in the hands of whoever keeps items: these get copies


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


class Packer:
    """The sender's side. ``shortage`` is set when a slot was needed and could not be had, for saying so once."""

    def __init__(self, arena: Arena | None) -> None:
        self._slots = None if arena is None else SlotWriter(arena)

    @property
    def shortage(self) -> OSError | None:
        return None if self._slots is None else self._slots.shortage

    def pack(self, items: list[Any]) -> tuple[Parcel, bytes | memoryview]:
        """(what the message says of the items, its payload). Raises: whatever pickling an item raises."""
        body, buffers = dump_items(items)
        parts = [body, *buffers] if buffers else [body]
        sizes = tuple(len(part) for part in parts)
        if len(parts) == 1 and sizes[0] <= _INLINE_BYTES:
            return Parcel(sizes=sizes), body
        size = sum(_aligned(size) for size in sizes)
        slot = None if self._slots is None else self._slots.allocate(size)
        if slot is None:
            block = bytearray(size)
            _fill(memoryview(block), parts)
            return Parcel(sizes=sizes), memoryview(block)
        _fill(slot.memory, parts)
        return _in_slot(slot, sizes), b""


def _in_slot(slot: Slot, sizes: tuple[int, ...]) -> Parcel:
    return Parcel(sizes=sizes, slot=slot.index, offset=slot.offset, capacity=len(slot.memory))


def _fill(block: memoryview, parts: list[Any]) -> None:
    start = 0
    for part in parts:
        block[start : start + len(part)] = part
        start += _aligned(len(part))


class Delivery:
    """A parcel that has arrived. Dropping it gives its slot back, as does dropping the last item made of it."""

    def __init__(self, parcel: Parcel, block: memoryview, reader: SlotReader | None) -> None:
        self._sizes = parcel.sizes
        self._slot = parcel.slot
        self._block: memoryview | None = block
        self._reader = reader

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes)

    def open(self) -> list[Any]:
        """The items, once. Raises: whatever rebuilding them raises."""
        block, self._block = self._block, None
        assert block is not None
        if self._reader is not None:
            if self._reader.held >= _KEPT_SLOTS:
                block = memoryview(bytearray(block[: sum(_aligned(size) for size in self._sizes)]))
            else:
                self._reader.opened(self._slot)
        body = block[: self._sizes[0]]
        start, buffers = _aligned(self._sizes[0]), []
        for size in self._sizes[1:]:
            buffers.append(block[start : start + size])
            start += _aligned(size)
        return load_items(body, buffers)


class Receiver:
    """The receiver's side of one sender's arena."""

    def __init__(self, arena: Arena | None) -> None:
        self._slots = None if arena is None else SlotReader(arena)

    def arrive(self, parcel: Parcel, payload: memoryview) -> Delivery:
        """Take hold of a parcel's slot, if it has one. Raises: OSError or ValueError if it cannot be mapped."""
        if parcel.slot < 0:
            return Delivery(parcel, payload, None)
        assert self._slots is not None
        return Delivery(parcel, self._slots.lease(parcel.slot, parcel.offset, parcel.capacity), self._slots)

    def close(self) -> None:
        """Nothing more arrives: let go of the memory that no delivery and no item needs. Idempotent."""
        if self._slots is not None:
            self._slots.close()


def shortage_text(error: OSError) -> str:
    """What the user is told when a process could not have the shared memory that it needed."""
    return (
        f"shared memory is short ({error}): large items travel through a socket instead, which is slower and otherwise "
        "the same. Look for a limit on file sizes or memory (ulimit -a, the container's), or let workers run less far "
        "ahead (worker_prefetch_cnt)"
    )
