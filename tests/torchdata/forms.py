"""Every form of torchdata's other nodes, in the registry of ``tests/pairs``."""

from __future__ import annotations

from torch.utils.data import RandomSampler, SequentialSampler

from tests.pairs import form_material as user
from tests.pairs.form_kinds import (
    FAMILIES,
    ITEMS,
    LEFT_OUT,
    LISTS,
    MIXED,
    MORE_KINDS,
    OR_STREAMS,
    Branches,
    Model,
    add_form,
    add_source,
    batches,
    each,
    fewer,
    list_of,
    opened,
    other,
    same,
)
from tests.pairs.form_material import FORMATS
from tests.state.fuzz_graphs import Stairs, Walk
from torchpipe.iter import IterableWrapper, PathList
from torchpipe.torchdata import FileLister, SampleMultiplexer, Sampler

__all__: list[str] = []  # importing adds the forms

LEFT_OUT |= {
    "list_files_by_s3": "needs a server: tests/torchdata/test_s3.py",
    "load_files_by_s3": "needs a server: tests/torchdata/test_s3.py",
    "read_from_gdrive": "needs a server: tests/torchdata/test_web_readers.py",
    "read_from_remote": "needs a server: tests/torchdata/test_web_readers.py",
    "HuggingFaceHubReader": "needs the Hub: tests/torchdata/test_hugging_face_hub_reader.py",
    "pin_memory": "needs a GPU: tests/torchdata/test_pin_memory.py",
    "fullsync": "needs ranks: tests/torchdata/test_full_sync.py",
}
FAMILIES |= {
    "threadpool_map": "parallel_map",
    "in_memory_cache": "cache",
    "extract": "decompress",
    "load_from_bz2": "decompress",
    "load_from_xz": "decompress",
    "load_from_zip": "load_from_tar",
    "load_from_rar": "load_from_tar",
    "list_files_by_iopath": "list_files_by_fsspec",
    "open_files_by_iopath": "open_files",
    "save_by_iopath": "save_by_fsspec",
    "parse_csv_as_dict": "parse_csv",
    "slice": "drop",
    "flatten": "drop",
    "round_robin_demux": "demux",
    "FileLister": "PathList",
    "header": "take",
    "list_files": "list_files_by_fsspec",
    "save_to_disk": "save_by_fsspec",
}
MORE_KINDS["table"] = lambda: PathList("parquet/*").load_parquet_as_df()

_ROOTS = ["saved", "more saved"]

# fmt: off

# --- sources
add_source("FileLister", "path txt", lambda n: FileLister(["txt", "more txt"][n % 2], abspath=n > 1), 3, traits="files")
add_source("Sampler", "int",
        lambda n: Sampler(IterableWrapper(range(12 + n)), [SequentialSampler, RandomSampler][n % 2]), 13, draws=(1, 3))

# --- one item at a time
add_form("shuffled_flatmap", ITEMS, "other",
      lambda g, n, k: g.shuffled_flatmap([user.pieces, Stairs, Walk, user.steps][n], buffer_size=2 + n), 2,
      traits="seeded")
_INDEX = ["index", "i", "number", "a"]
add_form("add_index", "dict*", same, lambda g, n, k: g.add_index(_INDEX[n]),
      model=Model(lambda items, n: [{**x, _INDEX[n]: i} for i, x in enumerate(items)]))
_PARTS = ("tuple", "triple", "numbered")
add_form("drop", _PARTS, "other", lambda g, n, k: g.drop([0, 1, [], [0, 1]][n]),
      model=each(lambda x, n: [tuple(v for i, v in enumerate(x) if i not in [(0,), (1,), (), (0, 1)][n])]))
add_form("drop/dict", "dict*", "other", lambda g, n, k: g.drop(["a", "b", [], ["a", "b"]][n]),
      model=each(lambda x, n: [{i: v for i, v in x.items() if i not in ["a", "b", "-", "ab"][n]}]))
add_form("slice", (*_PARTS, *LISTS), "other", lambda g, n, k: g.slice(*[(0, 1), (0, None, 2), ([],), (1, 3)][n]),
      model=each(lambda x, n: [[*[x[0:1], x[0::2], x[0:0], x[1:3]][n]] if isinstance(x, list) else
                               [x[0:1], x[0::2], x[0:0], x[1:3]][n]]))
add_form("slice/dict", "dict*", "other", lambda g, n, k: g.slice(["a", ["a", "b"], [], ["b"]][n]),
      model=each(lambda x, n: [{i: x[i] for i in x if i in ["a", "ab", "-", "b"][n]}]))
_PLACES = [None, [], [1], [0, 1]]
add_form("flatten", _PARTS, "other", lambda g, n, k: g.flatten(_PLACES[n]),
      model=each(lambda x, n: [user.flat(x, _PLACES[n])]))
add_form("threadpool_map", ITEMS, "other",
      lambda g, n, k: g.threadpool_map(user.wrap, scheduled_tasks=n + 1, max_workers=2),
      model=each(lambda x, n: [user.wrap(x)]))
add_form("map_batches", ITEMS, "other", lambda g, n, k: g.map_batches(user.wrap_all, batch_size=n + 1),
      model=Model(lambda items, n: [x for batch in batches(items, n, True) for x in user.wrap_all(batch)]))
add_form("async_map_batches", ITEMS, "other", lambda g, n, k: g.async_map_batches(user.awaited, n + 1),
      model=each(lambda x, n: [("awaited", x)]))
add_form("shard_expand", "text", "text", lambda g, n, k: g.shard_expand(), 2)

# --- items together
add_form("bucketbatch", ITEMS, list_of,
      lambda g, n, k: g.bucketbatch(2, batch_num=2, bucket_num=n % 2 + 1, sort_key=[user.ordered, None][n // 2]), 0.5,
      traits="seeded")
add_form("max_token_bucketize", ITEMS, list_of,
      lambda g, n, k: g.max_token_bucketize(9 + n, user.length, buffer_size=n + 2), 0.5)
add_form("in_batch_shuffle", LISTS, same, lambda g, n, k: g.in_batch_shuffle(), traits="seeded")
add_form("rows2columnar", "list of dict*", "other",
      lambda g, n, k: g.rows2columnar([None, ["a"], ["b"], ["a", "b"]][n]))
add_form("rows2columnar/named", "list of triple", "other", lambda g, n, k: g.rows2columnar(["x", "y", "z"]))
add_form("dataframe", "dict", "table", lambda g, n, k: g.dataframe(n + 2, columns=["a", "b"]), 0.4)

# --- several streams
add_form("SampleMultiplexer", OR_STREAMS, fewer, lambda g, n, k: SampleMultiplexer({g: n + 1, other(k, n): 1}), 1.3,
      traits="seeded", draws=(2,))
add_form("round_robin_demux", ITEMS, fewer, lambda g, n, k: Branches(g.round_robin_demux(2), n),
      traits="branches shared", model=MIXED)
add_form("unzip", "triple", "int", lambda g, n, k: Branches(g.unzip(3, columns_to_skip=[0]), n), 2,
      traits="branches shared")

# --- how many, when, where
_FIRST = [9, 4, 30, None]
add_form("header", OR_STREAMS, same, lambda g, n, k: g.header(_FIRST[n]), 0.8,
      model=Model(lambda items, n: items[: _FIRST[n]]))
add_form("in_memory_cache", ITEMS, same, lambda g, n, k: g.in_memory_cache(), traits="caches")

# --- files
add_form("list_files", "folder", "path txt", lambda g, n, k: g.list_files("*.txt", abspath=n % 2 == 1), 3)
add_form("list_files_by_iopath", "folder", "path txt", lambda g, n, k: g.list_files_by_iopath("*.txt"), 3)
add_form("open_files_by_iopath", "path *", opened, lambda g, n, k: g.open_files_by_iopath("rb"))
add_form("check_hash", tuple(f"open {ending}" for ending in FORMATS), same, lambda g, n, k: g.check_hash(user.hashes()))
add_form("read_from_stream", "open *", "content", lambda g, n, k: g.read_from_stream([None, None, 9000, 2000][n]))
_TEXTS = ("open txt", "open csv", "open bytes", "open saved")
add_form("readlines", _TEXTS, "pair", lambda g, n, k: g.readlines(skip_lines=n % 2, decode=True), 5)
add_form("readlines/alone", _TEXTS, "other", lambda g, n, k: g.readlines(return_path=False, strip_newline=n < 2), 5)
add_form("lines_to_paragraphs", "pair", "pair",
      lambda g, n, k: g.lines_to_paragraphs(joiner=["\n".join, "|".join][n % 2]), 0.5)
add_form("parse_csv", "open csv", "list of text", lambda g, n, k: g.parse_csv(skip_lines=n % 2), 5)
add_form("parse_csv_as_dict", "open csv", "dict of text", lambda g, n, k: g.parse_csv_as_dict(), 5)
add_form("parse_json_files", "open json", "other", lambda g, n, k: g.parse_json_files())
add_form("routed_decode", ("open txt", "open json", "open bytes"), "other", lambda g, n, k: g.routed_decode())
add_form("webdataset", "content", "other", lambda g, n, k: g.webdataset(), 0.5)
add_form("decompress", tuple(f"open {ending}" for ending in ("gz", "bz2", "xz")), "open bytes",
      lambda g, n, k: g.decompress())
add_form("extract", "open gz", "open bytes", lambda g, n, k: g.extract())
add_form("load_from_bz2", "open bz2", "open bytes", lambda g, n, k: g.load_from_bz2())
add_form("load_from_xz", "open xz", "open bytes", lambda g, n, k: g.load_from_xz())
add_form("load_from_tar", "open tar", "open bytes", lambda g, n, k: g.load_from_tar(), 3)
add_form("load_from_zip", "open zip", "open bytes", lambda g, n, k: g.load_from_zip(), 3)
add_form("load_from_rar", "open rar", "open bytes", lambda g, n, k: g.load_from_rar(), 3)
add_form("load_from_tfrecord", "open tfrecord", "other", lambda g, n, k: g.load_from_tfrecord(), 4)
add_form("save_to_disk", "named", "path saved", lambda g, n, k: g.save_to_disk("w", root=_ROOTS[n % 2]))
add_form("save_by_iopath", "named", "path saved", lambda g, n, k: g.save_by_iopath("w", filepath_fn="saved/{}".format))
add_form("load_parquet_as_df", "path parquet", "table", lambda g, n, k: g.load_parquet_as_df(), 3)
# fmt: on
