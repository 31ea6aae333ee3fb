"""``shard_pieces``: let each shard read pieces of files that no other one reads."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import form_on
from torchpipe.iter._shared.paths import PathList
from torchpipe.iter._shared.pieces import FilePieces
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.traits import divides, node_name, walk, with_inputs
from torchpipe.node.validate import check_input

__all__ = ["PieceSharder"]

T = TypeVar("T")


@functional_datapipe("shard_pieces")
class PieceSharder(IterDataPipe[T]):
    """The same reader of files, over pieces of them that are shuffled and divided: each shard reads its own alone.

    Right behind a reader that is given paths: ``read_jsonl("web-*.jsonl").shard_pieces()``. It is then over
    :class:`~torchpipe.iter.FilePieces` of about ``piece_bytes`` bytes (32 MiB, if it is left out), with a
    ``sharding_filter``. ``read_lines`` and ``read_jsonl`` read from the first line that starts in a piece,
    ``read_parquet`` row groups, ``read_arrow`` record batches, ``read_webdataset`` samples and ``read_tfrecord``
    records; other readers, and those of compressed files, whole files. With ``shuffle`` the pieces come in random
    order, another one in each epoch; the records within one stay in order: put ``shuffle()`` behind it to mix them.

    A stream of Hugging Face's (:class:`~torchpipe.iter.HuggingFaceReader`) is divided by its own shards, which are its
    files, and its batches end with them: it has no ``piece_bytes`` and no ``plan_file``.

    Tar archives and TFRecord files without an index are whole files too, unless ``piece_bytes`` is given: local ones
    are scanned then. ``loader.explain()`` says how many pieces there are, and which files are not divided.

    The plan is made with the node, and all workers have it. ``plan_file``, a local path, keeps it for ranks and for
    runs that resume: they open no file again, and a file that has come since is in no plan.

    There have to be as many pieces as shards: else take smaller ones. ``len()`` is known of parquet.

    Raises: TypeError on anything but such a reader, and on a stream whose shards have other rows by themselves
    (``take``, ``skip``); ValueError for ``piece_bytes`` below 1, and what reading the sizes
    of files raises; as :class:`~torchpipe.iter.FilePieces`.
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: IterDataPipe[T],
        *,
        shuffle: bool = True,
        piece_bytes: int | None = None,
        plan_file: str | os.PathLike[str] | None = None,
    ) -> IterDataPipe[T]:
        check_input("shard_pieces", datapipe)
        if hasattr(type(datapipe), "in_pieces"):  # a stream that has shards of its own
            for name, value in (("piece_bytes", piece_bytes), ("plan_file", plan_file)):
                if value is not None:
                    raise ValueError(
                        f"{name}={value!r:.80} is for readers of files: the pieces of {node_name(datapipe)} are its "
                        f"stream's own shards. Leave {name} out"
                    )
            return datapipe.in_pieces(shuffle)  # type: ignore[no-any-return]
        _check_reader(datapipe)
        reader: Any = datapipe
        pieces = FilePieces(
            reader.source,
            reader.piece_unit,
            shuffle=shuffle,
            piece_bytes=piece_bytes,
            compression=getattr(reader, "compression", "infer"),
            storage_options=reader.storage_options,
            plan_file=plan_file,
        )
        divided = form_on(pieces, "sharding_filter")()
        return with_inputs(reader, lambda _: divided)  # type: ignore[no-any-return]


def _check_reader(datapipe: Any) -> None:
    """Raises: TypeError, with the way out."""
    if not isinstance(datapipe, FileReader):
        raise TypeError(
            f"shard_pieces() divides the files that a reader is given, and {node_name(datapipe)} is none: put it right "
            'behind the reader, as in JsonlReader("*.jsonl").shard_pieces().map(...)'
        )
    if not datapipe.divided_by:
        raise TypeError(
            f"shard_pieces() is for what reads files, and {node_name(datapipe)} only lists what is in them: put "
            "shuffle() and sharding_filter() behind it"
        )
    if isinstance(datapipe.source, PathList):
        return
    if any(map(divides, walk(datapipe.source))):
        raise TypeError(f"shard_pieces() divides files, and those of {node_name(datapipe)} are divided already: once")
    raise TypeError(
        f"shard_pieces() needs to know the files before anything runs, and {node_name(datapipe)} reads what "
        f"{node_name(datapipe.source)} yields: give the reader the paths themselves, as in "
        f'{type(datapipe).__name__}("data/*").shard_pieces()'
    )
