"""Files of many samples: archives and TFRecord files.

- ``read_tfrecord``: the records of TFRecord files, from any record on.
- ``read_webdataset``: the samples in tar shards, from any sample on.
- ``read_zip``: the files in zip archives, from any of them on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchpipe.formats.decoding import by_ending, check_images, decoders
from torchpipe.formats.tar import TarSamples, check_endings
from torchpipe.formats.tfrecord import TFRecords, check_crc32c, example_parser
from torchpipe.formats.zip import ZipFiles
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import ContentReader, FileReader
from torchpipe.node.datapipe import functional_datapipe
from torchpipe.node.validate import check_function

__all__ = ["TFRecordReader", "WebDatasetReader", "ZipReader"]


@functional_datapipe("read_tfrecord")
class TFRecordReader(ContentReader[Any]):
    """Yields the records of TFRecord files: ``tf.train.Example`` and ``SequenceExample`` as dicts of tensors, or bytes.

    ``datapipe`` yields paths, or pieces (``shard_pieces``); or give paths themselves, in which braces and globs may
    stand. URLs are opened by fsspec with ``storage_options``. A feature is a tensor of float32 or int64, or a list of
    bytes; a feature list is a list of these. ``spec`` names the features to give, each as (shape, dtype), as
    torchdata's ``load_from_tfrecord`` takes it: a tensor of that shape and type, for bytes nested lists of that shape;
    ``()`` is one value, a dtype of None leaves the type. With ``parse=False`` records are bytes. ``verify`` compares
    the checksums of the data (of lengths, they always are).

    State: the place of the record, to which resuming goes at once; in a compressed file as
    :class:`~torchpipe.iter.TextLineReader`. A sharding point straight after it passes over records by their lengths.
    :class:`~torchpipe.map.TFRecordFile` reads by number.

    Raises: ImportError without ``crc32c`` (``pip install crc32c``); while iterating, ValueError for a wrong checksum, a
    record that is no example and a feature that is missing or of another size, EOFError for a file that is cut off, all
    with the path, the record and the byte.
    """

    piece_unit = "records"
    fingerprint_ignores = ("storage_options", "verify")

    def __init__(
        self,
        datapipe: Paths,
        spec: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        *,
        parse: bool = True,
        verify: bool = True,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(datapipe, compression, storage_options)
        check_crc32c()
        self.parse = example_parser(spec) if parse else bytes
        self.verify = verify

    def records(self, item: Any) -> TFRecords:
        return TFRecords(self.content(item), self.parse, self.verify, self.piece_of(item)[1])


@functional_datapipe("read_webdataset")
class WebDatasetReader(ContentReader[dict[str, Any]]):
    """Yields the samples of WebDataset's tar shards: dicts with ``__key__``, ``__url__`` (the shard) and what the
    sample's files hold, by their endings.

    ``datapipe`` yields paths, or pieces (``shard_pieces``); or give paths themselves, in which braces and globs may
    stand (``"s3://bucket/train-{000..099}.tar"``). URLs are opened by fsspec with ``storage_options``. Files of one
    sample stand side by side and differ in what follows the first dot of their names; names without a dot, and
    ``__meta__``, are passed over. A link stands for the file that it names, if that stands before it;
    else it is an error where it is read.
    ``extensions`` are those to read, all of which a sample must have; of ``"jpg;png"`` it must have one, which then
    stands under ``"jpg"``. The others are not read.

    With ``decode``, text (``txt``), whole numbers (``cls``, ``id``, ``index``), ``json``, ``npy``, ``npz``, ``pt``
    and ``pth`` (no pickles) become what they stand for, and images (``jpg``, ``png``, ...) as ``images`` says:
    ``"pil"``, ``"rgb8"`` (uint8 arrays of height, width, 3), ``"torchrgb8"`` (uint8 tensors of 3, height, width) or
    None (bytes). Images are decoded as they are stored: one channel of 16 or 32 bits, or of floats, is an error but for
    ``"pil"``, and a rotation that EXIF names is not applied (give a handler). ``handlers``, functions of the
    bytes by ending, go before these; other files are bytes.

    State: the place of the sample in the archive, to which resuming goes at once; compressed archives as
    :class:`~torchpipe.iter.TextLineReader` (shards are better not compressed). A sharding point straight after it
    passes over samples by their headers.

    Raises: ValueError for wrong ``extensions`` or ``images``; while iterating, ValueError for a sample without one
    of the ``extensions`` or with two files of one ending, with more than 60 files (names with dots), or whose files
    do not stand side by side; EOFError for a shard that is cut off, ValueError for a damaged one, and what decoding
    raises, all with the shard, the sample and the byte; StateError where a shard has changed.
    """

    piece_unit = "samples"

    def __init__(
        self,
        datapipe: Paths,
        extensions: Sequence[str] | None = None,
        *,
        decode: bool = True,
        images: str | None = "pil",
        handlers: Mapping[str, Callable[[bytes], Any]] | None = None,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(datapipe, compression, storage_options)
        for ending, function in (handlers or {}).items():
            check_function(f"the handler of {ending!r}", function)
        self.endings = check_endings(extensions)
        self.decodes = bool(decode)
        self.images = check_images(images)
        self.handlers = dict(handlers or {})

    def records(self, item: Any) -> TarSamples:
        content = self.content(item)
        table = decoders(self.images, self.handlers) if self.decodes else by_ending(self.handlers)
        return TarSamples(content, self.endings, table, self.piece_of(item)[1])


@functional_datapipe("read_zip")
class ZipReader(FileReader[tuple[str, bytes]]):
    """Yields pairs (archive/name, content) of the files in zip archives, in the order of the archive's table.

    ``datapipe`` yields paths; or give paths themselves, in which braces and globs may stand. URLs are opened by
    fsspec with ``storage_options``. ``mask`` is a shell pattern for the names within the archive (``"train/*.png"``).

    State: the number of the file in the table, to which resuming goes at once. A sharding point straight after it reads
    the shard's own files alone. torchdata's ``load_from_zip`` gives streams, of streams.

    Raises: while iterating, ValueError for a file that is no zip archive, and for one in it that is damaged or
    encrypted, with the archive and the name; StateError where an archive has changed.
    """

    begins_at = -(1 << 16)  # where the table of what is in it stands

    def __init__(self, datapipe: Paths, mask: str = "", *, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(datapipe, storage_options)
        if not isinstance(mask, str):
            raise TypeError(f"mask must be a shell pattern such as '*.png', got {mask!r} of type {type(mask).__name__}")
        self.mask = mask

    def records(self, item: Any) -> ZipFiles:
        return ZipFiles(self.path_of(item), self.mask, self.storage_options)
