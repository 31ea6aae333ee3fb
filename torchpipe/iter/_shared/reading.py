"""Bases of the nodes that read the records of files, with an exact position.

The input gives paths or pieces of files (``FileReader``), or files that are open already (``StreamReader``). The state
is the input's *before* the current file and the position within it: resuming pulls the item again, opens the file and
goes there.
A sharding point straight after a ``FileReader`` makes it pass over the records that the shard does not keep, which a
format can do without making them.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from torchpipe.formats.pieces.plan import Piece, check_unchanged
from torchpipe.formats.records import Records, behind_of
from torchpipe.formats.storage.block_cache import check_storage_options
from torchpipe.formats.storage.content import Content, check_compression
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.remote import FILES, Beginning, OpenedAhead
from torchpipe.formats.storage.streams import StreamWrapper, can_seek
from torchpipe.iter._shared.bases import OneInput
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.paths import as_paths, coming, made_of_files, named_files, path_and_stream
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, Positions, stored_count
from torchpipe.node.traits import DataPipe, node_name, walk
from torchpipe.node.user_warnings import COMPRESSED
from torchpipe.node.validate import check_length

__all__ = ["ContentReader", "FileReader", "Spot", "StreamReader"]

T = TypeVar("T")

_END: Any = object()
_IN_BYTES = ("lines", "samples", "records")  # units of pieces that begin at a byte
_BEFORE_BYTES = 1 << 12  # that a reader may look at: does a line end there?
_MUCH_BYTES = 64 << 20  # reading so much again takes a moment, and is announced


class Spot(str):
    """The place in a file at which reading has failed, as text."""

    path: str
    rest: bool  # True if what is behind it is lost as well


class FileReader(IterDataPipe[T]):
    """Base of the readers: ``paths`` is a node that yields paths, or what :class:`~torchpipe.iter.PathList` takes."""

    form: ClassVar[str]  # its name in messages; by default that of the class
    piece_unit: ClassVar[str] = "files"  # where files may be cut into pieces that it can read by themselves
    begins_at: ClassVar[int] = 0  # of a whole file: the byte that is read first; negative: so many before the end
    divided_by = "shard_pieces"
    fingerprint_ignores: ClassVar[tuple[str, ...]] = ("storage_options",)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if getattr(cls, "form", None) in (None, *(base.__name__ for base in cls.__mro__)):
            cls.form = cls.__name__

    def __init__(self, paths: Any, storage_options: Mapping[str, Any] | None) -> None:
        self.storage_options = check_storage_options(storage_options)
        self.source = as_paths(self.form, paths, storage_options)

    def piece_of(self, item: object) -> tuple[str, tuple[int, int] | None]:
        """An item as a path, and what to read of the file: from where to where, in ``piece_unit``; None for all of it.

        Raises: TypeError for what is no path, and for a piece of another unit.
        """
        if isinstance(item, Piece):
            if item.unit == "files":
                return item.path, None
            if item.unit == self.piece_unit:
                return item.path, (item.start, item.stop)
            raise TypeError(
                f"{self.form} reads pieces that are {self.piece_unit}, and {item.path} was cut at {item.unit}: let "
                f"{self.form}(paths).shard_pieces() make them, or give FilePieces the unit {self.piece_unit!r}"
            )
        if isinstance(item, str | os.PathLike):
            path = os.fspath(item)
            if isinstance(path, str):
                return path, None
        raise TypeError(
            f"{self.form} needs paths, or pieces of files as FilePieces and list_row_groups() make them, got "
            f"{item!r:.80} of type {type(item).__name__}"
        )

    def path_of(self, item: object) -> str:
        """An item as the path of a file that is read whole. Raises: as :meth:`piece_of`."""
        return self.piece_of(item)[0]

    def made_of(self) -> Mapping[str, Any]:
        return made_of_files(self, named_files(self.source))

    def first_bytes(self, path: str, part: bool) -> tuple[int, int | None]:
        """The byte to read first of a file, or of a ``part`` not in bytes, and the one where reading may stop."""
        return self.begins_at, None

    @abstractmethod
    def records(self, item: Any) -> Records[T]:
        """The records of the file that an item of the input names, from its start on."""

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _FileIterator(self, context, self.source)


class ContentReader(FileReader[T]):
    """Base of those whose files may be compressed."""

    def __init__(self, paths: Any, compression: str | None, storage_options: Mapping[str, Any] | None) -> None:
        super().__init__(paths, storage_options)
        self.compression = check_compression(compression)

    def content(self, item: object) -> Content:
        """The content of the file that an item of the input names."""
        path, span = self.piece_of(item)
        return Content(path, self.compression, self.storage_options, stop=None if span is None else span[1])


class StreamReader(OneInput[T]):
    """Base of the readers whose input gives pairs (path, open stream). ``length`` is what ``len()`` says."""

    binary: ClassVar[bool] = True  # must the stream be of bytes? For messages

    def __init__(self, source: IterDataPipe[tuple[str, Any]], length: int = -1) -> None:
        super().__init__(source)
        self.length = check_length(length)

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError(f"{self.form} does not know how many items there are: pass length= if you do")
        return self.length

    @abstractmethod
    def records(self, path: str, stream: StreamWrapper) -> Records[T]:
        """The records of an open file, from where it stands on."""

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _StreamIterator(self, context, self.source)


class _RecordsIterator(ExpandingIterator[T]):
    """One pass over a reader: goes on behind a record that is wrong, where it can be told where that ends."""

    def __init__(self, node: Any, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self._item: Any = None  # of the input, whose file is open
        self._failed: Spot | None = None  # where in that file reading has failed
        self._opened: Records[T] | None = None
        self._behind: Records[T] | None = None  # the file again, behind a record that is wrong

    @abstractmethod
    def open_again(self) -> Records[T]:
        """The records of the file that is open, from their start on."""

    def records_in(self, records: Records[T]) -> Iterator[T]:
        """The records to hand out."""
        for record in records:
            self._handed_out += 1
            yield record

    def may_go_on(self, failed: Records[T]) -> bool:
        """True if it is one record of this pass's own that is wrong."""
        return failed.has_positions

    def to_replay(self) -> tuple[str, int]:
        if self._loaded is None and not isinstance(self._current, Records):
            return super().to_replay()
        size, count = behind_of(self._loaded) if self._current is None else self._current.behind()
        return f"{COMPRESSED}{node_name(self.node)}", count if size >= _MUCH_BYTES else 0

    def run(self) -> Iterator[T]:
        if self._behind is not None:
            if self._behind.read_whole:
                self._behind.pass_read()
            self._current, self._behind = self._behind, None
            yield from self._hand_out(self._current)
        yield from super().run()

    def _hand_out(self, parts: Iterable[T]) -> Iterator[T]:
        records = parts.records if isinstance(parts, _InOrder) else parts
        if not isinstance(records, Records):  # nothing has been opened yet
            yield from super()._hand_out(parts)
            return
        try:
            yield from self.records_in(records)
        except Exception as error:
            records.failed = True
            error.add_note(f"{node_name(self.node)}: while reading {records.path}, {records.where()}")
            position = f"{records.path}, {records.where()}"
            if (failures := self.context.failures) is not None and failures.skips and self.may_go_on(records):
                self._behind = self._passed_over(records)
            if self._behind is None:
                records.close()  # its position is still known
            self._failed = Spot(position if self._behind is not None else f"{position} and what is behind it")
            self._failed.path, self._failed.rest = records.path, self._behind is None
            raise
        records.close()
        self._leave()

    def _passed_over(self, failed: Records[T]) -> Records[T] | None:
        """The file of ``failed`` behind the record that is wrong; None if there is no telling where that ends."""
        if failed.read_whole:
            return failed
        again = None
        try:
            position = failed.state_dict()
            again = self.open_again()
            again.load_state_dict(position)
            again.follow(failed)
            if again.leave_out():
                return again
        except Exception:  # it is the same again, of what is read when passing over: on_error() has the first one
            pass
        if again is not None:
            again.close()
        return None

    def current(self) -> object:
        return self._item if self._failed is None else self._failed

    def leave_out(self) -> bool:
        return self._behind is not None or super().leave_out()

    def lost(self, of_input: bool) -> int | None:
        return 1 if not of_input and self._behind is not None and self.leave_out() else None  # else an unknown number


class _StreamIterator(_RecordsIterator[T]):
    node: StreamReader[T]
    _begins = 0  # where the stream stood when it came

    def expand(self, item: Any) -> Iterator[T]:
        self._item, self._failed = item, None
        path, stream = path_and_stream(self.node.form, item, binary=self.node.binary)
        self._begins = stream.tell() if can_seek(stream) else 0
        try:
            records = self.node.records(path, stream)
        except Exception as error:
            error.add_note(f"{node_name(self.node)}: while opening {path}")
            raise
        return records if records.has_positions else _InOrder(records)

    def open_again(self) -> Records[T]:
        path, stream = path_and_stream(self.node.form, self._item, binary=self.node.binary)
        stream.seek(self._begins)
        return self.node.records(path, stream)


def _plan_file(reader: DataPipe) -> str | None:
    """The file that keeps the plan of the pieces that ``reader`` is given, if there is one."""
    return next((file for node in walk(reader) if (file := getattr(node, "plan_file", None)) is not None), None)


class _InOrder(Iterator[T]):
    """The records of a stream that cannot seek: they have no position to go to."""

    def __init__(self, records: Records[T]) -> None:
        self.records = records

    def __next__(self) -> T:
        return next(self.records)


class _FileIterator(_RecordsIterator[T]):
    node: FileReader[T]

    def __init__(self, node: FileReader[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self._records = self.with_retries(_named(node.records, f"opening a file with {node_name(node)}"))
        self.position = 0  # records up to the last one yielded, those passed over included; kept when striding
        self._striding: tuple[int, int] | None = None
        self._passing = False  # over records of other shards
        self._ahead = OpenedAhead(node.storage_options)

    @property
    def by_position(self) -> Positions:
        return Positions(self, self._stride)

    def _stride(self, parts: int, part: int) -> None:
        self._striding = (parts, part)

    def get_state(self) -> dict[str, Any]:
        state = super().get_state()
        return state if self._striding is None else {**state, "position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if self._striding is not None:
            self.position = stored_count(state, "position")

    def expand(self, item: Any) -> Records[T]:
        self._item, self._failed = item, None
        try:
            with self._ahead.offered():
                self._opened = self._records(item)
        except Exception as error:
            error.add_note(f"{node_name(self.node)}: while opening {item!r:.300}")
            raise
        beginnings = (_beginning(self.node, later) for later in coming(self.source, FILES))
        self._ahead.prepare([each for each in beginnings if each is not None])
        if isinstance(item, Piece):
            try:
                check_unchanged(item, self._opened.stamp, _plan_file(self.node))
            except ValueError:
                self._opened.close()
                raise
        if self._striding is not None:
            self._opened.step = self._striding[0]
        return self._opened

    def open_again(self) -> Records[T]:
        if self._opened is not None:
            self._opened.close()
        return self.expand(self._item)

    def may_go_on(self, failed: Records[T]) -> bool:
        return not self._passing

    def records_in(self, records: Records[T]) -> Iterator[T]:
        return super().records_in(records) if self._striding is None else self._kept(records, *self._striding)

    def _kept(self, records: Records[T], parts: int, part: int) -> Iterator[T]:
        while True:
            others = (part - self.position) % parts
            self._passing = True
            passed = records.skip(others) if others else 0
            self._passing = False
            self.position += passed
            if passed < others or (record := next(records, _END)) is _END:
                return
            self.position += 1
            yield record

    def leave_out(self) -> bool:
        if self._behind is not None:
            self.position += 1  # as every other shard counts it, which passes over it unseen
            return True
        # A shard that strides may be the only one to see the error, and would then count other records than the rest
        return self._striding is None and super().leave_out()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._ahead.close()
            if self._opened is not None:
                self._opened.close()


def _beginning(reader: FileReader[Any], item: object) -> Beginning | None:
    """The path and bytes with which ``reader`` begins the item's file or piece; None for a local file."""
    path, span = reader.piece_of(item)
    if not is_remote(path):
        return None
    if span is None or reader.piece_unit not in _IN_BYTES:
        return path, *reader.first_bytes(path, span is not None)
    return path, max(0, span[0] - _BEFORE_BYTES), span[1]


def _named(fn: Callable[[Any], T], name: str) -> Callable[[Any], T]:
    """``fn`` by a name that says what it does, for messages."""

    def call(item: Any) -> T:
        return fn(item)

    call.__qualname__ = name
    return call
