"""Every form of the node library, by what items it takes and gives: one registry, from which chains are composed.

A form is made with a number from 0 to 3, which chooses its arguments. A key of the registry and a number say all: they
give the same items in the same folder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from tests.pairs import form_material as user
from tests.pairs.form_material import FORMATS
from tests.state.fuzz_graphs import Counter, Numbers, Slow, Stairs, Walk, draw, tell
from tests.state.fuzz_nodes import connect
from tests.test_replay import Shuffles, ShufflesStateful
from torchpipe.iter import (
    FileLister,
    FilePieces,
    HuggingFaceReader,
    IterableWrapper,
    ParquetReader,
    PathList,
    SampleMultiplexer,
    Sampler,
    SqlReader,
    TextLineReader,
    TFRecordReader,
)
from torchpipe.map import MDSFile, SequenceWrapper, TFRecordFile, TokenFile

__all__ = ["FORMS", "LEFT_OUT", "NUMBERS", "Branches", "Form", "Kind", "Model", "fewer"]

Kind = str
"""Of items: "int", "list of int", "path csv", "open csv" (a pair of a path and a stream), "map of int" (map-style) ...
"""

MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING
NUMBERS = range(4)


@dataclass(frozen=True)
class Branches:
    """What a form makes that gives several nodes. The next step of a chain stands on each; then they are joined."""

    nodes: list[Any]
    number: int

    def joined(self) -> Any:
        first, *rest = self.nodes
        return first.concat(*rest) if self.number % 2 else first.mux_longest(*rest)


@dataclass(frozen=True)
class Model:
    """What a form does to a list of items, in plain Python. Their order "matters"; or it is "free", as each is treated
    alone; or it is "lost", as the same items come in another one.
    """

    does: Callable[[list[Any], int], list[Any]]
    order: str = "matters"


def each(does: Callable[[Any, int], list[Any]]) -> Model:
    return Model(lambda items, number: [made for item in items for made in does(item, number)], "free")


SAME = Model(lambda items, number: items, "free")
MIXED = Model(lambda items, number: items, "lost")


@dataclass(frozen=True, kw_only=True)
class Form:
    """``make(graph, number, kind)`` puts it behind ``graph``, whose items are of ``kind``.

    ``takes`` are patterns of kinds; a source has none. ``grows``: about how many items it gives for each. ``draws``:
    the numbers with which it draws from the global random states. ``traits``: what the rules ask for, see form_rules.
    """

    key: str
    takes: tuple[str, ...]
    gives: Callable[[Kind], Kind]
    make: Callable[[Any, int, Kind], Any]
    grows: float = 1.0
    draws: frozenset[int] = frozenset()
    traits: frozenset[str] = frozenset()
    model: Model | None = None

    def traits_of(self, number: int) -> frozenset[str]:
        return self.traits | {"seeded"} if number == 1 and "joins" in self.traits else self.traits

    @cached_property
    def name(self) -> str:
        return self.key.partition("/")[0]

    @cached_property
    def family(self) -> str:
        return _FAMILIES.get(self.name, self.name)

    def accepts(self, kind: Kind) -> bool:
        return any(fnmatchcase(kind, pattern) for pattern in self.takes)


FORMS: dict[str, Form] = {}
"""By a key: the form's name (of a source, its class's), and, of a second way to use it, that after a stroke."""

LEFT_OUT: dict[str, str] = {
    "list_files_by_s3": "needs a server: tests/iter/clouds/test_s3.py",
    "load_files_by_s3": "needs a server: tests/iter/clouds/test_s3.py",
    "read_from_http": "needs a server: tests/iter/clouds/test_web_readers.py",
    "read_from_gdrive": "needs a server: tests/iter/clouds/test_web_readers.py",
    "read_from_remote": "needs a server: tests/iter/clouds/test_web_readers.py",
    "HuggingFaceHubReader": "needs the Hub: tests/iter/tables/test_hugging_face_reader.py",
    "pin_memory": "needs a GPU: tests/iter/running/test_pin_memory.py",
    "fullsync": "needs ranks: tests/iter/running/test_full_sync.py",
    "end_caching": "stands with on_disk_cache",
    "MapToIterConverter": "is the form to_iter_datapipe",
}
"""Forms and sources without an entry in the registry, and why."""

_FAMILIES = {
    "take": "header",
    "threadpool_map": "parallel_map",
    "in_memory_cache": "cache",
    "extract": "decompress",
    "load_from_bz2": "decompress",
    "load_from_xz": "decompress",
    "load_from_zip": "load_from_tar",
    "load_from_rar": "load_from_tar",
    "list_files_by_fsspec": "list_files",
    "list_files_by_iopath": "list_files",
    "open_files_by_fsspec": "open_files",
    "open_files_by_iopath": "open_files",
    "save_by_fsspec": "save_to_disk",
    "save_by_iopath": "save_to_disk",
    "read_jsonl": "read_lines",
    "read_csv": "read_lines",
    "read_arrow": "read_parquet",
    "read_webdataset": "read_tfrecord",
    "read_zip": "read_tfrecord",
    "parse_csv_as_dict": "parse_csv",
    "slice": "drop",
    "flatten": "drop",
    "mux_longest": "mux",
    "round_robin_demux": "demux",
    "FileLister": "PathList",
    "TokenFile": "SequenceWrapper",
    "TFRecordFile": "SequenceWrapper",
    "MDSFile": "SequenceWrapper",
    "ParquetReader": "read_parquet",
}
"""Forms over the same code: in ``make test``, one of them counts for all. ``make pairs`` makes the pairs of each."""

ITEMS = ("[!mo]*", "o[!p]*", "m[!a]*")  # all but streams ("open ...") and what is map-style ("map of ...")
OR_STREAMS = ("[!m]*", "m[!a]*")
LISTS = ("list of *",)
MAPS = ("map of *",)


def _same(kind: Kind) -> Kind:
    return kind


def fewer(kind: Kind) -> Kind:
    """What is left of numbered items has gaps."""
    return "tuple" if kind == "numbered" else kind


def _list(kind: Kind) -> Kind:
    return f"list of {kind}"


def _of_list(kind: Kind) -> Kind:
    return kind.removeprefix("list of ")


def _of_map(kind: Kind) -> Kind:
    return kind.removeprefix("map of ")


def _opened(kind: Kind) -> Kind:
    return kind.replace("path", "open")


def _form(
    key: str,
    takes: tuple[str, ...] | str,
    gives: Callable[[Kind], Kind] | Kind,
    make: Callable[..., Any],
    grows: float = 1.0,
    *,
    traits: str = "",
    draws: tuple[int, ...] = (),
    model: Model | None = None,
) -> None:
    FORMS[key] = Form(
        key=key,
        takes=(takes,) if isinstance(takes, str) else takes,
        gives=gives if callable(gives) else lambda kind: gives,
        make=make,
        grows=grows,
        draws=frozenset(draws),
        traits=frozenset(traits.split()),
        model=model,
    )


def _source(
    key: str, gives: Kind, make: Callable[[int], Any], items: float, *, draws: tuple[int, ...] = (), traits: str = ""
) -> None:
    _form(key, (), gives, lambda graph, number, kind: make(number), items, draws=draws, traits=traits)


def other(kind: Kind, number: int) -> Any:
    """Another source of the same kind of items: plain, shuffled, opened late by a node that draws, or replayed."""
    source = _another(kind)
    if kind.startswith(("open ", "map of ")):
        return source
    return (source, source.shuffle(buffer_size=3), Shuffles(source), user.Passing(source))[number]


_OTHERS = {"draws": (2,), "traits": "joins"}  # of a form with such a source


def _another(kind: Kind) -> Any:
    first, _, rest = kind.partition(" ")
    numbers = IterableWrapper(range(100, 104))
    made: dict[str, Callable[[], Any]] = {
        "int": lambda: numbers,
        "dict": lambda: numbers.map(user.as_dict),
        "triple": lambda: numbers.map(user.as_triple),
        "named": lambda: numbers.map(user.as_named),
        "tensor": lambda: numbers.map(user.as_tensor),
        "text": lambda: IterableWrapper(["one", "two{3..4}", "five"]),
        "pair": lambda: IterableWrapper([("some", "line"), ("some", "")]),
        "folder": lambda: IterableWrapper(["csv"]),
        "path": lambda: PathList(f"{rest}/*" if rest in FORMATS else "txt/*"),
        "open": lambda: PathList(f"{rest}/*" if rest in FORMATS else "txt/*").open_files("b"),
        "piece": lambda: FilePieces("txt/*", "lines", piece_bytes=9),
        "row": lambda: PathList("parquet/0*").list_row_groups(),
        "table": lambda: PathList("parquet/*").load_parquet_as_df(),
        "array": lambda: TokenFile("tokens.npy", 20).to_iter_datapipe(),
        "content": lambda: PathList("txt/*").open_files("b").read_from_stream(),
        "list": lambda: _another(_of_list(kind)).batch(2, wrapper_class=list),
    }
    if kind == "dict of text":
        return PathList("csv/0*").read_csv()
    return made.get(first, lambda: IterableWrapper([(100, 101), (102, 103)]))()


# fmt: off

# --- sources
_source("IterableWrapper", "int",
        lambda n: IterableWrapper([range(13), [*range(20, 32)], range(12, 0, -1), range(17)][n]), 13)
_source("IterableWrapper/words", "text", lambda n: IterableWrapper([f"w{i}{{a,b}}" for i in range(9 + n)]), 10)
_source("IterableWrapper/folders", "folder",
        lambda n: IterableWrapper(["txt", "more txt"][: n % 2 + 1]), 2, traits="files")
_source("IterableWrapper/iterator", "tuple",
        lambda n: IterableWrapper([Walk, Stairs][n % 2]("ab"[n // 2]), deepcopy=n != 3), 5)
_source("SequenceWrapper", "map of int", lambda n: SequenceWrapper([*range(n, 13)]), 12)
_source("PathList", "path txt",
        lambda n: PathList(["txt/*", "more txt/*.txt", "txt/{0..2}.txt", "{more txt,txt}/*"][n]), 3, traits="files")
for _ending in FORMATS[1:]:
    _source(f"PathList/{_ending}", f"path {_ending}",
            lambda n, ending=_ending: PathList([f"{ending}/*", f"more {ending}/*"][n % 2]), 3, traits="files")  # type: ignore[misc]
_source("FilePieces", "piece",
        lambda n: FilePieces(["txt/*", "more txt/*"][n % 2], "lines", piece_bytes=7 + n, shuffle=True), 12,
        traits="files seeded")
_source("shard_pieces", "other",
        lambda n: TextLineReader(["txt/*", "more txt/*"][n % 2]).shard_pieces(piece_bytes=7 + n, shuffle=n > 1), 7,
        traits="files shards")
_source("shard_pieces/row groups", "dict",
        lambda n: ParquetReader("parquet/*").shard_pieces(piece_bytes=1 + n, shuffle=n > 1), 18,
        traits="files shards")
_source("ParquetReader/hive", "dict",
        lambda n: ParquetReader(["hive/*/*", "more hive/*/*"][n % 2], ["a", "b"], partitioning="hive",
                                filter=[None, [("a", ">", 0), ("b", ">", "2")]][n // 2]), 14, traits="files")
_source("shard_pieces/records", "other",
        lambda n: TFRecordReader("tfrecord/*").shard_pieces(piece_bytes=20 + n, shuffle=n > 1), 12,
        traits="files shards")
_source("FileLister", "path txt", lambda n: FileLister(["txt", "more txt"][n % 2], abspath=n > 1), 3, traits="files")
_source("Sampler", "int",
        lambda n: Sampler(IterableWrapper(range(12 + n)), [SequentialSampler, RandomSampler][n % 2]), 13, draws=(1, 3))
_source("SqlReader", "dict",
        lambda n: SqlReader(partial(connect, Path("rows.sqlite")), "rows", key="a", page_size=n + 2), 13,
        traits="files")
_source("HuggingFaceReader", "dict", lambda n: HuggingFaceReader(user.rows(n)), 10)
_source("TokenFile", "map of array", lambda n: TokenFile("tokens.npy", 5 + n), 10, traits="files")
_source("TFRecordFile", "map of other",
        lambda n: TFRecordFile(["tfrecord/2.*", "more tfrecord/0.*"][n % 2], parse=n < 2), 6, traits="files")
_source("MDSFile", "map of dict", lambda n: MDSFile(["mds", "more mds"][n % 2], [None, ["b", "a"]][n // 2]), 8,
        traits="files")
_source("own source", "int", lambda n: Numbers(11 + n), 12)

# --- one item at a time
_form("map", ITEMS, "other", lambda g, n, k: g.map([tell, user.wrap, Counter(), partial(user.wrap)][n]), draws=(0,))
_form("map/code", ITEMS, "other",
      lambda g, n, k: g.map([lambda x: (x, 1), lambda x: (x, 2), lambda x: x, user.wrap][n]),
      model=each(lambda x, n: [[(x, 1), (x, 2), x, ("wrapped", x)][n]]))
_form("map/bound", ITEMS, "other",
      lambda g, n, k: g.map([partial(user.pair_with, n), user.holding(n)][n // 2]), model=each(lambda x, n: [(n, x)]))
for _kind, _fn in {
    "int": user.as_number, "list of int": user.listed, "dict": user.as_dict, "triple": user.as_triple,
    "named": user.as_named, "text": user.as_text, "tensor": user.as_tensor,
}.items():
    _form(f"map/{_kind}", ITEMS, _kind, lambda g, n, k, fn=_fn: g.map(fn), model=each(lambda x, n, fn=_fn: [fn(x)]))  # type: ignore[misc]
for _ending in FORMATS:
    _form(f"map/path {_ending}", ITEMS, f"path {_ending}",
          lambda g, n, k, ending=_ending: g.map(partial(user.as_path, ending)))
_form("random_map", ITEMS, "other", lambda g, n, k: g.random_map(draw))
_form("filter", OR_STREAMS, fewer, lambda g, n, k: g.filter(user.Kept(n)), 0.8,
      model=each(lambda x, n: [x] if user.Kept(n)(x) else []))
_form("flatmap", ITEMS, "other",
      lambda g, n, k: g.flatmap([user.pieces, user.steps, Walk, user.drawing_steps][n]), 2, draws=(3,))
_form("flatmap/lists", LISTS, _of_list, lambda g, n, k: g.flatmap(), 2, model=each(lambda x, n: [*x]))
_form("shuffled_flatmap", ITEMS, "other",
      lambda g, n, k: g.shuffled_flatmap([user.pieces, Stairs, Walk, user.steps][n], buffer_size=2 + n), 2,
      traits="seeded")
_form("interleave", ITEMS, "other",
      lambda g, n, k: g.interleave([user.pieces, user.small_node, Walk, user.steps][n], cycle_length=2,
                                   block_length=n % 2 + 1), 2)
_form("enumerate", ITEMS, "numbered", lambda g, n, k: g.enumerate(), model=Model(lambda items, n: [*enumerate(items)]))
_INDEX = ["index", "i", "number", "a"]
_form("add_index", "dict*", _same, lambda g, n, k: g.add_index(_INDEX[n]),
      model=Model(lambda items, n: [{**x, _INDEX[n]: i} for i, x in enumerate(items)]))
_PARTS = ("tuple", "triple", "numbered")
_form("drop", _PARTS, "other", lambda g, n, k: g.drop([0, 1, [], [0, 1]][n]),
      model=each(lambda x, n: [tuple(v for i, v in enumerate(x) if i not in [(0,), (1,), (), (0, 1)][n])]))
_form("drop/dict", "dict*", "other", lambda g, n, k: g.drop(["a", "b", [], ["a", "b"]][n]),
      model=each(lambda x, n: [{i: v for i, v in x.items() if i not in ["a", "b", "-", "ab"][n]}]))
_form("slice", (*_PARTS, *LISTS), "other", lambda g, n, k: g.slice(*[(0, 1), (0, None, 2), ([],), (1, 3)][n]),
      model=each(lambda x, n: [[*[x[0:1], x[0::2], x[0:0], x[1:3]][n]] if isinstance(x, list) else
                               [x[0:1], x[0::2], x[0:0], x[1:3]][n]]))
_form("slice/dict", "dict*", "other", lambda g, n, k: g.slice(["a", ["a", "b"], [], ["b"]][n]),
      model=each(lambda x, n: [{i: x[i] for i in x if i in ["a", "ab", "-", "b"][n]}]))
_PLACES = [None, [], [1], [0, 1]]
_form("flatten", _PARTS, "other", lambda g, n, k: g.flatten(_PLACES[n]),
      model=each(lambda x, n: [user.flat(x, _PLACES[n])]))
_form("threadpool_map", ITEMS, "other",
      lambda g, n, k: g.threadpool_map(user.wrap, scheduled_tasks=n + 1, max_workers=2),
      model=each(lambda x, n: [user.wrap(x)]))
_form("parallel_map", ITEMS, "other",
      lambda g, n, k: g.parallel_map([user.wrap, draw][n % 2], num_threads=2, buffer_size=n + 2, rng=n % 2 == 1))
_form("map_batches", ITEMS, "other", lambda g, n, k: g.map_batches(user.wrap_all, batch_size=n + 1),
      model=Model(lambda items, n: [x for batch in _batches(items, n, True) for x in user.wrap_all(batch)]))
_form("async_map_batches", ITEMS, "other", lambda g, n, k: g.async_map_batches(user.awaited, n + 1),
      model=each(lambda x, n: [("awaited", x)]))
_form("shard_expand", "text", "text", lambda g, n, k: g.shard_expand(), 2)
_form("own node", ITEMS, "other", lambda g, n, k: [Slow, Slow, user.Passing, user.Passing][n](g))
_form("own node that opens late", ITEMS, fewer,
      lambda g, n, k: [Shuffles, ShufflesStateful, user.Late, user.Late][n](g), draws=(0, 1))
_form("own node that remembers", ITEMS, "other", lambda g, n, k: user.Remembers(g))
_form("own node in the main section", ITEMS, "other", lambda g, n, k: user.RemembersInMain(g), traits="main")
_form("mutable", ITEMS, "other", lambda g, n, k: g.map(partial(user.mutable, n)),
      model=each(lambda x, n: [user.mutable(n, x)]))
_form("spoils", ITEMS, _same,
      lambda g, n, k: [g.map(user.spoiled), g.parallel_map(user.spoiled, num_threads=2, buffer_size=3),
                       g.filter(user.spoiling), g.flatmap(user.spoiled_alone)][n],
      model=each(lambda x, n: [user.spoiled(copy.deepcopy(x))]))


# --- items together
def _batches(items: list[Any], n: int, last: bool) -> list[Any]:
    made = [items[i: i + n + 1] for i in range(0, len(items), n + 1)]
    return [batch for batch in made if last or len(batch) == n + 1]


_form("batch", ITEMS, _list, lambda g, n, k: g.batch(n + 1, drop_last=n == 2, wrapper_class=list), 0.5,
      model=Model(lambda items, n: _batches(items, n, n != 2)))
_form("batch/chunks", ITEMS, _list, lambda g, n, k: g.batch(n + 1), 0.5)
_form("batch/wrapped", ITEMS, "other",
      lambda g, n, k: g.batch(2 + n, last=["keep", "drop", "repeat", "keep"][n], wrapper_class=user.joined), 0.4)
_form("bucket_by_length", ITEMS, _list, lambda g, n, k: g.bucket_by_length([2, 3], n + 1, user.length), 0.6)
_form("bucketbatch", ITEMS, _list,
      lambda g, n, k: g.bucketbatch(2, batch_num=2, bucket_num=n % 2 + 1, sort_key=[user.ordered, None][n // 2]), 0.5,
      traits="seeded")
_form("dynamic_batch", ITEMS, _list,
      lambda g, n, k: g.dynamic_batch(5 + n, user.length, padded=n > 1, overflow="keep"), 0.5)
_form("max_token_bucketize", ITEMS, _list,
      lambda g, n, k: g.max_token_bucketize(9 + n, user.length, buffer_size=n + 2), 0.5)
_form("groupby", ITEMS, _list,
      lambda g, n, k: g.groupby(user.key, buffer_size=6, group_size=n + 2, guaranteed_group_size=1), 0.6)
_form("collate", ("list of int", "list of tensor"), "tensor", lambda g, n, k: g.collate())
_form("collate/own", LISTS, "other", lambda g, n, k: g.collate(collate_fn=user.joined),
      model=each(lambda x, n: [user.joined(x)]))
_form("unbatch", LISTS, _of_list, lambda g, n, k: g.unbatch(), 2, model=each(lambda x, n: [*x]))
_form("rebatch", LISTS, _same, lambda g, n, k: g.rebatch(n + 1, drop_last=n == 2))
_form("in_batch_shuffle", LISTS, _same, lambda g, n, k: g.in_batch_shuffle(), traits="seeded")
_form("rows2columnar", "list of dict*", "other",
      lambda g, n, k: g.rows2columnar([None, ["a"], ["b"], ["a", "b"]][n]))
_form("rows2columnar/named", "list of triple", "other", lambda g, n, k: g.rows2columnar(["x", "y", "z"]))
_form("dataframe", "dict", "table", lambda g, n, k: g.dataframe(n + 2, columns=["a", "b"]), 0.4)
_PACKED = ({}, {"drop_last": True}, {"bins": 2, "overflow": "split"}, {"bins": 2, "overflow": "split"})
_form("pack", ("list of int", "array"), "other",
      lambda g, n, k: g.pack(6, strategy=["concat", "concat", "first_fit", "best_fit"][n], **_PACKED[n]), 0.6)
_form("pad_batch", ("list of list of int", "list of array"), "other",
      lambda g, n, k: g.pad_batch(n, multiple_of=n + 1))

# --- order
_form("shuffle", OR_STREAMS, _same, lambda g, n, k: g.shuffle(buffer_size=[5, 2, 100, 1][n]), traits="seeded",
      model=MIXED)
_form("window_shuffle", OR_STREAMS, _same, lambda g, n, k: g.window_shuffle(n + 2), traits="seeded", model=MIXED)
_form("sort", OR_STREAMS, _same, lambda g, n, k: g.sort(n + 2, user.sort_key, reverse=n == 3),
      model=Model(lambda items, n: [x for i in range(0, len(items), n + 2)
                                    for x in sorted(items[i: i + n + 2], key=user.hashed, reverse=n == 3)]))
_form("sharding_filter", OR_STREAMS, fewer, lambda g, n, k: g.sharding_filter(), traits="shards", model=SAME)
_form("sharding_round_robin_dispatch", ITEMS, fewer,
      lambda g, n, k: g.sharding_round_robin_dispatch(*[(), (MULTIPROCESSING,)][n % 2]), traits="shards dispatches",
      model=SAME)

# --- several streams
_form("concat", OR_STREAMS, fewer, lambda g, n, k: g.concat(other(k, n)), 1.3, **_OTHERS)
_form("concat/first", OR_STREAMS, fewer, lambda g, n, k: other(k, n).concat(g), 1.3, **_OTHERS)
_form("concat/twice", ITEMS, fewer, lambda g, n, k: g.concat(g), 2, traits="rereads",
      model=Model(lambda items, n: items + items))
_form("mux", OR_STREAMS, fewer, lambda g, n, k: g.mux(other(k, n)), **_OTHERS)
_form("mux_longest", OR_STREAMS, fewer, lambda g, n, k: other(k, n).mux_longest(g), 1.3, **_OTHERS)
_STOPS = ["first_exhausted", "all_exhausted", "restart", "first_exhausted"]
_form("mix", OR_STREAMS, fewer, lambda g, n, k: g.mix(other(k, 2 * (n // 2)), weights=[n + 1, 1], stop=_STOPS[n]), 1.2,
      traits="seeded", draws=(2, 3))
_form("SampleMultiplexer", OR_STREAMS, fewer, lambda g, n, k: SampleMultiplexer({g: n + 1, other(k, n): 1}), 1.3,
      traits="seeded", draws=(2,))
_form("zip", ITEMS, "tuple", lambda g, n, k: g.zip(other("int", n).cycle(5)), **_OTHERS)
_form("zip_longest", ITEMS, "tuple", lambda g, n, k: other("int", n).zip_longest(g, fill_value=-1), **_OTHERS)
_form("zip_with_iter", ITEMS, "tuple",
      lambda g, n, k: g.zip_with_iter(IterableWrapper(range(500)).shuffle(buffer_size=n + 1), user.Calls(), abs),
      traits="seeded")
_form("zip_with_map", ITEMS, "tuple",
      lambda g, n, k: g.zip_with_map(SequenceWrapper([*range(n, 60)]), user.place_of, keep_key=n % 2 == 1))
_form("fork", ITEMS, fewer, lambda g, n, k: Branches(g.fork(2, copy=[None, "deep"][n // 2]), n), 2,
      traits="branches shared", model=Model(lambda items, n: items + items, "lost"))
_form("demux", ITEMS, fewer, lambda g, n, k: Branches(g.demux(2, user.part), n), traits="branches shared", model=MIXED)
_form("round_robin_demux", ITEMS, fewer, lambda g, n, k: Branches(g.round_robin_demux(2), n),
      traits="branches shared", model=MIXED)
_form("unzip", "triple", "int", lambda g, n, k: Branches(g.unzip(3, columns_to_skip=[0]), n), 2,
      traits="branches shared")
_form("random_split", ITEMS, fewer,
      lambda g, n, k: Branches(g.random_split({"some": 0.6, "more": 0.4}, n, total_length=user.length_of(g)), n),
      traits="branches rereads splits", model=MIXED)

# --- how many, when, where
_FIRST = [9, 4, 30, None]
_form("header", OR_STREAMS, _same, lambda g, n, k: g.header(_FIRST[n]), 0.8,
      model=Model(lambda items, n: items[: _FIRST[n]]))
_form("take", OR_STREAMS, _same, lambda g, n, k: g.take(8 - n), 0.8, model=Model(lambda items, n: items[: 8 - n]))
_form("skip", OR_STREAMS, fewer, lambda g, n, k: g.skip(n), 0.8, model=Model(lambda items, n: items[n:]))
_TIMES = [2, 1, 3, 2]
_form("cycle", OR_STREAMS, fewer, lambda g, n, k: g.cycle(_TIMES[n]), 2, traits="rereads")
_form("repeat", ITEMS, fewer, lambda g, n, k: g.repeat(_TIMES[n]), 2, model=each(lambda x, n: [x] * _TIMES[n]))
_form("set_length", OR_STREAMS, fewer, lambda g, n, k: g.set_length(user.length_of(g) + n // 2), model=SAME)
_form("prefetch", OR_STREAMS, _same, lambda g, n, k: g.prefetch(n + 1), model=SAME)
_form("to_device", OR_STREAMS, _same, lambda g, n, k: g.to_device("cpu", prefetch=n, host_prefetch=n % 2),
      traits="main", model=SAME)
_form("retry", OR_STREAMS, _same, lambda g, n, k: g.retry(n + 1, backoff_s=0.0), model=SAME)
_form("on_error", OR_STREAMS, _same, lambda g, n, k: g.on_error(["skip", "raise"][n % 2]), traits="skips", model=SAME)
_form("on_error/bad items", ITEMS, fewer, lambda g, n, k: g.map(user.moody).on_error("skip", budget=None), 0.8,
      traits="skips", model=each(lambda x, n: [x] if user.hashed(x) % 5 != 3 else []))
_form("on_error/one branch", ITEMS, "tuple",
      lambda g, n, k: (lambda a, b: a.map(user.moody).zip(b))(*g.fork(2)).on_error("skip", budget=None), 0.8,
      traits="skips shared", model=each(lambda x, n: [(x, copy.deepcopy(x))] if user.hashed(x) % 5 != 3 else []))
_form("on_error/bad lines", "folder", "other",
      lambda g, n, k: g.map(user.bad_lines).read_jsonl().on_error("skip", budget=None), 4, traits="skips",
      model=each(lambda folder, n: user.good_records(user.bad_lines(folder))))
_form("on_error/bad rows", "folder", "dict of text",
      lambda g, n, k: g.map(user.bad_rows).read_csv().on_error("skip", budget=None), 4, traits="skips",
      model=each(lambda folder, n: user.good_records(user.bad_rows(folder))))
_form("on_error/one of two files", "folder", "tuple",
      lambda g, n, k: (lambda a, b: a.map(user.bad_lines).read_jsonl().zip(b.map(user.right_lines).read_jsonl()))(
          *g.fork(2)).on_error("skip", budget=None), 4, traits="skips shared",
      model=each(lambda folder, n: [(x, x) for x in user.good_records(user.bad_lines(folder))]))
_form("cache", ITEMS, _same, lambda g, n, k: g.cache(chunk_items=n + 1, allow_pickle=True), traits="caches")
_form("cache/folder", ITEMS, _same,
      lambda g, n, k: g.cache("cached", chunk_items=n + 1, version="1", allow_pickle=True), traits="caches")
_form("in_memory_cache", ITEMS, _same, lambda g, n, k: g.in_memory_cache(), traits="caches")
_form("on_disk_cache", ITEMS, "path saved",
      lambda g, n, k: g.on_disk_cache(filepath_fn=user.kept_file).map(user.rendered).end_caching(
          "t", same_filepath_fn=True, skip_read=True))

# --- files
_form("list_files", "folder", "path txt", lambda g, n, k: g.list_files("*.txt", abspath=n % 2 == 1), 3)
_form("list_files_by_fsspec", "folder", "path txt", lambda g, n, k: g.list_files_by_fsspec("*.txt"), 3)
_form("list_files_by_iopath", "folder", "path txt", lambda g, n, k: g.list_files_by_iopath("*.txt"), 3)
_form("open_files", "path *", _opened, lambda g, n, k: g.open_files("b"))
_form("open_files_by_fsspec", "path *", _opened, lambda g, n, k: g.open_files_by_fsspec("rb"))
_form("open_files_by_iopath", "path *", _opened, lambda g, n, k: g.open_files_by_iopath("rb"))
_form("check_hash", tuple(f"open {ending}" for ending in FORMATS), _same, lambda g, n, k: g.check_hash(user.hashes()))
_form("read_from_stream", "open *", "content", lambda g, n, k: g.read_from_stream([None, None, 9000, 2000][n]))
_TEXTS = ("open txt", "open csv", "open bytes", "open saved")
_form("readlines", _TEXTS, "pair", lambda g, n, k: g.readlines(skip_lines=n % 2, decode=True), 5)
_form("readlines/alone", _TEXTS, "other", lambda g, n, k: g.readlines(return_path=False, strip_newline=n < 2), 5)
_form("lines_to_paragraphs", "pair", "pair",
      lambda g, n, k: g.lines_to_paragraphs(joiner=["\n".join, "|".join][n % 2]), 0.5)
_form("parse_csv", "open csv", "list of text", lambda g, n, k: g.parse_csv(skip_lines=n % 2), 5)
_form("parse_csv_as_dict", "open csv", "dict of text", lambda g, n, k: g.parse_csv_as_dict(), 5)
_form("parse_json_files", "open json", "other", lambda g, n, k: g.parse_json_files())
_form("routed_decode", ("open txt", "open json", "open bytes"), "other", lambda g, n, k: g.routed_decode())
_form("webdataset", "content", "other", lambda g, n, k: g.webdataset(), 0.5)
_form("decompress", tuple(f"open {ending}" for ending in ("gz", "bz2", "xz")), "open bytes",
      lambda g, n, k: g.decompress())
_form("extract", "open gz", "open bytes", lambda g, n, k: g.extract())
_form("load_from_bz2", "open bz2", "open bytes", lambda g, n, k: g.load_from_bz2())
_form("load_from_xz", "open xz", "open bytes", lambda g, n, k: g.load_from_xz())
_form("load_from_tar", "open tar", "open bytes", lambda g, n, k: g.load_from_tar(), 3)
_form("load_from_zip", "open zip", "open bytes", lambda g, n, k: g.load_from_zip(), 3)
_form("load_from_rar", "open rar", "open bytes", lambda g, n, k: g.load_from_rar(), 3)
_form("load_from_tfrecord", "open tfrecord", "other", lambda g, n, k: g.load_from_tfrecord(), 4)
_ROOTS = ["saved", "more saved"]
_form("save_to_disk", "named", "path saved", lambda g, n, k: g.save_to_disk("w", root=_ROOTS[n % 2]))
_form("save_by_fsspec", "named", "path saved", lambda g, n, k: g.save_by_fsspec("w", root=_ROOTS[n % 2]))
_form("save_by_iopath", "named", "path saved", lambda g, n, k: g.save_by_iopath("w", filepath_fn="saved/{}".format))
_form("read_lines", ("path txt", "path saved", "path gz", "path bz2", "path xz", "piece"), "other",
      lambda g, n, k: g.read_lines(), 7)
_form("read_jsonl", "path jsonl", "other", lambda g, n, k: g.read_jsonl(), 9)
_form("read_csv", "path csv", "dict of text", lambda g, n, k: g.read_csv(), 9)
_form("read_parquet", ("path parquet", "row group"), "dict", lambda g, n, k: g.read_parquet(), 6)
_form("read_parquet/batches", ("path parquet", "row group"), "other",
      lambda g, n, k: g.read_parquet(["a"], batch_size=n + 2), 3)
_form("list_row_groups", "path parquet", "row group", lambda g, n, k: g.list_row_groups(), 3)
_form("load_parquet_as_df", "path parquet", "table", lambda g, n, k: g.load_parquet_as_df(), 3)
_form("read_arrow", "path arrow", "dict", lambda g, n, k: g.read_arrow(), 6)
_form("read_tfrecord", "path tfrecord", "other", lambda g, n, k: g.read_tfrecord(parse=n % 2 == 0), 4)
_form("read_webdataset", "path tar", "other", lambda g, n, k: g.read_webdataset(), 5)
_form("read_zip", "path zip", "content", lambda g, n, k: g.read_zip(), 5)

# --- map style
_form("to_map_datapipe", "numbered", "map of other", lambda g, n, k: g.to_map_datapipe(), traits="collects")
_form("to_iter_datapipe", MAPS, _of_map, lambda g, n, k: g.to_iter_datapipe())
_form("map-style shuffle", MAPS, _of_map, lambda g, n, k: g.shuffle(computed=[None, True, False, None][n]),
      traits="seeded", model=MIXED)
_form("map-style map", MAPS, "map of other",
      lambda g, n, k: g.map([tell, user.wrap, lambda x: (x, 1), lambda x: (x, 2)][n]), draws=(0,))
_form("map-style batch", MAPS, lambda kind: f"map of list of {_of_map(kind)}",
      lambda g, n, k: g.batch(n + 1, drop_last=n == 2), 0.5)
_form("map-style concat", MAPS, _same, lambda g, n, k: g.concat(g), 2, traits="rereads")
_form("map-style zip", MAPS, "map of tuple", lambda g, n, k: g.zip(SequenceWrapper([*range(40 + n)])))
_form("map-style in_memory_cache", MAPS, _same, lambda g, n, k: g.in_memory_cache())
_form("map-style unzip", ("map of tuple", "map of triple"), "map of other", lambda g, n, k: g.unzip(2)[n % 2])
