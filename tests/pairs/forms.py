"""Every form of the core's nodes, in the registry of ``form_kinds``, and after them the forms of rings' nodes.

A form is made with a number from 0 to 3, which chooses its arguments. A key of the registry and a number say all: they
give the same items in the same folder.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from tests.pairs import form_material as user
from tests.pairs.form_kinds import (
    FAMILIES,
    FORMS,
    ITEMS,
    LEFT_OUT,
    LISTS,
    MAPS,
    MIXED,
    NUMBERS,
    OR_STREAMS,
    SAME,
    WITH_ANOTHER,
    Branches,
    Kind,
    Model,
    add_form,
    add_source,
    batches,
    each,
    fewer,
    list_of,
    of_list,
    of_map,
    opened,
    other,
    same,
)
from tests.pairs.form_material import FORMATS
from tests.rings import added_by_rings
from tests.state.fuzz_graphs import Counter, Numbers, Slow, Stairs, Walk, draw, tell
from tests.state.fuzz_nodes import connect
from tests.test_replay import Shuffles, ShufflesStateful
from torchpipe.iter import (
    FilePieces,
    HuggingFaceReader,
    IterableWrapper,
    ParquetReader,
    PathList,
    SqlReader,
    TextLineReader,
    TFRecordReader,
)
from torchpipe.map import MDSFile, SequenceWrapper, TFRecordFile, TokenFile

__all__ = ["FORMS", "LEFT_OUT", "NUMBERS", "Branches", "Kind", "fewer"]

LEFT_OUT |= {
    "read_from_http": "needs a server: tests/iter/clouds/test_web_readers.py",
    "end_caching": "stands with on_disk_cache",
    "MapToIterConverter": "is the form to_iter_datapipe",
}
FAMILIES |= {
    "open_files_by_fsspec": "open_files",
    "read_jsonl": "read_lines",
    "read_csv": "read_lines",
    "read_arrow": "read_parquet",
    "read_webdataset": "read_tfrecord",
    "read_zip": "read_tfrecord",
    "mux_longest": "mux",
    "TokenFile": "SequenceWrapper",
    "TFRecordFile": "SequenceWrapper",
    "MDSFile": "SequenceWrapper",
    "ParquetReader": "read_parquet",
}

# fmt: off

# --- sources
add_source("IterableWrapper", "int",
        lambda n: IterableWrapper([range(13), [*range(20, 32)], range(12, 0, -1), range(17)][n]), 13)
add_source("IterableWrapper/words", "text", lambda n: IterableWrapper([f"w{i}{{a,b}}" for i in range(9 + n)]), 10)
add_source("IterableWrapper/folders", "folder",
        lambda n: IterableWrapper(["txt", "more txt"][: n % 2 + 1]), 2, traits="files")
add_source("IterableWrapper/iterator", "tuple",
        lambda n: IterableWrapper([Walk, Stairs][n % 2]("ab"[n // 2]), deepcopy=n != 3), 5)
add_source("SequenceWrapper", "map of int", lambda n: SequenceWrapper([*range(n, 13)]), 12)
add_source("PathList", "path txt",
        lambda n: PathList(["txt/*", "more txt/*.txt", "txt/{0..2}.txt", "{more txt,txt}/*"][n]), 3, traits="files")
for _ending in FORMATS[1:]:
    add_source(f"PathList/{_ending}", f"path {_ending}",
            lambda n, ending=_ending: PathList([f"{ending}/*", f"more {ending}/*"][n % 2]), 3, traits="files")  # type: ignore[misc]
add_source("FilePieces", "piece",
        lambda n: FilePieces(["txt/*", "more txt/*"][n % 2], "lines", piece_bytes=7 + n, shuffle=True), 12,
        traits="files seeded")
add_source("shard_pieces", "other",
        lambda n: TextLineReader(["txt/*", "more txt/*"][n % 2]).shard_pieces(piece_bytes=7 + n, shuffle=n > 1), 7,
        traits="files shards")
add_source("shard_pieces/row groups", "dict",
        lambda n: ParquetReader("parquet/*").shard_pieces(piece_bytes=1 + n, shuffle=n > 1), 18,
        traits="files shards")
add_source("ParquetReader/hive", "dict",
        lambda n: ParquetReader(["hive/*/*", "more hive/*/*"][n % 2], ["a", "b"], partitioning="hive",
                                filter=[None, [("a", ">", 0), ("b", ">", "2")]][n // 2]), 14, traits="files")
add_source("shard_pieces/records", "other",
        lambda n: TFRecordReader("tfrecord/*").shard_pieces(piece_bytes=20 + n, shuffle=n > 1), 12,
        traits="files shards")
add_source("SqlReader", "dict",
        lambda n: SqlReader(partial(connect, Path("rows.sqlite")), "rows", key="a", page_size=n + 2), 13,
        traits="files")
add_source("HuggingFaceReader", "dict", lambda n: HuggingFaceReader(user.rows(n)), 10)
add_source("TokenFile", "map of array", lambda n: TokenFile("tokens.npy", 5 + n), 10, traits="files")
add_source("TFRecordFile", "map of other",
        lambda n: TFRecordFile(["tfrecord/2.*", "more tfrecord/0.*"][n % 2], parse=n < 2), 6, traits="files")
add_source("MDSFile", "map of dict", lambda n: MDSFile(["mds", "more mds"][n % 2], [None, ["b", "a"]][n // 2]), 8,
        traits="files")
add_source("own source", "int", lambda n: Numbers(11 + n), 12)

# --- one item at a time
add_form("map", ITEMS, "other", lambda g, n, k: g.map([tell, user.wrap, Counter(), partial(user.wrap)][n]), draws=(0,))
add_form("map/code", ITEMS, "other",
      lambda g, n, k: g.map([lambda x: (x, 1), lambda x: (x, 2), lambda x: x, user.wrap][n]),
      model=each(lambda x, n: [[(x, 1), (x, 2), x, ("wrapped", x)][n]]))
add_form("map/bound", ITEMS, "other",
      lambda g, n, k: g.map([partial(user.pair_with, n), user.holding(n)][n // 2]), model=each(lambda x, n: [(n, x)]))
for _kind, _fn in {
    "int": user.as_number, "list of int": user.listed, "dict": user.as_dict, "triple": user.as_triple,
    "named": user.as_named, "text": user.as_text, "tensor": user.as_tensor,
}.items():
    add_form(f"map/{_kind}", ITEMS, _kind, lambda g, n, k, fn=_fn: g.map(fn), model=each(lambda x, n, fn=_fn: [fn(x)]))  # type: ignore[misc]
for _ending in FORMATS:
    add_form(f"map/path {_ending}", ITEMS, f"path {_ending}",
          lambda g, n, k, ending=_ending: g.map(partial(user.as_path, ending)))
add_form("random_map", ITEMS, "other", lambda g, n, k: g.random_map(draw))
add_form("filter", OR_STREAMS, fewer, lambda g, n, k: g.filter(user.Kept(n)), 0.8,
      model=each(lambda x, n: [x] if user.Kept(n)(x) else []))
add_form("flatmap", ITEMS, "other",
      lambda g, n, k: g.flatmap([user.pieces, user.steps, Walk, user.drawing_steps][n]), 2, draws=(3,))
add_form("flatmap/lists", LISTS, of_list, lambda g, n, k: g.flatmap(), 2, model=each(lambda x, n: [*x]))
add_form("interleave", ITEMS, "other",
      lambda g, n, k: g.interleave([user.pieces, user.small_node, Walk, user.steps][n], cycle_length=2,
                                   block_length=n % 2 + 1), 2)
add_form("enumerate", ITEMS, "numbered", lambda g, n, k: g.enumerate(),
      model=Model(lambda items, n: [*enumerate(items)]))
add_form("parallel_map", ITEMS, "other",
      lambda g, n, k: g.parallel_map([user.wrap, draw][n % 2], num_threads=2, buffer_size=n + 2, rng=n % 2 == 1))
add_form("own node", ITEMS, "other", lambda g, n, k: [Slow, Slow, user.Passing, user.Passing][n](g))
add_form("own node that opens late", ITEMS, fewer,
      lambda g, n, k: [Shuffles, ShufflesStateful, user.Late, user.Late][n](g), draws=(0, 1))
add_form("own node that remembers", ITEMS, "other", lambda g, n, k: user.Remembers(g))
add_form("own node in the main section", ITEMS, "other", lambda g, n, k: user.RemembersInMain(g), traits="main")
add_form("mutable", ITEMS, "other", lambda g, n, k: g.map(partial(user.mutable, n)),
      model=each(lambda x, n: [user.mutable(n, x)]))
add_form("spoils", ITEMS, same,
      lambda g, n, k: [g.map(user.spoiled), g.parallel_map(user.spoiled, num_threads=2, buffer_size=3),
                       g.filter(user.spoiling), g.flatmap(user.spoiled_alone)][n],
      model=each(lambda x, n: [user.spoiled(copy.deepcopy(x))]))


# --- items together
add_form("batch", ITEMS, list_of, lambda g, n, k: g.batch(n + 1, drop_last=n == 2, wrapper_class=list), 0.5,
      model=Model(lambda items, n: batches(items, n, n != 2)))
add_form("batch/chunks", ITEMS, list_of, lambda g, n, k: g.batch(n + 1), 0.5)
add_form("batch/wrapped", ITEMS, "other",
      lambda g, n, k: g.batch(2 + n, last=["keep", "drop", "repeat", "keep"][n], wrapper_class=user.joined), 0.4)
add_form("bucket_by_length", ITEMS, list_of, lambda g, n, k: g.bucket_by_length([2, 3], n + 1, user.length), 0.6)
add_form("dynamic_batch", ITEMS, list_of,
      lambda g, n, k: g.dynamic_batch(5 + n, user.length, padded=n > 1, overflow="keep"), 0.5)
add_form("groupby", ITEMS, list_of,
      lambda g, n, k: g.groupby(user.key, buffer_size=6, group_size=n + 2, guaranteed_group_size=1), 0.6)
add_form("collate", ("list of int", "list of tensor"), "tensor", lambda g, n, k: g.collate())
add_form("collate/own", LISTS, "other", lambda g, n, k: g.collate(collate_fn=user.joined),
      model=each(lambda x, n: [user.joined(x)]))
add_form("unbatch", LISTS, of_list, lambda g, n, k: g.unbatch(), 2, model=each(lambda x, n: [*x]))
add_form("rebatch", LISTS, same, lambda g, n, k: g.rebatch(n + 1, drop_last=n == 2))
_PACKED = ({}, {"drop_last": True}, {"bins": 2, "overflow": "split"}, {"window": 4, "overflow": "split"})
add_form("pack", ("list of int", "array"), "other",
      lambda g, n, k: g.pack(6, strategy=["concat", "concat", "first_fit", "best_fit"][n], **_PACKED[n]), 0.6)
add_form("pad_batch", ("list of list of int", "list of array"), "other",
      lambda g, n, k: g.pad_batch(n, multiple_of=n + 1))

# --- order
add_form("shuffle", OR_STREAMS, same, lambda g, n, k: g.shuffle(buffer_size=[5, 2, 100, 1][n]), traits="seeded",
      model=MIXED)
add_form("window_shuffle", OR_STREAMS, same, lambda g, n, k: g.window_shuffle(n + 2), traits="seeded", model=MIXED)
add_form("sort", OR_STREAMS, same, lambda g, n, k: g.sort(n + 2, user.sort_key, reverse=n == 3),
      model=Model(lambda items, n: [x for i in range(0, len(items), n + 2)
                                    for x in sorted(items[i: i + n + 2], key=user.hashed, reverse=n == 3)]))
add_form("sharding_filter", OR_STREAMS, fewer, lambda g, n, k: g.sharding_filter(), traits="shards", model=SAME)
add_form("sharding_round_robin_dispatch", ITEMS, fewer,
      lambda g, n, k: g.sharding_round_robin_dispatch(*[(), (SHARDING_PRIORITIES.MULTIPROCESSING,)][n % 2]),
      traits="shards dispatches", model=SAME)

# --- several streams
add_form("concat", OR_STREAMS, fewer, lambda g, n, k: g.concat(other(k, n)), 1.3, **WITH_ANOTHER)
add_form("concat/first", OR_STREAMS, fewer, lambda g, n, k: other(k, n).concat(g), 1.3, **WITH_ANOTHER)
add_form("concat/twice", ITEMS, fewer, lambda g, n, k: g.concat(g), 2, traits="rereads",
      model=Model(lambda items, n: items + items))
add_form("mux", OR_STREAMS, fewer, lambda g, n, k: g.mux(other(k, n)), **WITH_ANOTHER)
add_form("mux_longest", OR_STREAMS, fewer, lambda g, n, k: other(k, n).mux_longest(g), 1.3, **WITH_ANOTHER)
_STOPS = ["first_exhausted", "all_exhausted", "restart", "first_exhausted"]
add_form("mix", OR_STREAMS, fewer, lambda g, n, k: g.mix(other(k, 2 * (n // 2)), weights=[n + 1, 1], stop=_STOPS[n]),
      1.2, traits="seeded", draws=(2, 3))
add_form("zip", ITEMS, "tuple", lambda g, n, k: g.zip(other("int", n).cycle(5)), **WITH_ANOTHER)
add_form("zip_longest", ITEMS, "tuple", lambda g, n, k: other("int", n).zip_longest(g, fill_value=-1), **WITH_ANOTHER)
add_form("zip_with_iter", ITEMS, "tuple",
      lambda g, n, k: g.zip_with_iter(IterableWrapper(range(500)).shuffle(buffer_size=n + 1), user.Calls(), abs),
      traits="seeded")
add_form("zip_with_map", ITEMS, "tuple",
      lambda g, n, k: g.zip_with_map(SequenceWrapper([*range(n, 60)]), user.place_of, keep_key=n % 2 == 1))
add_form("fork", ITEMS, fewer, lambda g, n, k: Branches(g.fork(2, copy=[None, "deep"][n // 2]), n), 2,
      traits="branches shared", model=Model(lambda items, n: items + items, "lost"))
add_form("demux", ITEMS, fewer, lambda g, n, k: Branches(g.demux(2, user.part), n),
      traits="branches shared", model=MIXED)
add_form("random_split", ITEMS, fewer,
      lambda g, n, k: Branches(g.random_split({"some": 0.6, "more": 0.4}, n, total_length=user.length_of(g)), n),
      traits="branches rereads splits", model=MIXED)

# --- how many, when, where
add_form("take", OR_STREAMS, same, lambda g, n, k: g.take(8 - n), 0.8, model=Model(lambda items, n: items[: 8 - n]))
add_form("skip", OR_STREAMS, fewer, lambda g, n, k: g.skip(n), 0.8, model=Model(lambda items, n: items[n:]))
_TIMES = [2, 1, 3, 2]
add_form("cycle", OR_STREAMS, fewer, lambda g, n, k: g.cycle(_TIMES[n]), 2, traits="rereads")
add_form("repeat", ITEMS, fewer, lambda g, n, k: g.repeat(_TIMES[n]), 2, model=each(lambda x, n: [x] * _TIMES[n]))
add_form("set_length", OR_STREAMS, fewer, lambda g, n, k: g.set_length(user.length_of(g) + n // 2), model=SAME)
add_form("prefetch", OR_STREAMS, same, lambda g, n, k: g.prefetch(n + 1), model=SAME)
add_form("to_device", OR_STREAMS, same, lambda g, n, k: g.to_device("cpu", prefetch=n, host_prefetch=n % 2),
      traits="main", model=SAME)
add_form("retry", OR_STREAMS, same, lambda g, n, k: g.retry(n + 1, backoff_s=0.0), model=SAME)
add_form("on_error", OR_STREAMS, same, lambda g, n, k: g.on_error(["skip", "raise"][n % 2]), traits="skips", model=SAME)
add_form("on_error/bad items", ITEMS, fewer, lambda g, n, k: g.map(user.moody).on_error("skip", budget=None), 0.8,
      traits="skips", model=each(lambda x, n: [x] if user.hashed(x) % 5 != 3 else []))
add_form("on_error/one branch", ITEMS, "tuple",
      lambda g, n, k: (lambda a, b: a.map(user.moody).zip(b))(*g.fork(2)).on_error("skip", budget=None), 0.8,
      traits="skips shared", model=each(lambda x, n: [(x, copy.deepcopy(x))] if user.hashed(x) % 5 != 3 else []))
add_form("on_error/bad lines", "folder", "other",
      lambda g, n, k: g.map(user.bad_lines).read_jsonl().on_error("skip", budget=None), 4, traits="skips",
      model=each(lambda folder, n: user.good_records(user.bad_lines(folder))))
add_form("on_error/bad rows", "folder", "dict of text",
      lambda g, n, k: g.map(user.bad_rows).read_csv().on_error("skip", budget=None), 4, traits="skips",
      model=each(lambda folder, n: user.good_records(user.bad_rows(folder))))
add_form("on_error/one of two files", "folder", "tuple",
      lambda g, n, k: (lambda a, b: a.map(user.bad_lines).read_jsonl().zip(b.map(user.right_lines).read_jsonl()))(
          *g.fork(2)).on_error("skip", budget=None), 4, traits="skips shared",
      model=each(lambda folder, n: [(x, x) for x in user.good_records(user.bad_lines(folder))]))
add_form("cache", ITEMS, same, lambda g, n, k: g.cache(chunk_items=n + 1, allow_pickle=True), traits="caches")
add_form("cache/folder", ITEMS, same,
      lambda g, n, k: g.cache("cached", chunk_items=n + 1, version="1", allow_pickle=True), traits="caches")
add_form("on_disk_cache", ITEMS, "path saved",
      lambda g, n, k: g.on_disk_cache(filepath_fn=user.kept_file).map(user.rendered).end_caching(
          "t", same_filepath_fn=True, skip_read=True), traits="shared")

# --- files
add_form("map/content", "open *", "content", lambda g, n, k: g.map(user.content_of))
add_form("list_files_by_fsspec", "folder", "path txt", lambda g, n, k: g.list_files_by_fsspec("*.txt"), 3)
add_form("open_files", "path *", opened, lambda g, n, k: g.open_files("b"))
add_form("open_files_by_fsspec", "path *", opened, lambda g, n, k: g.open_files_by_fsspec("rb"))
_ROOTS = ["saved", "more saved"]
add_form("save_by_fsspec", "named", "path saved", lambda g, n, k: g.save_by_fsspec("w", root=_ROOTS[n % 2]))
add_form("read_lines", ("path txt", "path saved", "path gz", "path bz2", "path xz", "piece"), "other",
      lambda g, n, k: g.read_lines(), 7)
add_form("read_jsonl", "path jsonl", "other", lambda g, n, k: g.read_jsonl(), 9)
add_form("read_csv", "path csv", "dict of text", lambda g, n, k: g.read_csv(), 9)
add_form("read_parquet", ("path parquet", "row group"), "dict", lambda g, n, k: g.read_parquet(), 6)
add_form("read_parquet/batches", ("path parquet", "row group"), "other",
      lambda g, n, k: g.read_parquet(["a"], batch_size=n + 2), 3)
add_form("list_row_groups", "path parquet", "row group", lambda g, n, k: g.list_row_groups(), 3)
add_form("read_arrow", "path arrow", "dict", lambda g, n, k: g.read_arrow(), 6)
add_form("read_tfrecord", "path tfrecord", "other", lambda g, n, k: g.read_tfrecord(parse=n % 2 == 0), 4)
add_form("read_webdataset", "path tar", "other", lambda g, n, k: g.read_webdataset(), 5)
add_form("read_zip", "path zip", "content", lambda g, n, k: g.read_zip(), 5)

# --- map style
add_form("to_map_datapipe", "numbered", "map of other", lambda g, n, k: g.to_map_datapipe(), traits="collects")
add_form("to_iter_datapipe", MAPS, of_map, lambda g, n, k: g.to_iter_datapipe())
add_form("map-style shuffle", MAPS, of_map, lambda g, n, k: g.shuffle(computed=[None, True, False, None][n]),
      traits="seeded", model=MIXED)
add_form("map-style map", MAPS, "map of other",
      lambda g, n, k: g.map([tell, user.wrap, lambda x: (x, 1), lambda x: (x, 2)][n]), draws=(0,))
add_form("map-style batch", MAPS, lambda kind: f"map of list of {of_map(kind)}",
      lambda g, n, k: g.batch(n + 1, drop_last=n == 2), 0.5)
add_form("map-style concat", MAPS, same, lambda g, n, k: g.concat(g), 2, traits="rereads")
add_form("map-style zip", MAPS, "map of tuple", lambda g, n, k: g.zip(SequenceWrapper([*range(40 + n)])))
add_form("map-style in_memory_cache", MAPS, same, lambda g, n, k: g.in_memory_cache())
add_form("map-style unzip", ("map of tuple", "map of triple"), "map of other", lambda g, n, k: g.unzip(2)[n % 2])

# fmt: on
RINGS = [*added_by_rings("forms")]  # imported, they have added theirs
