"""``load_from_rar``: the files in rar archives."""

from __future__ import annotations

from typing import Any

from torchpipe.compat.packages import needs
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.formats.zip import ArchiveStreams
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["RarArchiveLoader"]


@functional_datapipe("load_from_rar")
class RarArchiveLoader(StreamReader[tuple[str, StreamWrapper]]):
    """Takes pairs (path, binary stream) of rar archives, and yields pairs (archive/member, stream) of their files.

    Needs ``rarfile`` (``pip install rarfile``), and for files that are compressed in the archive one of the
    programs ``unrar``, ``unar``, ``7z`` or ``bsdtar``. ``length`` is what ``len()`` says, -1 if unknown.

    State: that of the input before the current archive and the number of its files handed out: resuming opens the
    archive again and goes on at once.

    Raises: ImportError without ``rarfile``; while iterating, TypeError for other items, ValueError for
    an archive within an archive (extract the outer one first), and the error of ``rarfile`` with a note of the path.
    """

    makes_members = True  # whose order says which belong together

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], *, length: int = -1) -> None:
        needs("rarfile", "load_from_rar")
        super().__init__(datapipe, length)

    def records(self, path: str, stream: StreamWrapper) -> ArchiveStreams:
        import rarfile

        if isinstance(stream.file_obj, rarfile.RarExtFile):
            raise ValueError("Nested RAR archive is not supported by load_from_rar: extract the outer one first")
        return ArchiveStreams(path, stream, rarfile.RarFile(stream))
