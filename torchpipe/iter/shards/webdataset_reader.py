"""``read_webdataset``: the samples in tar shards, from any sample on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchpipe.formats.decoding import by_ending, check_images, decoders
from torchpipe.formats.samples import TarSamples, check_endings
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import ContentReader
from torchpipe.node.datapipe import functional_datapipe
from torchpipe.node.validate import check_function

__all__ = ["WebDatasetReader"]


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

    unit = "samples"

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
