"""Wrong arguments of the functional forms of map-style nodes, and of map-style nodes that have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.wrong_arguments.rows import Row
from torchpipe.map import MDSFile, SequenceWrapper, TokenFile

__all__ = ["FORMS", "NODES"]


def wrong(form: str, error: type[Exception], parameter: str, *given: Any, **options: Any) -> Row:
    def call() -> Any:
        return getattr(SequenceWrapper([1]), form)(*given, **options)

    return f"map {form}: {parameter}", call, error, parameter


FORMS: list[Row] = [
    wrong("batch", ValueError, "batch_size", 0),
    wrong("batch", TypeError, "wrapper_class", 1, wrapper_class=3),
    wrong("unzip", ValueError, "sequence_length", 0),
    wrong("unzip", ValueError, "columns_to_skip", 1, [0]),
    wrong("unzip", ValueError, "columns_to_skip", 2, [2]),
    wrong("map", TypeError, "fn", 3),
    wrong("shuffle", TypeError, "indices", indices=iter([0])),
    wrong("to_iter_datapipe", TypeError, "indices", iter([0])),
]

FILE: Callable[..., Any] = partial(TokenFile, __file__)
NODES: list[Row] = [
    ("SequenceWrapper: sequence", lambda: SequenceWrapper(iter([1])), TypeError, "sequence"),  # type: ignore[arg-type]
    ("MDSFile: columns", lambda: MDSFile(".", "n"), ValueError, "columns"),
    ("MDSFile: images", lambda: MDSFile(".", images="jpg"), ValueError, "images"),
    ("MDSFile: max_bytes", lambda: MDSFile(".", max_bytes=-1), ValueError, "max_bytes"),
    ("TokenFile: offset", partial(FILE, dtype="uint8", offset=-1), ValueError, "offset"),
    ("TokenFile: length", partial(FILE, 1 << 40, dtype="uint8"), ValueError, "length"),
    ("TokenFile: step", partial(FILE, dtype="uint8", step=3), ValueError, "step"),
    ("TokenFile: documents", partial(FILE, 3, dtype="uint8", documents=True), ValueError, "documents"),
    ("TokenFile: no dtype", FILE, ValueError, "dtype"),
    ("TokenFile: no length", partial(FILE, dtype="uint8"), TypeError, "length"),
    ("TokenFile: files", lambda: TokenFile("s3://bucket/a.bin", 3, dtype="uint16"), ValueError, "files"),
]
