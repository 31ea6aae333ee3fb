"""Wrong arguments of the functions about graphs, formats and seeds."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.wrong_arguments.rows import Row
from torchpipe import functional_datapipe, shared_list
from torchpipe.formats.storage.content import check_compression, recompress
from torchpipe.formats.storage.paths import expand_paths
from torchpipe.formats.tfrecord import example_parser
from torchpipe.graph import plan, replace_node, to_dot
from torchpipe.iter import IterableWrapper
from torchpipe.randomness.seeds import check_seed

__all__ = ["ROWS"]


def source() -> Any:
    return IterableWrapper([1])


ROWS: list[Row] = [
    *(
        (function.__name__, partial(function, [1]), TypeError, word)  # type: ignore[arg-type]
        for function, word in (
            (plan, "IterDataPipe"),
            (to_dot, "IterDataPipe"),
        )
    ),
    ("replace_node: another graph's", lambda: replace_node(source().map(abs), source(), source()), ValueError, "node"),
    ("check_seed: seed", lambda: check_seed(-1), ValueError, "seed"),
    *(("check_seed: seed", partial(check_seed, value), TypeError, "seed") for value in (1.0, "1", None)),  # type: ignore[arg-type]
    *(
        ("functional_datapipe: name", partial(functional_datapipe, name), ValueError, "name")
        for name in ("two words", "", "1st", "a.b", "a-b")
    ),
    ("functional_datapipe: a class", lambda: functional_datapipe("number")(int), TypeError, "nodes"),
    *(
        ("shared_list: items", partial(shared_list, items), TypeError, word)
        for items, word in ((3, "items"), ("text", "items"), ({"a"}, "order"), (None, "path"), ([object()], "item 0"))
    ),
    ("check_compression", lambda: check_compression("zip"), ValueError, "compression"),
    ("recompress", lambda: recompress("a", "b.txt"), ValueError, "recompress"),
    *(
        ("example_parser: spec", partial(example_parser, spec), error, word)  # type: ignore[arg-type]
        for spec, error, word in (
            (["x"], TypeError, "spec"),
            ({"x": torch.float32}, ValueError, "spec"),
            ({"x": ((-1, -1), None)}, ValueError, "shape"),
            ({"x": ((), "float32")}, TypeError, "dtype"),
        )
    ),
    ("expand_paths: none", lambda: expand_paths("test", []), ValueError, "path"),
    ("expand_paths: overlapping", lambda: expand_paths("test", [__file__, f"{__file__[:-3]}*"]), ValueError, "paths"),
    *(
        ("expand_paths: paths", partial(expand_paths, "test", given), TypeError, "paths")
        for given in (3, [3], {"a"}, [b"a"])
    ),
]
