"""``load_from_tfrecord``: the examples in open TFRecord files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.formats.tfrecord import TFRecords, check_crc32c, example_parser
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["TFRecordExample", "TFRecordExampleSpec", "TFRecordLoader"]

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
