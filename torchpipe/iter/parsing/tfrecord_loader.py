"""``load_from_tfrecord``: the examples in open TFRecord files. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torchpipe.formats.example import example_parser
from torchpipe.formats.tfrecord import read_record
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.pairs import naming_path, path_and_stream
from torchpipe.iter._shared.places import can_seek, go_to_place, place_in, stamp_of
from torchpipe.iter._shared.streams import StreamWrapper, close_stream
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input, check_length

__all__ = ["TFRecordExample", "TFRecordExampleSpec", "TFRecordLoader"]

TFRecordExample: TypeAlias = dict[str, Any]
"""The features of one example by name: tensors, or lists of bytes; of feature lists, lists of these."""

TFRecordExampleSpec: TypeAlias = Mapping[str, tuple[Sequence[int], Any]]
"""Name -> (shape, dtype)."""


@functional_datapipe("load_from_tfrecord")
class TFRecordLoader(IterDataPipe[TFRecordExample]):
    """Takes pairs (path, binary stream) of TFRecord files, and yields their examples, as ``read_tfrecord`` does: dicts
    of tensors and lists of bytes.

    ``spec`` names the features to give, each as (shape, dtype): -1 in a shape is what is left. ``length`` is what
    ``len()`` says, -1 if unknown. A stream is closed at its end. ``read_tfrecord`` takes paths, and shards without
    parsing what others keep.

    State: that of the input before the current file, and the place in it. Resuming opens it again and goes there at
    once, if the stream can seek; else it reads the records before again, which a :class:`~torchpipe.ReplayWarning`
    announces.

    Raises: TypeError, ValueError for a ``spec`` that is none; while iterating, TypeError for items that are no such
    pairs, ValueError for a wrong checksum and an example that lacks a feature, EOFError for a file that is cut off,
    with a note of the path.
    """

    thins = True

    def __init__(
        self, datapipe: IterDataPipe[tuple[str, Any]], spec: TFRecordExampleSpec | None = None, length: int = -1
    ) -> None:
        check_input("load_from_tfrecord", datapipe)
        self.datapipe = datapipe
        self.spec = spec
        self.parse = example_parser(spec)
        self.length = check_length(length)

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError("load_from_tfrecord does not know how many examples there are: pass length= if you do")
        return self.length

    def iterate(self, context: Context) -> NodeIterator[TFRecordExample]:
        return _ExampleIterator(self, context, self.datapipe)


class _ExampleIterator(ExpandingIterator[TFRecordExample]):
    node: TFRecordLoader

    def expand(self, item: Any) -> Iterator[TFRecordExample]:
        path, stream = path_and_stream("load_from_tfrecord", item)
        return (_PlacedExamples if can_seek(stream) else _Examples)(self.node, path, stream)


class _Examples(Iterator[TFRecordExample]):
    def __init__(self, node: TFRecordLoader, path: str, stream: StreamWrapper) -> None:
        self._parse = node.parse
        self._path = path
        self._stream = stream
        self._offset = 0  # for messages

    def __next__(self) -> TFRecordExample:
        with naming_path(self._path):
            data = read_record(self._path, self._stream, self._offset)  # type: ignore[arg-type]
            if data is not None:
                self._offset += len(data) + 16
                return self._parse(data)  # type: ignore[no-any-return]
        close_stream(self._stream)
        raise StopIteration


class _PlacedExamples(_Examples):
    """The same of a stream that can seek. State: the place in it, and by what another file is known."""

    def __init__(self, node: TFRecordLoader, path: str, stream: StreamWrapper) -> None:
        super().__init__(node, path, stream)
        self._stamp = stamp_of(stream)

    def state_dict(self) -> dict[str, Any]:
        return place_in(self._stream, self._stamp)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        go_to_place(self._stream, state, self._stamp, self._path)
        self._offset = state["place"]
