"""Archives and compressed files that are open, and what is in them.

- ``decompress``, ``load_from_bz2`` and ``load_from_xz``: compressed files as streams of what is in them.
- ``load_from_rar``: the files in rar archives.
- ``load_from_tar``: the files in tar archives.
- ``load_from_tfrecord``: the examples in open TFRecord files.
- ``webdataset``: the files of one sample together, by the common part of their names.
- ``load_from_zip``: the files in zip archives.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, TypeAlias

from torchpipe.compat.packages import needs
from torchpipe.errors import GraphError, StateError
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper, can_seek, close_stream_after_parts, wrap_stream
from torchpipe.formats.tar import MOST_ENDINGS, TarStreams, many_endings, split_name
from torchpipe.formats.tfrecord import TFRecords, check_crc32c, example_parser
from torchpipe.formats.zip import ArchiveStreams
from torchpipe.iter._shared.bases import ItemIterator, Itemwise, OneInput
from torchpipe.iter._shared.paths import naming_path, pair_of, path_and_stream
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.tolerance import arrived, forget, refuse
from torchpipe.node.traits import divides, node_name, seeded, walk
from torchpipe.node.validate import check_choice, check_length

__all__ = [
    "Bz2FileLoader",
    "CompressionType",
    "Decompressor",
    "Extractor",
    "RarArchiveLoader",
    "TFRecordExample",
    "TFRecordExampleSpec",
    "TFRecordLoader",
    "TarArchiveLoader",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
]


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


TFRecordExample: TypeAlias = dict[str, Any]
"""The features of one example by name: tensors, or lists of bytes; of feature lists, lists of these."""

TFRecordExampleSpec: TypeAlias = Mapping[str, tuple[Sequence[int], Any]]
"""Name -> (shape, dtype)."""


@functional_datapipe("load_from_tfrecord")
class TFRecordLoader(StreamReader[TFRecordExample]):
    """Takes pairs (path, binary stream) of TFRecord files, and yields their examples, as ``read_tfrecord`` does: dicts
    of tensors and lists of bytes.

    ``spec`` names the features to give, each as (shape, dtype): -1 in a shape is what is left. ``length`` is what
    ``len()`` says, -1 if unknown. A stream is closed at its end. ``read_tfrecord`` takes paths, and shards without
    parsing what others keep.

    State: that of the input before the current file, and the position in it. Resuming opens it again and goes there at
    once, if the stream can seek; else it reads the records before again, which a :class:`~torchpipe.ReplayWarning`
    announces.

    Raises: ImportError without ``crc32c`` (``pip install crc32c``); TypeError, ValueError for a ``spec`` that is none;
    while iterating, TypeError for other items, ValueError for a wrong checksum and an example that
    lacks a feature, EOFError for a file that is cut off, with a note of the path.
    """

    def __init__(
        self, datapipe: IterDataPipe[tuple[str, Any]], spec: TFRecordExampleSpec | None = None, length: int = -1
    ) -> None:
        super().__init__(datapipe, length)
        check_crc32c()
        self.spec = spec
        self.parse = example_parser(spec)

    def records(self, path: str, stream: StreamWrapper) -> TFRecords:
        return TFRecords(Content(path, None, opened=stream), self.parse)


class _SampleIterator(ItemIterator[dict[str, Any]]):
    keeps_items = True
    held: tuple[str, str, Any] | None = None  # key, ending and content of the next sample's first file
    broken: str | None = None  # the key of a sample of which a file was left out: further ones are passed over
    making: str | None = None  # the key of the sample whose files are being gathered
    spoilt = False  # True if a file of it was skipped

    def __init__(self, node: WebDataset, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context)
        failures = context.failures
        if failures is not None and failures.skips and not failures.travels:
            context = replace(context, failures=failures.of_group())
        self.inputs = (context.iterate(source),)

    def get_state(self) -> dict[str, Any]:
        return self._held_state() | ({} if self.broken is None else {"broken": self.broken})

    def _held_state(self) -> dict[str, Any]:
        if self.held is None:
            return {"held": None}
        key, ending, content = self.held
        if not (isinstance(content, StreamWrapper) or hasattr(content, "read")):
            return {"held": self.kept_items([key, ending, content])}
        name, data = getattr(content, "name", None), content.read()
        name = name if isinstance(name, str) else key + ending
        self.held = key, ending, _reopened(name, data)  # it has not been handed out yet
        return {"held": [key, ending], "stream": [name, data]}

    def set_state(self, state: dict[str, Any]) -> None:
        held, self.broken = state["held"], state.get("broken")
        if type(self.broken) not in (str, type(None)):
            raise StateError(f"webdataset passes over a sample by its key, and the state says {self.broken!r:.60}")
        if held is None:
            return
        if "stream" in state:
            name, data = state["stream"]
            if type(name) is not str or type(data) not in (str, bytes):
                raise StateError("the stream that webdataset holds has no name and content in the state")
            held = [*held, _reopened(name, data)]
        if len(held) != 3 or not all(type(text) is str for text in held[:2]):
            raise StateError("what webdataset holds is a key, an ending and a content, and the state has none of these")
        self.held = tuple(held)

    def run(self) -> Iterator[dict[str, Any]]:
        source = self._files()
        while self.held is not None or self._hold_next(source):
            key, ending, content = self.held  # type: ignore[misc]  # _hold_next() said so
            sample = {"__key__": key, ending: content}
            self.making, self.spoilt, self.held = key, False, None
            while self._hold_next(source) and self.held[0] == key:  # type: ignore[index]
                _, ending, content = self.held  # type: ignore[misc]
                if ending in sample:
                    raise ValueError(
                        f"the sample {key!r} has two files {ending!r}: are samples of two shards named alike, one "
                        "straight behind the other?"
                    )
                sample[ending] = content
                self.held = None
                if len(sample) > MOST_ENDINGS + 1:
                    raise many_endings(key, [name[1:] for name in sample if name != "__key__"])
            content = self.making = None  # the consumer alone decides how long streams live
            made = [sample]
            del sample
            if not self.spoilt:
                yield made.pop()

    def _hold_next(self, source: Iterator[tuple[str, str, Any]]) -> bool:
        self.held = next(source, None)
        return self.held is not None

    def _files(self) -> Iterator[tuple[str, str, Any]]:
        source = self.source.items()
        while True:
            try:
                item = next(source)
            except StopIteration:
                return
            except Exception as error:
                if not self._passes_over(error):
                    raise
                continue
            path, content = pair_of("webdataset", item, "(path, content), as from load_from_tar()")
            if not isinstance(path, str):
                raise TypeError(f"webdataset needs paths as text, got {path!r:.200}")
            found = split_name(path.replace("\\", "/"))
            if found is not None and found[0] != self.broken:
                self.broken = None
                yield found[0], f".{found[1]}", content

    def _passes_over(self, error: Exception) -> bool:
        """True if ``error`` stands for a file, or the rest of an archive, that was skipped: its sample goes as well."""
        failures, left = self.context.failures, arrived(error)
        if failures is None or failures.travels or left is None:
            return False
        path = left.path
        if path is None:
            refuse(
                error,
                f"{node_name(left.iterator.node)} has left out something that is no pair (path, content), so that "
                "webdataset() cannot tell whose sample it is of: put an on_error() of its own behind that node if "
                "samples may come without it",
            )
            return False
        key, making = (split_name(path) or (None,))[0], self.making
        if making is not None and (key == making or making.startswith(os.path.normpath(path) + "/")):
            self.spoilt, key = True, making
        if key is None or key != self.broken:  # else that sample is counted already
            failures.note(left)
        self.broken = key
        forget(error)
        return True

    def leave_out(self) -> bool:
        self.broken, self.making = self.making, None
        if self.held is not None and self.held[0] == self.broken:
            self.held = None
        return True


@functional_datapipe("webdataset")
class WebDataset(OneInput[dict[str, Any]]):
    """Takes pairs (path, content), and yields a dict for each run of paths that differ only in what follows the first
    dot of the file's name: ``{"__key__": "shard.tar/0001", ".jpg": ..., ".cls": ...}``.

    The contents may be anything: what ``load_from_tar().map(decode)`` makes, or open streams. Names are taken apart as
    ``read_webdataset`` does: endings are in lower case; paths whose last part has no dot, begins with its only dot or
    is like ``__meta__.json`` are left out.

    Under ``on_error("skip")`` a sample goes whole with one of its files, and with the rest of an archive that is cut
    off or damaged. Where what was left out is no pair (path, content), nobody can tell whose it is: it is raised.

    State: the first pair of the sample after the one handed out, which had to be read to know that this one is whole.
    If it is an open stream, its content.

    Raises: GraphError for a sharding point or a shuffle between the node that reads archives and this one, which would
    part the files of a sample; while iterating, TypeError for other items; ValueError if a sample has two files of one
    ending (are samples of several shards named alike?) or more than 60 (are there dots in their names?).
    """

    iterator = _SampleIterator

    def __init__(self, source_datapipe: IterDataPipe[tuple[str, Any]]) -> None:
        super().__init__(source_datapipe)
        for node in walk(source_datapipe):
            archive = next((item for item in walk(node) if getattr(type(item), "makes_members", False)), None)
            if archive is not None and (divides(node) or seeded(node)):
                raise GraphError(
                    f"{node_name(node)} stands between {node_name(archive)} and webdataset(), so that the files of one "
                    "sample would be parted: put it before the archives are read, or behind webdataset()"
                )


def _reopened(name: str, data: str | bytes) -> StreamWrapper:
    return wrap_stream(io.BytesIO(data) if isinstance(data, bytes) else io.StringIO(data), name=name)


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
