"""``decompress``, ``load_from_bz2`` and ``load_from_xz``: compressed files as streams of what is in them."""

from __future__ import annotations

import io
import os
from enum import Enum
from typing import Any

from torchpipe.compat.packages import needs
from torchpipe.formats.storage.streams import StreamWrapper, can_seek, close_stream_after_parts, wrap_stream
from torchpipe.iter._shared.bases import Itemwise
from torchpipe.iter._shared.paths import naming_path, path_and_stream
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_choice, check_length

__all__ = ["Bz2FileLoader", "CompressionType", "Decompressor", "Extractor", "XzFileLoader"]


class CompressionType(Enum):
    """The compression of a file, or the archive format that packs it with others."""

    GZIP = "gzip"
    LZMA = "lzma"
    TAR = "tar"
    ZIP = "zip"
    BZIP2 = "bz2"
    ZSTD = "zstd"


_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")
_ENDINGS = {
    **dict.fromkeys(_TAR, CompressionType.TAR),
    ".xz": CompressionType.LZMA,
    ".gz": CompressionType.GZIP,
    ".zip": CompressionType.ZIP,
    ".bz2": CompressionType.BZIP2,
    ".zst": CompressionType.ZSTD,
}


class _Decompressor(Itemwise[tuple[str, StreamWrapper]]):
    ending = ""  # that the names of decompressed files are without
    file_type: CompressionType | None = None

    def change(self, item: Any) -> tuple[str, StreamWrapper]:
        path, stream = path_and_stream(self.form, item)
        with naming_path(path, "opening"):
            opened = _open(self.file_type or _type_of(path), stream)
        name = path.removesuffix(self.ending)
        made = wrap_stream(opened, parent=stream, name=name)
        close_stream_after_parts(stream)
        return name, made


@functional_datapipe("decompress")
class Decompressor(_Decompressor):
    """Takes pairs (path, binary stream), and yields pairs (path, decompressed stream).

    ``file_type`` is a :class:`CompressionType` or its name; without one, the path's ending tells: ``.gz``, ``.bz2``,
    ``.xz``, ``.zst`` (``pip install zstandard``). Archives (``.tar`` and its compressed forms, ``.zip``) come
    as open ``tarfile.TarFile`` and ``zipfile.ZipFile`` objects, which ``load_from_tar`` and ``load_from_zip`` take.

    State: none of its own. Raises: ValueError for an unknown ``file_type``; while iterating, RuntimeError for an
    unknown ending, TypeError for other items, and the error of the format with a note of the path.
    """

    types = CompressionType

    def __init__(
        self, source_datapipe: IterDataPipe[tuple[str, Any]], file_type: str | CompressionType | None = None
    ) -> None:
        super().__init__(source_datapipe)
        if not isinstance(file_type, CompressionType | None):
            name = file_type.lower() if isinstance(file_type, str) else file_type
            check_choice("file_type", name, [kind.value for kind in CompressionType])
            file_type = CompressionType(name)
        self.file_type = file_type


@functional_datapipe("extract")
class Extractor(IterDataPipe[tuple[str, StreamWrapper]]):
    """The former name of ``decompress``, whose node it makes."""

    def __new__(  # type: ignore[misc]
        cls, source_datapipe: IterDataPipe[tuple[str, Any]], file_type: str | CompressionType | None = None
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        return Decompressor(source_datapipe, file_type)


class _FileLoader(_Decompressor):
    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], length: int = -1) -> None:
        super().__init__(datapipe)
        self.length = check_length(length)

    def __len__(self) -> int:
        return len(self.source) if self.length < 0 else self.length


@functional_datapipe("load_from_bz2")
class Bz2FileLoader(_FileLoader):
    """Takes pairs (path, binary stream) of bz2 files, and yields pairs (path without ``.bz2``, decompressed stream).

    ``length`` is what ``len()`` says, -1 for that of the input. A file is closed with the stream made of it.

    State: none of its own. Raises: while iterating, TypeError for other items; reading the stream
    raises EOFError or OSError for damaged files.
    """

    ending, file_type = ".bz2", CompressionType.BZIP2


@functional_datapipe("load_from_xz")
class XzFileLoader(_FileLoader):
    """Takes pairs (path, binary stream) of xz files, and yields pairs (path without ``.xz``, decompressed stream).

    ``length`` is what ``len()`` says, -1 for that of the input. A file is closed with the stream made of it.

    State: none of its own. Raises: while iterating, TypeError for other items; reading the stream
    raises EOFError or ``lzma.LZMAError`` for damaged files.
    """

    ending, file_type = ".xz", CompressionType.LZMA


def _type_of(path: str) -> CompressionType:
    name = os.path.basename(path).lower()
    for ending in sorted(_ENDINGS, key=len, reverse=True):
        if name.endswith(ending):
            return _ENDINGS[ending]
    raise RuntimeError(
        f"{path!r} has none of the endings {', '.join(sorted(_ENDINGS))}: pass file_type= to say how it is compressed"
    )


def _open(kind: CompressionType, stream: Any) -> Any:
    import bz2
    import gzip
    import lzma
    import tarfile
    import zipfile

    match kind:
        case CompressionType.GZIP:
            return gzip.GzipFile(fileobj=stream)
        case CompressionType.LZMA:
            return lzma.LZMAFile(stream)
        case CompressionType.BZIP2:
            return bz2.BZ2File(stream)
        case CompressionType.ZIP:
            return zipfile.ZipFile(stream)
        case CompressionType.TAR:
            return tarfile.open(fileobj=stream, mode="r:*" if can_seek(stream) else "r|*")
        case CompressionType.ZSTD:
            reader = needs("zstandard", "decompress").ZstdDecompressor().stream_reader
            return io.BufferedReader(reader(stream, read_across_frames=True, closefd=False))
