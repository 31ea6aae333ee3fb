"""Times the nodes of a pass, item by item, for as long as that costs next to nothing. Runs wherever items are made.

Each node's stream is wrapped where it begins. Two looks at the clock and a few sums take a third of a microsecond, so
where items are quick, the wrappers retire: what is left of one is a step in C, of a nanosecond or two, that hands on
what the node yields. What was timed until then speaks for the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import cache
from itertools import chain
from time import perf_counter_ns
from typing import Any

from torchpipe.stats.sheet import ERRORS, NEVER, SKIPPED, NodeSheet, Sizing

__all__ = ["UNTIMED", "ThreadTracing", "Tracing", "measures_by_default"]

UNTIMED = -2  # in a node's place: what takes this time is no node's work
_SHARE = 0.01  # of the time that nodes take may be spent on timing,
_AT_FIRST_NS = 30_000_000  # and so much besides;
_TO_BEGIN_NS = 300_000_000  # so much until a few items have come: what fills a buffer does not speak for what follows
_BEGUN = 4
_LOOK = 256  # items between two looks at what it has cost
_COUNTED = "_torchpipe_counted"  # set on an exception that a node has been charged with


def measures_by_default() -> bool:
    """True if the environment asks loaders to measure (``TORCHPIPE_MEASURE=1``, or ``TORCHPIPE_WATCH=1``)."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in ("TORCHPIPE_MEASURE", "TORCHPIPE_WATCH"))


class Tracing:
    """The trace (``Context.trace``) of one pass, whose figures go into ``sheet``. For the one thread that pulls."""

    def __init__(self, sheet: NodeSheet) -> None:
        self.wanted = True  # once items are not timed, they are not any more
        self.sheet = sheet
        self._below_ns = 0  # spent in the inputs of the node at work
        self._items = 0  # timed, of all nodes
        self._last: int | None = None  # the node that nobody else's time encloses: it is the first to be asked
        self._come = 0  # items of it
        self._busy_ns = 0  # spent in nodes: a process that waits for others is none the quicker for it
        self._cost_ns, self._outside_ns = _cost()

    def watch(self, stream: Iterator[Any], node_id: int) -> Iterator[Any]:
        """``stream``, of which each item is timed."""
        if not self.wanted or not (0 <= node_id < self.sheet.nodes or node_id == UNTIMED):
            return stream
        if isinstance(stream, _Watched):  # a node that hands on its input's own stream does nothing itself
            return stream
        watched: Any = _Watched.from_iterable(self._phases(stream, node_id))
        watched.stream = stream
        return watched  # type: ignore[no-any-return]

    def _phases(self, stream: Iterator[Any], node_id: int) -> Iterator[Iterator[Any]]:
        yield self._timed(stream, node_id)
        yield stream

    def _timed(self, stream: Iterator[Any], node_id: int) -> Iterator[Any]:
        clock, note, outside_ns = perf_counter_ns, self.sheet.note, self._outside_ns
        size = Sizing(self.sheet, node_id).look
        unseen = 1 if node_id >= 0 else NEVER
        held: list[Any] = []  # whoever is handed an item decides alone how long it lives
        if self._last is None:
            self._last = node_id
        is_last = node_id == self._last
        while self.wanted:
            outer, self._below_ns = self._below_ns, 0
            began = clock()
            try:
                held.append(next(stream))
            except StopIteration:
                return
            except BaseException as error:
                self._failed(error, node_id)
                raise
            finally:
                took = clock() - began
                own = took - self._below_ns
                self._below_ns = outer + took + outside_ns
            if node_id >= 0:
                note(node_id, own if own > 0 else 0)
                self._busy_ns += own
            if is_last:
                self._come += 1
            self._items += 1
            if not self._items % _LOOK:
                self._look()
            unseen -= 1
            if not unseen:
                began = clock()
                unseen = size(held[0])
                self._below_ns += clock() - began
            yield held.pop()

    def plain(self, stream: Iterator[Any]) -> Iterator[Any]:
        """``stream``, or once items are not timed, what it hands on: for who can change over between two items."""
        return stream.stream if type(stream) is _Watched and not self.wanted else stream

    def left_out(self, node_id: int) -> None:
        """The node has left out an item, since making it raised."""
        if 0 <= node_id < self.sheet.nodes:
            self.sheet.count(node_id, SKIPPED)

    def _look(self) -> None:
        """Go on with timing only if that is worth what it has cost."""
        free_ns = _TO_BEGIN_NS if self._come < _BEGUN else _AT_FIRST_NS
        self.wanted = self.wanted and self._items * self._cost_ns < free_ns + _SHARE * self._busy_ns

    def _failed(self, error: BaseException, node_id: int) -> None:
        """The innermost node is where it was raised."""
        if node_id >= 0 and not getattr(error, _COUNTED, False):
            self.sheet.count(node_id, ERRORS)
            try:
                setattr(error, _COUNTED, True)
            except AttributeError:  # of a class without a place for it
                pass


class ThreadTracing:
    """The same for a pass whose parts may be pulled in several threads: each has a tracing of its own."""

    def __init__(self, sheet: NodeSheet) -> None:
        self._sheet = sheet
        self._of: dict[int, Tracing] = {}
        self._wanted = True

    @property
    def wanted(self) -> bool:
        return self._wanted

    @wanted.setter
    def wanted(self, value: bool) -> None:
        self._wanted = value
        for tracing in list(self._of.values()):
            tracing.wanted = value

    def watch(self, stream: Iterator[Any], node_id: int) -> Iterator[Any]:
        """``stream``, which is pulled by the thread that calls this."""
        if not self._wanted:
            return stream
        return self._here().watch(stream, node_id)

    def plain(self, stream: Iterator[Any]) -> Iterator[Any]:
        """``stream``, which some thread pulls."""
        return stream

    def left_out(self, node_id: int) -> None:
        """The node has left out an item, in the thread that calls this."""
        self._here().left_out(node_id)

    def _here(self) -> Tracing:
        return self._of.setdefault(threading.get_ident(), Tracing(self._sheet))


class _Watched(chain[Any]):
    """Hands on the items of the phases, in C; otherwise it is what the stream itself would be to whoever has it."""

    stream: Any

    def close(self) -> None:
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()


@cache
def _cost() -> tuple[int, int]:
    """The cost of timing an item here, in ns: in all, and the part that the node that pulls would be charged with.

    In all it is twice the time of a tight loop, as the processor's caches are others' between two items of real nodes.
    """
    items, tries = 200, []
    tracing = object.__new__(Tracing)
    cells = memoryview(bytearray(8 * NodeSheet.STRIDE)).cast("q")  # as those that processes share
    vars(tracing).update(wanted=True, sheet=NodeSheet(cells), _below_ns=0, _busy_ns=0, _items=1, _outside_ns=0)
    vars(tracing).update(_cost_ns=0, _last=None, _come=0)
    for _ in range(5):
        inside_before = cells[0]
        began = perf_counter_ns()
        for _item in tracing._timed(iter(range(items)), 0):
            pass
        whole = perf_counter_ns() - began
        tries.append((whole // items, (whole - cells[0] + inside_before) // items))
    return 2 * min(whole for whole, _ in tries), min(outside for _, outside in tries)
