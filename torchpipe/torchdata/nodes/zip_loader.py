"""``load_from_zip``: the files in zip archives."""

from __future__ import annotations

import zipfile
from typing import Any

from torchpipe.formats.storage.streams import StreamWrapper, can_seek
from torchpipe.formats.zip import ArchiveStreams
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["ZipArchiveLoader"]


@functional_datapipe("load_from_zip")
class ZipArchiveLoader(StreamReader[tuple[str, StreamWrapper]]):
    """Takes pairs (path, binary stream) of zip archives, and yields pairs (archive/member, stream) of their files.

    They come in the order of the archive's table, without folders. ``length`` is what ``len()`` says, -1 if unknown. An
    archive is closed when it and the streams made of it are done with. ``read_zip`` takes paths and yields contents.

    State: that of the input before the current archive and the number of its files handed out: resuming opens the
    archive again and goes on at once.

    Raises: while iterating, TypeError for other items, ValueError for a stream that cannot seek (the
    table stands at the end), and ``zipfile.BadZipFile`` with a note of the path for damaged archives.
    """

    makes_members = True  # whose order says which belong together

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], length: int = -1) -> None:
        super().__init__(datapipe, length)

    def records(self, path: str, stream: StreamWrapper) -> ArchiveStreams:
        archive = stream.file_obj
        if not isinstance(archive, zipfile.ZipFile):  # from decompress()
            if not can_seek(stream):
                raise ValueError("a zip archive's table stands at its end: load_from_zip needs a stream that can seek")
            archive = zipfile.ZipFile(stream)
        return ArchiveStreams(path, stream, archive)
