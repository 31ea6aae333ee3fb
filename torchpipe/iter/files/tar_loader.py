"""``load_from_tar``: the files in tar archives. Runs wherever its shard runs."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, Self

from torchpipe.errors import StateError
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.pairs import naming_path, path_and_stream
from torchpipe.iter._shared.places import can_seek, check_stamp, stamp_of
from torchpipe.iter._shared.streams import StreamWrapper, close_stream, close_stream_after_parts, wrap_stream
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import check_input, check_length

__all__ = ["TarArchiveLoader"]


class _StrictTarInfo(tarfile.TarInfo):
    """Raises where ``tarfile`` takes a damaged or missing header in the middle of an archive for its end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if archive.offset == 0 or isinstance(error, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise  # tarfile reports the first itself; the second is the regular end
            raise tarfile.ReadError(f"{error} at byte {archive.offset}: the archive is cut off or damaged") from error


@functional_datapipe("load_from_tar")
class TarArchiveLoader(IterDataPipe[tuple[str, StreamWrapper]]):
    """Takes pairs (path, binary stream) of tar archives, and yields pairs (archive/member, stream) of their files.

    ``mode`` is that of :func:`tarfile.open`, by default any compression; a stream that cannot seek is read in order.
    ``length`` is what ``len()`` says, -1 if unknown. An archive is closed when it and the streams made of it are done
    with, all of them by ``close()``.

    State: that of the input before the current archive, and the place in it. Resuming opens it again and goes there at
    once (of compressed ones, the bytes before are decompressed again); a stream that cannot seek is read again up to
    there, which a :class:`~torchpipe.ReplayWarning` announces.

    Raises: while iterating, TypeError for items that are no such pairs, and the error of ``tarfile`` with a note of the
    path for archives that are damaged or cut off, even where ``tarfile`` alone would see a regular end.
    """

    thins = True

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], mode: str = "r:*", length: int = -1) -> None:
        check_input("load_from_tar", datapipe)
        if not (isinstance(mode, str) and mode.startswith("r")):
            raise ValueError(f"mode must be one for reading, such as 'r:*' or 'r|gz', got {mode!r}")
        self.datapipe = datapipe
        self.mode = mode
        self.length = check_length(length)

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError("load_from_tar does not know how many files there are: pass length= if you do")
        return self.length

    def iterate(self, context: Context) -> NodeIterator[tuple[str, StreamWrapper]]:
        return _TarIterator(self, context)


class _TarIterator(ExpandingIterator[tuple[str, StreamWrapper]]):
    node: TarArchiveLoader

    def __init__(self, node: TarArchiveLoader, context: Context) -> None:
        super().__init__(node, context, node.datapipe)

    def expand(self, item: Any) -> Iterator[tuple[str, StreamWrapper]]:
        path, stream = path_and_stream("load_from_tar", item)
        mode = self.node.mode
        if isinstance(stream.file_obj, tarfile.TarFile):  # from decompress()
            return _Members(path, stream, lambda: stream.file_obj)
        if "|" in mode or not can_seek(stream):
            return _Members(path, stream, lambda: _opened(stream, mode.replace(":", "|")))
        return _PlacedMembers(path, stream, lambda: _opened(stream, mode))


def _opened(stream: StreamWrapper, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, tarinfo=_StrictTarInfo)


class _Members(Iterator[tuple[str, StreamWrapper]]):
    """The files of one archive, in order. Without state: an archive that is read as a stream has no way back."""

    def __init__(self, path: str, stream: StreamWrapper, open_archive: Callable[[], tarfile.TarFile]) -> None:
        self._path = path
        self._stream = stream
        try:
            with naming_path(path, "reading the archive"):
                self._archive = open_archive()
        except Exception:
            close_stream(stream)
            raise

    def __next__(self) -> tuple[str, StreamWrapper]:
        try:
            with naming_path(self._path, "reading the archive"):
                member = self._next_file()
                content = None if member is None else self._archive.extractfile(member)
        except Exception:
            self._archive.close()
            close_stream(self._stream)
            raise
        if member is None:
            close_stream_after_parts(self._stream)  # once the streams made of it are closed: they may be read later
            raise StopIteration
        inner = os.path.normpath(os.path.join(self._path, member.name))
        return inner, wrap_stream(content, parent=self._stream, name=inner)

    def _next_file(self) -> tarfile.TarInfo | None:
        while True:
            member = self._archive.next()
            self._archive.members.clear()  # type: ignore[attr-defined]  # else it keeps every header it has seen
            if member is None or member.isfile():
                return member


class _PlacedMembers(_Members):
    """The same of an archive that can seek. State: the place of the next header, what a header said of all, and by what
    another archive is known.
    """

    _found: list[tarfile.TarInfo | None] | None = None  # by going to a place

    def __init__(self, path: str, stream: StreamWrapper, open_archive: Callable[[], tarfile.TarFile]) -> None:
        super().__init__(path, stream, open_archive)
        self._stamp = stamp_of(stream)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._archive.offset, "of_all": dict(self._archive.pax_headers), "file": self._stamp}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_stamp(self._path, state["file"], self._stamp)
        of_all = state["of_all"]
        if type(of_all) is not dict or not all(type(text) is str for pair in of_all.items() for text in pair):
            raise StateError("the state has no pax headers, as tar archives have them")
        self._archive.offset = place = stored_count(state, "place")
        self._archive.firstmember = None  # type: ignore[attr-defined]  # it was read when the archive was opened
        self._archive.pax_headers = of_all
        try:
            self._found = [self._next_file()]
        except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
            raise StateError(
                f"{self._path} has no header at byte {place}, where the state stands: is it the same?"
            ) from error

    def _next_file(self) -> tarfile.TarInfo | None:
        return self._found.pop() if self._found else super()._next_file()
