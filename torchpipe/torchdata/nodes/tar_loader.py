"""``load_from_tar``: the files in tar archives."""

from __future__ import annotations

import re
import tarfile
from typing import Any

from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper, can_seek
from torchpipe.formats.tar import TarStreams
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["TarArchiveLoader"]

_MODE = re.compile(r"r(?:[:|](\*|gz|bz2|xz|zst)?)?")
_KINDS = {None: None, "*": "found", "gz": "gzip", "bz2": "bz2", "xz": "xz", "zst": "zstd"}


@functional_datapipe("load_from_tar")
class TarArchiveLoader(StreamReader[tuple[str, StreamWrapper]]):
    """Takes pairs (path, binary stream) of tar archives, and yields pairs (archive/member, stream) of their files.

    ``mode`` says as in :func:`tarfile.open` how they are compressed: ``"r:gz"``, ``"r:"`` for not at all, by default
    (``"r:*"``) what their first bytes tell. ``length`` is what ``len()`` says, -1 if unknown. An archive is closed
    when it and the streams made of it are done with, all of them by ``close()``. Streams may be read in any order if
    the archive's can seek; else each before the next one is pulled. ``read_webdataset`` takes paths and yields samples.

    State: that of the input before the current archive, and the position in it. Resuming opens it again and goes there
    at once (of compressed ones, the bytes before are decompressed again); a stream that cannot seek is read again up to
    there, which a :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError for another ``mode``; while iterating, TypeError for other items, EOFError for
    an archive that is cut off and ValueError for one that is damaged, holds a sparse file, or goes on behind its end,
    and for a link to no file before it, with the path and the byte.
    """

    makes_members = True  # whose order says which belong together

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], mode: str = "r:*", length: int = -1) -> None:
        super().__init__(datapipe, length)
        if not (isinstance(mode, str) and _MODE.fullmatch(mode)):
            raise ValueError(f"mode must be one for reading, such as 'r:*' or 'r|gz', got {mode!r}")
        self.mode = mode

    def records(self, path: str, stream: StreamWrapper) -> TarStreams:
        match = _MODE.fullmatch(self.mode)
        kind = _KINDS["*" if self.mode == "r" or match is None else match[1]]
        opened = stream
        if isinstance(stream.file_obj, tarfile.TarFile):  # from decompress(): read again what it was opened on
            opened, kind = stream.parent_stream, "found"
            if not can_seek(opened):
                raise ValueError(
                    "decompress() has read the beginning of a stream that cannot seek: leave it out, load_from_tar "
                    "decompresses by itself"
                )
            opened.seek(0)
        return TarStreams(Content(path, kind, opened=opened), stream)
