"""``MDSFile``: real MDS shards and the ones of a small writer, from every sample on; what does not fit its index is an
error that names it."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import numpy as np
import pytest
import torch
import zstandard

from reading_services import MultiProcessingReadingService
from tests.servers import Page, web_server
from torchpipe import DataLoader2
from torchpipe.map import MDSFile
from torchpipe.node.fingerprint import fingerprint
from torchpipe.testing import check_node

fsspec.asyn.get_loop()  # its descriptors stay: no test is to be the one that opens them

# The folder that mosaicml-streaming 0.13.0's MDSWriter made (zstd:19) of two samples with all of its encodings.
REAL = (
    "P)h>@KL7#%4gg?pd|jna_XKzW008>~000UA003!jWMz0RYIARH2?PZIT>t=p002FRie|&AA&_tD=Ul#9M$XVscf8#`tkpa*irLY=^Nfg=v5HCX61~jVN"
    "UYroD=N|m_O26G#e`TP{n7v0`m9bY5_<0WY=L;>iikV0Mq5kas^&&(7!Dy~zE!+w4aT6fJ%q~lvoFtEAfb^(AhIXH-MoZ$>7cLLtaTt_?QU1dcN4?J<A"
    "m9(vmAj&Gl&V4iTD8XB7yoh{-NvCNb|WyuR7ZdXsfw7gz3n<P+K2a!;A4n(P1-?90h@5$ij^#Tg0S2#NC+a2D-"
    ")~QBxdxa%~5vy6Evw*r`P8=vwMeEs*7;ps}cXl`#dtg53_KGAvpAaI2?~^Sl|IGt>x3W(UoePW+D?V@Xc5Y{#ZhS@g^=wk6RB`OXx4x|5>RH4tKbA3M`"
    "iHyW5*E}l)s(I#e>16hn}uRJXGg}94+H@kG_SYlA6ij9RYxu@9U$%P0N0FM)%-"
    "okO56W894SMraIF~#Wq_$>1yP)h>@KL7#%4gg?pd|mv&r{bCf004Ug000yK0047nVRB?HFfcGMFfMImb1r&wbYuwx1pr+D0Du4h6fHsT(<CzI$dhdw7y"
    "#tFAK7IE5v+7VRNED-z9IDRN(#h>am!&EilJ(sUH|y!&ACL3)Q{ej-YsZx)ovXx%EmQF#SkbYnhr@0(XBv>&*R#xnNiQk^-"
    ">yCmK#5H{05RP3i$&HCBFNj5aAkY-"
    "X}sG)C6NThwL`~Zc$(aqp0<>e7cN5lBJ4&fi3Mqa;*ARRFbK@L{7g5#iHKrXA1M&N0G%{&3NmpV^3$vj55iRabU7{Mp0Yt<OQ*K%&~~62l*fN4lg4$Mu"
    "3}u-KA=XB^Xh=PPCnc)K~tg4-%ZBHnXZT4$MKz%(QY~qb^&Kr6@m<5Hg&^zF&d}MWx2f`EwN5QG2>DSj8ftauj<49SslDlcpT)SRP0(7fzAyv#Q8-"
    "GAkjwNHZ`80$!T4<21{8M|}X`J;L5~?K^(z35rJ828?%GLBbWr9*w|4QDX)8LmP<gpJGELq-woa(3+*YXrc+dWD<hiatHx&syjESyW?kNUV@*NJ`p_@g"
    ")bCV8|hN-!(j;`6cA*ki2qc2RR~_DJ7l;unn*bEO}_CJHg6L6!Hz!b8Z!{06j707$2vLaPVtABgW0QW5|6<^pf(oan8YW<WAfp2+QMG(3;#z2-"
    "$p~E8!_{v$`7l(E>9;Gd~RjCIrj-"
    "h$&W_jO!LjFF!1g1!jBAXIRGt@%s8WK*|WrXgQPVL)4*<@y}<dh%M(B8XQu&t>Po8J&FpM)D^_VT)YDG!heJ>;9<rEJvXHGwfn9jw0fUrFzrKBT5=g!{"
    "syjw?y%^~}s5h)?jnf&l`F9Rz2fyuFZqo{fta*pi7no)B5abm+ZMZRU9)}8d`hIlpYdJnML79sTT<X1dCG-OPS}h{+AE?x#mdhKoO{fdAi8gu1MkuKzr"
    "us7_dAx_|bk71qXGBsZjy8~P8w9HgTm?5yaYmaB>!ktlvnw35AwVSXU<oQESmkr9UL!u0_eFwpg(Y<xWM$*wK3%XH^i0a8(srCrQ8kNierKAW542-"
    "9o&`G%pVkpKteKq5NQ5r)@O|x#&Z=-"
    "y6|^V>QBdZle;lT6iU!rCbOUhQN=jf6m1MvylID)$#Ey7mLrweBXE&Sb6GedGdc5y>?JqC1f!d$%%WDTJN@AO<{tZ_j(I|vAM=r#8PxoW`lKf(-"
    "yRLPdCJpW?nR8!~oU9xD81ZyOR(7#;Ms;cAa$+jslVFLl(rEMagVa6|T}+crhz8GKBojnDC|y_EOtb|4<Z6SD6T(j~At#p56)zpN@M}oz#YIA8Bq=u6J"
    "$N9_ZOx8TMkg~9ZlPOM+V`BC&9ZEU<n;2$A~Ieg+bU;JABk+V-"
    "Q%z(vCIu_XvTx1=afAYsN%N|+{|}1au$Fhd7NXmSFRPWMb=f1?f%PYNXw&c!%q>$h#p6j7@7CV?%=OCuB=v~x6kH8rUvn~>ZQ1D5szNemT6#Gkg2spyQ"
    "md7oM|>AYhL#tOcz&yv1Pf$tpXPaLNF?hJUkH;rc`5ij*}M%jqgw5`KIXVb#4Fu`VL?KP)h*<KLbAi0ssyGU~ha~rBC++cmV(a`vU*~3IG5A00000000"
    "00q=5hc003!jWMz0RYIARHP)h*<KLbAi0ssyGU~ha~{J^K;ngjp<djtRg6aWAK0000000000q=BFT0047nVRB?HFfcGMFfMImb1r&wbYxIV1qJ{B0006"
    "20swjd003+T00000"
)


def write_mds(
    folder: Path,
    samples: list[dict[str, int]],
    per_shard: int = 3,
    compression: str | None = None,
    names: tuple[str, str] = ("n", "text"),
) -> Path:
    """As ``MDSWriter`` does: ``n`` as int, and ``text`` (so many times "t"), as columns of these ``names``."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "column_encodings": ["int", "str"], "column_names": [*names], "column_sizes": [8, None],
        "compression": compression, "format": "mds", "hashes": [], "size_limit": None, "version": 2,
    }  # fmt: skip
    shards = []
    for first in range(0, len(samples), per_shard):
        rows = [
            np.uint32(sample["text"]).tobytes() + np.int64(sample["n"]).tobytes() + b"t" * sample["text"]
            for sample in samples[first : first + per_shard]
        ]
        config = json.dumps(columns).encode()
        places = np.cumsum([4 * (len(rows) + 2) + len(config), *map(len, rows)]).astype("<u4")
        raw = np.uint32(len(rows)).tobytes() + places.tobytes() + config + b"".join(rows)
        name = f"shard.{first // per_shard:05}.mds"
        entry = {**columns, "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}, "samples": len(rows)}
        entry["zip_data"] = None
        if compression is None:
            (folder / name).write_bytes(raw)
        else:
            zipped = zstandard.ZstdCompressor().compress(raw)
            (folder / f"{name}.zstd").write_bytes(zipped)
            entry["zip_data"] = {"basename": f"{name}.zstd", "bytes": len(zipped), "hashes": {}}
        shards.append(entry)
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return folder


def numbered(count: int) -> list[dict[str, int]]:
    return [{"n": number, "text": number % 4} for number in range(count)]


def numbers(node: Any) -> list[int]:
    return [item["n"] for item in node]


@pytest.fixture
def real(tmp_path: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(base64.b85decode(REAL))) as archive:
        archive.extractall(tmp_path / "real")
    return tmp_path / "real"


def test_what_streaming_wrote_is_read_as_it_was_given(real: Path) -> None:
    for number, sample in enumerate(MDSFile(real, images="rgb8").to_iter_datapipe(), 1):
        pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * number + 40
        for name in ("pil", "png"):
            assert np.array_equal(sample.pop(name), pixels)
        assert [len(sample[name]) for name in ("pils", "pngs", "jpegs")] == [2, number, 2]
        assert all(np.array_equal(image, pixels) for image in sample.pop("pils") + sample.pop("pngs"))
        for image in (sample.pop("jpeg"), *sample.pop("jpegs")):
            assert image.shape == (2, 2, 3)
            assert abs(image.astype(int) - pixels).max() < 40  # lossy
        for name in ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64"):
            value = sample.pop(name)
            assert value == number + 1
            assert value.dtype == name
        assert sample.pop("float64") == number + 1
        arrays = (
            ("arr", np.arange(number + 1, dtype=np.int16).reshape(1, -1) - 1),
            ("arr_t", np.full((number + 1, 2), number, np.float32)),
            ("arr_ts", np.array([[number, 2], [3, 4]], np.uint16)),
        )
        for name, expected in arrays:
            assert np.array_equal(sample[name], expected)
            assert sample[name].dtype == expected.dtype
            sample.pop(name)[:] = 0  # a copy
        assert sample == {
            "a_bytes": b"\0%d" % number * number, "a_str": "\u00e9" * number, "an_int": -number,
            "json": {"n": [number, None]}, "str_int": 10**20 + number, "str_float": number / 4,
            "str_decimal": Decimal("1.10") * number,
        }  # fmt: skip
    chosen = MDSFile(real / "index.json", ["png", "pil", "pngs"], images=None)[1]
    assert {name: type(value) for name, value in chosen.items()} == {"pil": bytes, "png": bytes, "pngs": list}
    tensor = MDSFile(real, ["png"], images="torchrgb8")[0]["png"]
    assert (tensor.shape, tensor.dtype) == ((3, 2, 2), torch.uint8)


def put(folder: Path, name: str) -> str:
    for path in folder.iterdir():
        with fsspec.open(f"memory://{name}/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    return f"memory://{name}"


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_L2_exact_resume(tmp_path: Path, compression: str | None) -> None:
    one = write_mds(tmp_path / "one", numbered(7), compression=compression)
    two = write_mds(tmp_path / "two", numbered(4), compression=compression)
    paths = [one, two / "index.json", put(one, f"torchpipe-mds-{compression}")]
    node = MDSFile(paths)
    assert numbers(node.to_iter_datapipe()) == [*range(7), *range(4), *range(7)]
    check_node(lambda: MDSFile(paths, max_bytes=0).shuffle().sharding_filter(), epochs=[0], positions=9)
    with ThreadPoolExecutor(4) as pool:  # of shards that drop out of memory meanwhile
        assert numbers(pool.map(MDSFile(paths, max_bytes=0).__getitem__, range(18))) == numbers(node)
    node = MDSFile([one, two, f"file://{one}"])  # workers that are not forked have nothing of memory://
    graph = pickle.loads(pickle.dumps(node)).shuffle().sharding_filter()
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=2))
    assert sorted(numbers(loader)) == sorted(numbers(node))
    loader.shutdown()


def test_identity_is_the_index_and_what_changes_samples(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "one", numbered(7), compression="zstd")
    same = MDSFile(folder)
    moved = write_mds(tmp_path / "moved", numbered(7), compression="zstd")
    for path in moved.glob("*.zstd"):
        path.with_suffix("").write_bytes(zstandard.decompress(path.read_bytes()))
    for path in moved.glob("*.zstd"):
        path.unlink()
    for other in (MDSFile(moved, max_bytes=1), MDSFile(put(folder, "torchpipe-mds"), storage_options={})):
        assert fingerprint(other) == fingerprint(same)
        assert numbers(other) == numbers(same)
    others = [write_mds(tmp_path / "fewer", numbered(6), compression="zstd"), [folder, folder]]
    for node in (*map(MDSFile, others), MDSFile(folder, ["n"]), MDSFile(folder, images=None)):
        assert fingerprint(node) != fingerprint(same)


def edited(**changes: Any) -> Callable[[Path], None]:
    """The first shard is described in another way."""

    def edit(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        index["shards"][0].update(changes)
        (folder / "index.json").write_text(json.dumps(index))

    return edit


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).write_bytes(change((folder / name).read_bytes())), None][-1]


def swapped(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + b"\xff" + data[place + 1 :]


RAW, ZIPPED = "shard.00000.mds", "shard.00000.mds.zstd"
UP = {"basename": "../x", "bytes": 1}


@pytest.mark.parametrize(
    ("compression", "damage", "error", "message"),
    [
        (None, lambda folder: (folder / RAW).unlink(), FileNotFoundError, r"shard\.00000\.mds"),
        ("zstd", lambda folder: (folder / ZIPPED).unlink(), FileNotFoundError, r"shard\.00000\.mds\.zstd"),
        (None, lambda folder: (folder / "index.json").unlink(), FileNotFoundError, r"index\.json"),
        (None, rewritten(RAW, lambda data: data[:-1]), ValueError, r"00000\.mds is cut off: it has \d+ bytes, and"),
        (None, rewritten(RAW, lambda data: data + b"."), ValueError, r"00000\.mds is another one than the index"),
        ("zstd", rewritten(ZIPPED, lambda data: data[:-1]), ValueError, r"00000\.mds\.zstd is cut off"),
        ("zstd", rewritten(ZIPPED, swapped(9)), ValueError, r"00000\.mds\.zstd is damaged"),
        (None, rewritten(RAW, swapped(0)), ValueError, r"00000\.mds is damaged.*: it has 255 samples, and should"),
        (None, rewritten(RAW, swapped(6)), ValueError, r"00000\.mds is damaged.*sample 0 stands from byte 16711"),
        (None, rewritten("index.json", lambda data: data[:-9]), ValueError, r"index\.json is no index of MDS shards"),
        (None, rewritten("index.json", lambda data: b"[]"), ValueError, r"index\.json is no index of MDS shards"),
        (None, edited(version=1), ValueError, r"index\.json is no index of MDS shards: .*version 1"),
        (None, edited(raw_data=UP), ValueError, r"names '\.\./x', which does not lie in its folder"),
        (None, edited(samples="many"), ValueError, r"a shard has \['many', \d+\] samples and bytes"),
        (None, edited(samples=2), ValueError, r"00000\.mds is damaged.*: it has 3 samples, and should have 2"),
        (None, edited(column_names=["n", "x", "y"]), ValueError, r"index\.json is no index .*not as many of each"),
        (None, edited(column_encodings=["int", "pkl"]), ValueError, r"'text'.* has the encoding 'pkl'.*=\['n'\]"),
        (None, edited(column_encodings=["int", "new"]), ValueError, r"'text' of .*: the encoding 'new' is not known"),
        (None, edited(column_sizes=[8, 9]), ValueError, r"it has 12 bytes, and its parts have 17"),
        (None, edited(column_encodings=["int8", "str"]), ValueError, r"the value has 8 bytes, not 1"),
        ("zstd", edited(compression="br:11"), ValueError, r"compressed with 'br', and zstd, gz, bz2 are known"),
    ],
)
def test_L7_what_does_not_fit_names_the_file(
    tmp_path: Path, compression: str | None, damage: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    folder = write_mds(tmp_path / "one", numbered(7), compression=compression)
    damage(folder)
    with pytest.raises(error, match=message) as caught:
        MDSFile(folder)[0]
    url = put(folder, f"torchpipe-mds/{tmp_path.name}")
    with pytest.raises(error) as of_url:
        MDSFile(url)[0]
    fsspec.filesystem("memory").rm(url, recursive=True)
    assert type(of_url.value) is type(caught.value)


def test_wrong_columns_and_numbers(tmp_path: Path) -> None:
    node = MDSFile(write_mds(tmp_path / "one", numbered(7)), ["n"])
    assert node[np.int64(6)] == node[-1] == {"n": 6}
    for wrong in (-8, 7):
        with pytest.raises(IndexError, match=f"Index {wrong} is out of range: MDSFile has 7 items"):
            node[wrong]
    with pytest.raises(TypeError, match=r"MDSFile \(map-style\) is read by index, got 1.5"):
        node[1.5]
    for columns in ("n", [], {"n", "text"}, ["n", "n"], 3):
        with pytest.raises(ValueError, match="columns must be"):
            MDSFile(tmp_path / "one", columns)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shard\.00000\.mds has no column 'x', but n, text"):
        MDSFile(tmp_path / "one", ["x"])
    pickled = edited(column_encodings=["int", "pkl"])
    pickled(tmp_path / "one")
    assert MDSFile(tmp_path / "one", ["n"])[5] == {"n": 5}


def test_as_many_decompressed_shards_are_kept_as_there_is_room_for(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "one", numbered(12), compression="zstd")
    most = max(shard.raw_bytes for shard in MDSFile(folder).shards)
    for room, kept in ((0, 1), (2 * most, 2), (1 << 20, 4)):
        node = MDSFile(folder, max_bytes=room)
        numbers(node)
        for path in folder.glob("*.zstd"):  # what is kept is not read again
            path.rename(path.with_suffix(".away"))
        readable = [number for number in (11, 8, 5, 2) if _is_read(node, number)]
        assert readable == [11, 8, 5, 2][:kept]
        for path in folder.glob("*.away"):
            path.rename(path.with_suffix(".zstd"))


def test_at_urls_a_sample_is_one_request_and_samples_in_order_are_few(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "one", [{"n": number, "text": 30_000} for number in range(200)], per_shard=100)
    with web_server() as server:
        for path in folder.iterdir():
            server.pages[f"/{path.name}"] = Page(path.read_bytes(), {"ETag": '"a"', "Accept-Ranges": "bytes"})
        node = MDSFile(server.address)
        assert server.ranged < 5_000
        assert node[150]["n"] == 150
        assert node[10]["n"] == 10
        before, read = len(server.requests), server.ranged
        assert node[190]["n"] == 190
        assert len(server.requests) - before == 1
        assert server.ranged - read < 600_000
        before = len(server.requests)
        assert numbers(node) == list(range(200))
        assert len(server.requests) - before < 30


def test_folders_in_archives_and_behind_caches_of_fsspec(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "one", numbered(7), compression="zstd")
    with fsspec.open("memory://torchpipe-mds.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
            archive.write(path, f"in/{path.name}")
    chains = [f"{inner}::memory://torchpipe-mds.zip" for inner in ("zip://", "zip://in", "zip://in/")]
    for place in (*chains, f"simplecache::file://{folder}", f"simplecache::{chains[1]}"):
        assert numbers(MDSFile(place)) == list(range(7))


def _is_read(node: Any, number: int) -> bool:
    try:
        return bool(node[number]["n"] == number)
    except FileNotFoundError:
        return False
