"""Each parameter of each node counts for the graph's identity, or is named here as one that need not.

Two values of a parameter stand in ``VALUES``, by its name, or in ``OF_CLASS`` where a class means something else. A
parameter without values fails, so that a new one gets them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from torch.utils.data import RandomSampler, SequentialSampler

import torchpipe.iter
import torchpipe.map
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.fingerprint import fingerprint

NODES = IterableWrapper([(1, 2)])
MAPPED = SequenceWrapper([(1, 2)])


class Encode:
    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, *items: Any, **names: Any) -> Any:
        return items

    __call__ = encode


FUNCTIONS = (Encode(1).encode, Encode(2).encode)
YES = (True, False)
LONG = (list("abcdefghij"), list("abcdefghik"))

VALUES: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(
        ("fn", "filter_fn", "async_fn", "key_fn", "ref_key_fn", "len_fn", "length_fn", "cost_fn"), FUNCTIONS
    ),
    **dict.fromkeys(("group_key_fn", "classifier_fn", "merge_fn", "sort_key", "joiner", "conversion"), FUNCTIONS),
    **dict.fromkeys(
        ("key_value_fn", "wrapper_class", "connect", "collate_fn", "filepath_fn", "extra_check_fn"), FUNCTIONS
    ),
    **dict.fromkeys(("batch_size", "length", "count", "times", "limit", "buffer_size", "group_size", "window"), (7, 8)),
    **dict.fromkeys(("max_token_count", "max_cost", "max_items", "max_len", "batch_num", "dataframe_size"), (60, 70)),
    **dict.fromkeys(("bucket_num", "min_len", "cycle_length", "block_length", "starting_index", "size"), (2, 3)),
    **dict.fromkeys(("guaranteed_group_size", "unbatch_level", "skip_lines", "chunk", "step", "bins"), (2, 3)),
    **dict.fromkeys(("multiple_of", "attempts", "num_instances", "sequence_length", "chunk_items"), (2, 3)),
    **dict.fromkeys(("max_sequences_per_bin", "budget", "seed", "buffer_size", "num_threads"), (4, 5)),
    **dict.fromkeys(("drop_last", "reverse", "padded", "drop_none", "drop_remaining", "keep_key", "decode"), YES),
    **dict.fromkeys(("strip_newline", "return_path", "as_tuple", "include_padding", "flatten", "deepcopy"), YES),
    **dict.fromkeys(
        ("use_in_batch_shuffle", "rng", "recursive", "abspath", "header", "parse", "rewind", "strict"), YES
    ),
    **dict.fromkeys(("skip_on_error", "allow_pickle", "collated", "skip_read", "non_deterministic"), YES),
    **dict.fromkeys(("columns", "extensions", "column_names", "keep"), LONG),
    **dict.fromkeys(("input_col", "output_col"), ([0, 1], [0, 2])),
    **dict.fromkeys(("masks", "mask"), ("*.txt", "*.csv")),
    "index": ([0] * 9, [0] * 8 + [1]),
    "indices": ([0] * 9, [0] * 8 + [1]),
    "columns_to_skip": ([0], [1]),
    "boundaries": (list(range(2, 12)), list(range(3, 13))),
    "fill_null": ({"a": 0}, {"a": 1}),
    "pad_value": ({"tokens": 0}, {"tokens": -100}),
    "dtype": (np.dtype("uint16"), np.dtype("int16")),
    "tensor_dtype": (torch.int64, torch.int32),
    "encoding": ("utf-8", "latin-1"),
    "errors": ("strict", "ignore"),
    "compression": (None, "gzip"),
    "side": ("left", "right"),
    "stop": ("first_exhausted", "restart"),
    "index_name": ("index", "number"),
    "fill_value": ([0], [1]),
    "version": ("1", "2"),
    "table": ("one", "two"),
    "key": ("id", "other"),
    "paramstyle": ("qmark", "format"),
    "images": ("pil", "rgb8"),
    "format": ("numpy", "torch"),
    "dtype_generator": FUNCTIONS,
    "sampler_args": ([True], [False]),
    "sampler_kwargs": ({"replacement": True, "num_samples": 3}, {"replacement": True, "num_samples": 4}),
    "query": ("select 1", "select 2"),
    "computed": YES,
    "handlers": ({"txt": FUNCTIONS[0]}, {"txt": FUNCTIONS[1]}),
    "spec": ({"x": ((), torch.int64)}, {"x": ((2,), torch.int64)}),
    "hash_dict": ({"a": "0" * 64}, {"a": "1" * 64}),
    "hash_type": ("sha256", "md5"),
    "sampler": (SequentialSampler, RandomSampler),
    "sharding_group_filter": (SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING),
}
"""By the name of the parameter."""

OF_CLASS: dict[tuple[str, str], tuple[Any, Any]] = {
    ("Packer", "length"): ({"tokens": 8}, {"tokens": 16}),
    ("OnError", "errors"): (ValueError, KeyError),
    ("Retrier", "errors"): (ValueError, KeyError),
    ("OnError", "policy"): ("skip", "raise"),
    ("Packer", "strategy"): ("first_fit", "best_fit"),
    ("Packer", "overflow"): ("raise", "drop"),
    ("DynamicBatcher", "overflow"): ("drop", "keep"),
    ("Batcher", "last"): ("drop", "keep"),
    ("ParquetReader", "filter"): ([("a", ">=", 0)], [("a", ">=", 10)]),
    ("ParquetReader", "partitioning"): (pa.schema([("a", "int32")]), pa.schema([("a", "string")])),
    ("ArrowReader", "filter"): ([("a", ">=", 0)], [("a", ">=", 10)]),
    ("IterableWrapper", "iterable"): ([1, 2], [1, 3]),
    ("SequenceWrapper", "sequence"): ([1, 2], [1, 3]),
    ("HuggingFaceReader", "dataset"): (Dataset.from_dict({"x": [1, 2]}), Dataset.from_dict({"x": [1, 3]})),
    ("Shuffler", "indices"): ([0] * 9, [0] * 8 + [1]),
    **dict.fromkeys((("Mapper", "output_col"), ("ParallelMapper", "output_col")), (0, 1)),
}

NEED_NOT = {
    "storage_options": "how data are reached",
    "use_threads": "alters nothing of the stream",
    "verify": "alters nothing of the stream",
    "num_threads": "alters nothing of the stream",
    "page_size": "alters nothing of the stream",
    "lease_timeout_s": "alters nothing of the stream",
    "max_bytes": "how much a cache keeps",
    "path": "where a cache is",
    "device": "the name of a backend that is not supported",
    "LengthSetter.length": "what len() says; the stream is the same",
    "OnError.policy": "a run that an error has ended goes on with another policy",
    "OnError.budget": "a run that an error has ended goes on with another one",
    "OnError.errors": "a run that an error has ended goes on with others",
    "paths": "files: by names and sizes, in tests of their nodes",
}
"""Parameters of which two values may give the same identity, and why."""

CLASSES = [
    "ArrowReader",
    "BatchPadder",
    "Batcher",
    "Cacher",
    "Collator",
    "CsvReader",
    "DynamicBatcher",
    "Enumerator",
    "Filter",
    "FlatMapper",
    "Grouper",
    "HuggingFaceReader",
    "Interleaver",
    "IterableWrapper",
    "JsonlReader",
    "LengthBucketer",
    "LengthSetter",
    "Mapper",
    "OnError",
    "Packer",
    "ParallelMapper",
    "ParquetReader",
    "RandomMapper",
    "ReBatcher",
    "Repeater",
    "ShardingFilter",
    "Shuffler",
    "Skipper",
    "Sorter",
    "SqlReader",
    "Taker",
    "TextLineReader",
    "UnBatcher",
    "WebDatasetReader",
    "WindowShuffler",
    "ZipperLongest",
]
"""Of ``torchpipe.iter``: those that are made of one node, or of values."""
MAP_CLASSES = ["Batcher", "Mapper", "SequenceWrapper", "Shuffler", "IterToMapConverter"]
INPUTS = {"datapipe", "source_datapipe", "source_dp", "datapipes", "source_iterdatapipe"}


def _parameters(cls: Any) -> dict[str, inspect.Parameter]:
    rest = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = inspect.signature(cls).parameters
    return {name: item for name, item in found.items() if name not in INPUTS and item.kind not in rest}


def _made(cls: Any, name: str, value: Any) -> Any:
    """A node with ``value`` for one parameter, and what else it needs."""
    given = {other: _values(cls, other)[0] for other, item in _parameters(cls).items() if item.default is item.empty}
    given |= OTHERS.get((cls.__name__, name), {})
    given[name] = value
    first = next(iter(inspect.signature(cls).parameters))
    if first not in INPUTS:
        return cls(**given)
    mapped = cls.__module__.startswith("torchpipe.map") and cls.__name__ != "IterToMapConverter"
    return cls(MAPPED if mapped else NODES, **given)


OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("ParquetReader", "fill_null"): {"format": "numpy"},
    ("ArrowReader", "fill_null"): {"format": "numpy"},
    ("Grouper", "guaranteed_group_size"): {"group_size": 5},
    ("Grouper", "drop_remaining"): {"group_size": 5},
    **{("Packer", name): {"strategy": "first_fit"} for name in ("length", "overflow", "bins", "pad_value", "keep")},
    ("Packer", "window"): {"strategy": "best_fit", "length": 8},
    **{("Packer", name): {"strategy": "first_fit"} for name in ("max_sequences_per_bin", "drop_last")},
    **{(name, "format"): {"batch_size": 2} for name in ("ArrowReader", "ParquetReader")},
    **{("SqlReader", name): {"table": "one"} for name in ("connect", "key", "columns", "paramstyle")},
    **{(name, "output_col"): {"input_col": 0} for name in ("Mapper", "ParallelMapper")},
}


def _values(cls: Any, name: str) -> tuple[Any, Any]:
    return OF_CLASS.get((cls.__name__, name)) or VALUES[name]


def rows(*classes: tuple[Any, list[str]]) -> Iterator[Any]:
    """Each parameter of these classes: (module, names)."""
    for module, names in classes:
        for cls in (getattr(module, name) for name in names):
            for name in _parameters(cls):
                yield pytest.param(cls, name, id=f"{module.__name__[10:]}.{cls.__name__}-{name}")


NOT_LOOKED_AT = {
    **dict.fromkeys(("HttpReader",), "read from the web"),
    **dict.fromkeys(("FSSpecFileLister", "FSSpecFileOpener", "FSSpecSaver"), "clouds"),
    **dict.fromkeys(("Demultiplexer", "Forker", "RandomSplitter"), "branches"),
    **dict.fromkeys(("IterKeyZipper", "MapKeyZipper", "Mixer"), "of several inputs"),
    **dict.fromkeys(("OnDiskCacheHolder", "EndOnDiskCacheHolder"), "of pairs"),
    **dict.fromkeys(("FileOpener", "FilePieces", "PathList", "PieceSharder"), "files"),
    **dict.fromkeys(("RowGroupLister",), "files"),
    **dict.fromkeys(("ZipReader",), "archives"),
    **dict.fromkeys(("TFRecordReader",), "formats"),
    **dict.fromkeys(("MapToIterConverter", "Cycler", "Prefetcher", "Retrier", "ToDevice"), "move items"),
    **dict.fromkeys(
        ("ShardingRoundRobinDispatcher", "Concater", "Multiplexer", "MultiplexerLongest", "Zipper"), "inputs alone"
    ),
    **dict.fromkeys(("MDSFile", "TFRecordFile", "TokenFile"), "files"),
}
"""Nodes without rows, by what they are of. Any other node of the library must have rows."""


OF_INPUTS_IN_MAP = {"UnZipper", "Zipper", "Concater", "InMemoryCacheHolder"}


def test_every_node_is_known() -> None:
    for module, names in ((torchpipe.iter, CLASSES), (torchpipe.map, MAP_CLASSES)):
        found = {name for name in module.__all__ if isinstance(getattr(module, name), type)}
        found -= {"IterDataPipe", "MapDataPipe", "DataChunk", "SHARDING_PRIORITIES"}
        unknown = found - set(names) - NOT_LOOKED_AT.keys()
        assert not unknown - (OF_INPUTS_IN_MAP if module is torchpipe.map else set()), unknown


@pytest.mark.parametrize(("cls", "name"), [*rows((torchpipe.iter, CLASSES), (torchpipe.map, MAP_CLASSES))])
def test_it_counts(cls: Any, name: str) -> None:
    if name in NEED_NOT or f"{cls.__name__}.{name}" in NEED_NOT:
        return
    one, other = _values(cls, name)
    assert fingerprint(_made(cls, name, one)) == fingerprint(_made(cls, name, one))
    assert fingerprint(_made(cls, name, one)) != fingerprint(_made(cls, name, other))


OF_FORMS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "demux": (lambda value: NODES.demux(2, value)[0].concat(NODES), *FUNCTIONS),
    "demux count": (lambda value: NODES.demux(value, FUNCTIONS[0])[0].concat(NODES), 2, 3),
    "zip_with_iter": (lambda value: NODES.zip_with_iter(NODES, value), *FUNCTIONS),
    "zip_with_map": (lambda value: NODES.zip_with_map(MAPPED, value), *FUNCTIONS),
    "mix by": (lambda value: NODES.mix(NODES, weights=[1, 1], by=value), *FUNCTIONS),
    "mix stop": (lambda value: NODES.mix(NODES, weights=[1, 1], stop=value), "first_exhausted", "restart"),
    "on_disk_cache": (lambda value: NODES.on_disk_cache(value).end_caching(), *FUNCTIONS),
    "random_split": (lambda value: NODES.random_split(value, 0, target=0), {0: 1, 1: 1}, {0: 1, 1: 2}),
    "open_files": (lambda value: NODES.open_files("r", encoding=value), "utf-8", "latin-1"),
    "to_iter_datapipe": (lambda value: MAPPED.to_iter_datapipe(value), *VALUES["indices"]),
    "fork": (lambda value: NODES.fork(2, copy=value)[0].concat(NODES), "deep", "same"),
}
"""Of nodes that are made otherwise, the arguments that are long or hold something."""


ONLY_HOW_FAST: dict[str, Callable[[int], Any]] = {
    "parallel_map": lambda value: NODES.parallel_map(tuple, num_threads=value),
    "fork": lambda value: NODES.fork(2, buffer_size=value)[0].concat(NODES),
    "demux": lambda value: NODES.demux(2, len, buffer_size=value)[0].concat(NODES),
}


@pytest.mark.parametrize("name", ONLY_HOW_FAST)
def test_what_changes_no_item_does_not_count(name: str) -> None:
    made = ONLY_HOW_FAST[name]
    assert fingerprint(made(2)) == fingerprint(made(3))


@pytest.mark.parametrize("name", OF_FORMS)
def test_it_counts_in_other_nodes(name: str) -> None:
    made, one, other = OF_FORMS[name]
    assert fingerprint(made(one)) == fingerprint(made(one)) != fingerprint(made(other))
