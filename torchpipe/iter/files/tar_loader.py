"""``load_from_tar``: the files in tar archives. Runs wherever its shard runs."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import Any, Self

from torchpipe.iter._expanding import ExpandingIterator
from torchpipe.iter._pairs import path_and_stream
from torchpipe.iter._streams import StreamWrapper, close_stream, close_stream_after_parts, wrap_stream
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
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

    State: that of the input before the current archive and the number of its files handed out. Resuming opens it again.

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
        return self._members(*path_and_stream("load_from_tar", item))

    def _members(self, path: str, stream: StreamWrapper) -> Iterator[tuple[str, StreamWrapper]]:
        archive: tarfile.TarFile | None = None
        ended = False
        try:
            archive = self._open(stream)
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # else it keeps every header it has seen
                if not member.isfile():
                    continue
                content = archive.extractfile(member)
                inner = os.path.normpath(os.path.join(path, member.name))
                yield inner, wrap_stream(content, parent=stream, name=inner)
            ended = True
        except Exception as error:
            error.add_note(f"while reading the archive {path}")
            raise
        finally:
            if ended:
                close_stream_after_parts(stream)  # once the streams made of it are closed: they may be read later
            else:
                if archive is not None:
                    archive.close()
                close_stream(stream)

    def _open(self, stream: StreamWrapper) -> tarfile.TarFile:
        if isinstance(stream.file_obj, tarfile.TarFile):
            return stream.file_obj
        seekable = getattr(stream, "seekable", None)
        mode: Any = self.node.mode if seekable is not None and seekable() else self.node.mode.replace(":", "|")
        return tarfile.open(fileobj=stream, mode=mode, tarinfo=_StrictTarInfo)
