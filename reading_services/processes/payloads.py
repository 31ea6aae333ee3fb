"""The way of a message's items: within the message, or in a slot of the sender's arena, read in place.

Runs in every process of the runtime.

The data of a layout is one block, wherever it lies: the pickle, then the large buffers, each at a multiple of 64 bytes.
A small block is the message's payload. A large one goes into a slot; if there is none to be had, it is the payload
after all: that is slower, and always possible.

Buffers that were made in a slot (:meth:`Packer.memory`) stay there and are not part of the block, unless the sender
still has something that looks into them: the items that arrive belong to the receiver alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reading_services.engine.messages import Notice
from reading_services.hosting.shards import dump_items, load_items
from reading_services.processes.arena import Arena, Reservation, SlotReader, SlotWriter
from reading_services.processes.wire import Layout, Placed
from torchpipe.node.failures import add_note

__all__ = ["Delivery", "PayloadPacker", "Receiver"]

_INLINE_BYTES = 64 << 10
_ALIGNMENT = 64
_KEPT_SLOTS = 8  # more slots than this are not left in the hands of whoever keeps items: these get copies


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


class PayloadPacker:
    """The sender's side."""

    def __init__(self, arena: Arena | None) -> None:
        self._slots = None if arena is None else SlotWriter(arena)
        self._warned_short = False

    def take_notices(self) -> list[Notice]:
        """The notice for the user if a slot was needed and could not be had, once."""
        shortage = None if self._slots is None else self._slots.shortage
        if shortage is None or self._warned_short:
            return []
        self._warned_short = True
        text = (
            f"shared memory is short ({shortage}): large items are sent through a socket instead, which is slower. "
            "Raise the limit on file sizes or memory (ulimit -a, the container's), or let workers run less far ahead "
            "(worker_prefetch_cnt; prefetch_factor of DataLoader)"
        )
        return [Notice(category="UserWarning", text=text)]

    def memory(self, size_bytes: int) -> Any:
        """An array of bytes for making an item in that will be sent from there, without a copy.

        None if there is none to be had, or if the item is so small that it is quicker copied.
        """
        return None if self._slots is None or size_bytes < _INLINE_BYTES else self._slots.reserve(size_bytes)

    def pack(self, items: list[Any]) -> tuple[Layout, bytes | memoryview]:
        """(what the message says of the items, its payload). The list is emptied.

        Raises: whatever pickling an item raises. Nothing has changed then.
        """
        body, buffers = dump_items(items)
        if not buffers and len(body) <= _INLINE_BYTES:
            items.clear()
            return Layout(sizes=(len(body),)), body
        sizes = (len(body), *(len(buffer) for buffer in buffers))
        made_here = self._find(buffers)
        items.clear()
        placed = _hand_over(self._slots, made_here)
        parts = [body, *(buffer for number, buffer in enumerate(buffers) if number not in placed)]
        layout = Layout(sizes=sizes, placed=tuple(placed.values()))
        if len(parts) == 1 and len(body) <= _INLINE_BYTES:
            return layout, body
        size = sum(_aligned(len(part)) for part in parts)
        slot = None if self._slots is None else self._slots.allocate(size)
        if slot is None:
            block = bytearray(size)
            _fill(memoryview(block), parts)
            return layout, memoryview(block)
        _fill(slot.memory, parts)
        return replace(layout, slot=slot.index, offset=slot.offset, capacity=len(slot.memory)), b""

    def _find(self, buffers: list[memoryview]) -> dict[int, tuple[Reservation, int]]:
        """The buffers, by number, that were made in a slot: (its reservation, where in it).

        Each is replaced by the same part of the slot, which keeps no item alive.
        """
        found = {}
        for number, buffer in enumerate(buffers):
            position = None if self._slots is None else self._slots.find(buffer)
            if position is not None:
                found[number] = position
                reserved, start = position
                buffers[number] = reserved.slot.memory[start : start + len(buffer)]
        return found


def _hand_over(slots: SlotWriter | None, made: dict[int, tuple[Reservation, int]]) -> dict[int, Placed]:
    """Send the slots that nothing here looks into any more: the buffers that are placed there, by number."""
    placed = {}
    for number, (reserved, start) in made.items():
        if slots is not None and not reserved.open:
            slots.send(reserved)
            slot = reserved.slot
            placed[number] = Placed(
                buffer=number, slot=slot.index, offset=slot.offset, capacity=len(slot.memory), start=start
            )
    return placed


def _fill(block: memoryview, parts: list[Any]) -> None:
    start = 0
    for part in parts:
        block[start : start + len(part)] = part
        start += _aligned(len(part))


class Delivery:
    """A layout that has arrived. Dropping it gives its slot back, as does dropping the last item made of it."""

    def __init__(self, layout: Layout, payload: memoryview, reader: SlotReader | None) -> None:
        self._layout = layout
        self._reader = reader
        # The content of the slots that it needs, and under -1 that of the message
        self._blocks: dict[int, memoryview] = {-1: payload}
        if reader is not None:
            wanted = [(layout.slot, layout.offset, layout.capacity)]
            wanted += [(part.slot, part.offset, part.capacity) for part in layout.placed]
            for slot, offset, capacity in wanted:
                if slot not in self._blocks:
                    self._blocks[slot] = reader.lease(slot, offset, capacity)

    @property
    def size_bytes(self) -> int:
        return sum(self._layout.sizes)

    def open(self) -> list[Any]:
        """The items, once. Raises: whatever rebuilding them raises."""
        layout, blocks, self._blocks = self._layout, self._blocks, {}
        copied = self._reader is not None and self._reader.held >= _KEPT_SLOTS
        if self._reader is not None and not copied:
            self._reader.opened(*(slot for slot in blocks if slot >= 0))
        placed = {part.buffer: part for part in layout.placed}
        block = blocks[layout.slot]
        body = block[: layout.sizes[0]]
        start, buffers = _aligned(layout.sizes[0]), []
        for number, size in enumerate(layout.sizes[1:]):
            part = placed.get(number)
            if part is None:
                buffer = block[start : start + size]
                start += _aligned(size)
            else:
                buffer = blocks[part.slot][part.start : part.start + size]
            buffers.append(memoryview(bytearray(buffer)) if copied else buffer)
        return load_items(body, buffers)


class Receiver:
    """The receiver's side of one sender's arena."""

    def __init__(self, arena: Arena | None) -> None:
        self._slots = None if arena is None else SlotReader(arena)

    def arrive(self, layout: Layout, payload: memoryview) -> Delivery:
        """Take hold of a layout's slots, if it has any. Raises: OSError or ValueError if one cannot be mapped."""
        if layout.slot < 0 and not layout.placed:
            return Delivery(layout, payload, None)
        assert self._slots is not None
        try:
            return Delivery(layout, payload, self._slots)
        except OSError as error:
            add_note(
                error,
                f"torchpipe: this process could not map {sum(layout.sizes)} bytes of shared memory that items came in: "
                "it is at its limit of address space (`ulimit -v`). Raise the limit, and resume from the loader's "
                "state: no item is lost",
            )
            raise

    def close(self) -> None:
        """Nothing more arrives: let go of the memory that no delivery and no item needs. Idempotent."""
        if self._slots is not None:
            self._slots.close()
