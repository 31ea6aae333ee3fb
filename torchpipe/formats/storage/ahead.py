"""``AheadFile``: a remote file that is read by ranges, several at once, before they are asked for.

Runs in the thread that reads; the requests in ``request_threads``. What is read ahead is part of no position and of no
state: a file stands where its reader stands.
"""

from __future__ import annotations

from typing import Any

from torchpipe.formats.storage.block_cache import CELL_BYTES, BlockCache
from torchpipe.formats.storage.request_threads import Budget, Request, budget, request_threads
from torchpipe.formats.storage.retrying import RemoteFile, ReopenedFile

__all__ = ["AheadFile"]

PART_BYTES = 4 << 20  # of one request, at most
_LEAST_BYTES = 1 << 16  # of one request: a reader of a few bytes reads more of them
_RUN_BYTES = 1 << 18  # read in sequence, after which more of it is expected
_FIRST_BYTES = 4 << 20  # asked for ahead then; twice as much whenever that has been read


class AheadFile(RemoteFile):
    """``file``, of a known size, by ranges. Not thread-safe.

    Where a reader reads in sequence, up to ``ahead_bytes`` behind it are asked for, in parts of 4 MiB, each by its own
    request. Where it goes about, it asks for what it needs. Bytes that are held or asked for make ``ahead_bytes`` at
    most, or the one request that is needed: parts that were read go first. ``stop`` is a byte from which on little is
    read. With ``cache``, whole blocks are asked for, and kept there by ``key``.

    Raises: as :class:`ReopenedFile`, of the request that a read needs: what was asked for in vain is asked for again
    when reading comes to it.
    """

    def __init__(self, file: ReopenedFile, ahead_bytes: int, cache: BlockCache | None = None, key: str = "") -> None:
        assert file.size is not None
        self.stop: int | None = None
        self.name = file.name
        self.size: int = file.size
        self._file = file
        self._ahead_bytes = ahead_bytes
        self._cache, self._key = cache, key
        self._part_bytes = max(_LEAST_BYTES, min(PART_BYTES, ahead_bytes // 2))
        if cache is not None:
            self._part_bytes = max(CELL_BYTES, self._part_bytes // CELL_BYTES * CELL_BYTES)
        self._last = 0  # where the last read ended
        self._run = 0  # bytes read in sequence
        self._window = 0  # bytes behind the reader that are asked for
        self._parts: list[Request] = []  # what goes first stands first
        self._held = 0  # their bytes
        self._budget: Budget = budget()
        self._by_ranges = True

    @property
    def version(self) -> str | None:
        return self._file.version

    def begin_at(self, start: int, stop: int | None) -> None:
        """Ask for the first bytes of a reader who begins at byte ``start`` (a negative number: so many before the end),
        and may stop at ``stop``."""
        if start < 0:
            start = max(0, self.size + start)
        limit = min(self.size, self.size if stop is None else stop, start + min(_FIRST_BYTES, self._ahead_bytes))
        while start < limit and (part := self._add(start, limit, needed=False)) is not None:
            start = part.stop

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self.size - self._offset)
        if count <= 0:
            return 0
        if self._budget is not budget():  # in a forked child: nothing that its parent asked for will ever come
            self._forget()
            self._file.begin_anew()
        if self._by_ranges:
            try:
                count = self._read_part(memoryview(buffer)[:count])
            except ValueError:
                if not self._file.read_in_sequence():
                    raise
                self._by_ranges = False
                self._forget()
        if not self._by_ranges:
            self._file.seek(self._offset)
            count = self._file.readinto(memoryview(buffer)[:count])
        self._offset += count
        self._last = self._offset
        return count

    def _read_part(self, buffer: memoryview) -> int:
        if self._offset != self._last:
            self._run = self._window = 0
        part = self._asked(self._offset, len(buffer))
        try:
            data = part.wait_data()
        except BaseException:
            self._drop(part)  # reading again asks again
            raise
        first = self._offset - part.start
        count = min(len(buffer), part.stop - self._offset)
        buffer[:count] = memoryview(data)[first : first + count]
        self._run += count
        if self._offset + count == part.stop:  # it has been read
            self._parts.remove(part)
            self._parts.insert(0, part)
            self._window = min(self._ahead_bytes, 2 * self._window)
        return count

    def _asked(self, offset: int, count: int) -> Request:
        """The part that holds ``offset``. What is to be read behind it has been asked for as well."""
        limit = self.size if self.stop is None else min(self.size, self.stop)
        if self._run >= _RUN_BYTES and offset < limit:
            self._window = max(self._window, min(self._ahead_bytes, _FIRST_BYTES))
        else:
            self._window = 0
        until = max(offset + count, min(limit, offset + count + self._window))
        part = self._holding(offset)
        if part is None:
            part = self._add(offset, max(until, min(self.size, offset + _LEAST_BYTES)), needed=True)
            assert part is not None
        position = part.stop
        # The last part would be asked for bit by bit, as the reader comes on
        while position < until and (position + self._part_bytes <= until or until in (limit, offset + count)):
            more = self._holding(position) or self._add(position, until, needed=False)
            if more is None:
                break
            position = more.stop
        return part

    def _holding(self, position: int) -> Request | None:
        return next((part for part in self._parts if part.start <= position < part.stop), None)

    def _add(self, position: int, until: int, *, needed: bool) -> Request | None:
        """A part from ``position`` on, up to ``until`` at most; None if there is no room for it."""
        start, stop = position, min(until, position + self._part_bytes)
        if self._cache is not None:
            start, stop = start // CELL_BYTES * CELL_BYTES, min(self.size, -(-stop // CELL_BYTES) * CELL_BYTES)
        stop = min([stop, *(part.start for part in self._parts if part.start > position)])
        count = stop - start
        while self._held + count > self._ahead_bytes:
            served = (part for part in self._parts if needed or part.stop <= self._offset or part.start >= until)
            if (old := next(served, None)) is None:
                break
            self._drop(old)
        if not needed and self._held + count > self._ahead_bytes:
            return None
        if not self._budget.take(count, needed=needed):
            return None
        part = Request(start, stop, self._fetcher())
        self._parts.append(part)
        self._held += count
        if not needed:
            request_threads().submit(part)
        return part

    def _fetcher(self) -> Any:
        """A function that asks for a part, and does not hold this file."""
        file, cache, key = self._file, self._cache, self._key
        if cache is None:
            return file.fetch
        return lambda start, stop: cache.read_through(key, start, stop, file.fetch)

    def _drop(self, part: Request) -> None:
        part.drop()
        self._parts.remove(part)
        self._held -= part.stop - part.start
        if self._budget is budget():  # else it was a forking parent's, some thread of which may have held its lock
            self._budget.give_back(part.stop - part.start)

    def _forget(self) -> None:
        for part in list(self._parts):
            self._drop(part)
        self._budget = budget()
        self._run = self._window = 0

    def close(self) -> None:
        """Does not wait for what is being asked for: that is thrown away when it comes."""
        if not self.closed:
            self._forget()
            self._file.close()
        super().close()
