"""``read_tfrecord``: the records of TFRecord files, from any record on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.formats.example import example_parser
from torchpipe.formats.tfrecord import TFRecords, check_crc32c
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import ContentReader
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["TFRecordReader"]


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

    unit = "records"
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
