"""``shard_pieces`` of tar archives and TFRecord files: every sample once, whole, whatever the pieces."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import signal
import struct
import tarfile
from collections.abc import Callable
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from tests.laws.executors import pids
from tests.reads import bytes_read_by
from tests.servers import Page, web_server
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import GraphError, StateMismatchError
from torchpipe.formats.tfrecord import write_record
from torchpipe.iter import FilePieces, IterableWrapper, TFRecordReader, WebDatasetReader
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node

# Its descriptors stay, and a thread that looks up names: no test is to be the one that begins them
fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.to_thread, int)

KINDS = ["tar", "tfrecord"]
COUNT = 60


def size_of(number: int) -> int:
    return 700 * (number * 7 % 5) + number % 3


def write_tar(path: Path, files: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write(folder: Path, kind: str) -> Path:
    """60 samples of some 0 to 3 kB in two files, one large and one small."""
    for name, numbers in (("a", range(50)), ("b", range(50, COUNT))):
        if kind == "tar":
            files = [
                (f"{number:03}.{ending}", content)
                for number in numbers
                for ending, content in (("cls", str(number).encode()), ("bin", bytes(size_of(number))))
            ]
            write_tar(folder / f"{name}.tar", files)
        else:
            with open(folder / f"{name}.tfrecord", "wb") as file:
                for number in numbers:
                    write_record(file, str(number).encode() + bytes(size_of(number)))
    return folder


def reader(kind: str, path: Any, **options: Any) -> Any:
    if kind == "tar":
        return WebDatasetReader(path, ["cls", "bin"], **options)
    return TFRecordReader(path, parse=False, **options)


def graph(kind: str, folder: Path, piece_bytes: int | None = 3_000, **options: Any) -> Any:
    return reader(kind, folder / f"*.{kind}").shard_pieces(piece_bytes=piece_bytes, **options)


def numbers(items: Any) -> list[int]:
    found = []
    for item in items:
        number = item["cls"] if isinstance(item, dict) else int(item.rstrip(b"\0"))
        size = len(item["bin"]) if isinstance(item, dict) else len(item) - len(str(number))
        assert size == size_of(number)
        found.append(number)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_L1_the_shards_have_each_sample_once(tmp_path: Path, kind: str) -> None:
    node = graph(kind, write(tmp_path, kind), 400)
    for shards in (1, 2, 3, 8, 40):
        for epoch in (0, 1):
            parts = [
                numbers(iterate(node, seed=3, epoch=epoch, shard=shard, num_shards=shards)) for shard in range(shards)
            ]
            assert sorted(chain(*parts)) == list(range(COUNT))
            assert all(parts)
    with pytest.raises(GraphError, match=r"\d+ pieces of 2 files cannot be divided among 128 shards"):
        next(iterate(node, shard=0, num_shards=128))


@pytest.mark.parametrize("kind", KINDS)
def test_L2_exact_resume(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, kind)
    check_node(lambda: graph(kind, folder), num_shards=2, positions=5)
    check_node(lambda: graph(kind, folder).on_error("skip").shuffle(buffer_size=5), epochs=[0], positions=4)


def loader_of(node: Any, workers: int | None) -> DataLoader2[Any]:
    service: Any = (
        InProcessReadingService(num_shards=3)
        if workers is None
        else MultiProcessingReadingService(workers, num_shards=3)
    )
    loader: DataLoader2[Any] = DataLoader2(node, reading_service=service)
    loader.seed(5)
    return loader


@pytest.mark.parametrize("kind", KINDS)
def test_L1_L3_L4_one_stream_in_workers_that_are_killed_and_a_state_moves(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, kind)
    with loader_of(graph(kind, folder), None) as alone:
        expected = [numbers(alone) for _ in range(2)]
    assert expected[0] != expected[1]
    with loader_of(graph(kind, folder), 2) as loader:
        iterator = iter(loader)
        got = numbers(islice(iterator, 13))
        os.kill(pids(loader)[0], signal.SIGKILL)
        got += numbers(islice(iterator, 10))
        state = loader.state_dict()
        assert got + numbers(iterator) == expected[0]
        assert numbers(loader) == expected[1]
    for workers in (None, 1):
        with loader_of(graph(kind, folder), workers) as again:
            again.load_state_dict(state)
            assert got + numbers(again) == expected[0]
            assert numbers(again) == expected[1]


NAMES = st.sampled_from(["a", "b", "c", "d", ".hidden", "folder/", "readme", "__meta__", "x" * 120, "ä"])


@given(
    names=st.lists(st.tuples(NAMES, st.integers(0, 3), st.integers(0, 1500)), max_size=14),
    form=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    size=st.integers(1, 5_000),
)
def test_pieces_of_any_archive_have_what_it_has(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, int, int]], form: int, size: int
) -> None:
    """Names in any order: a sample that stands in two places is the same error for pieces as for the whole."""
    files = [
        (name if name.endswith("/") else f"{name}.{number}", b"" if name.endswith("/") else bytes(length))
        for name, number, length in names
    ]
    path = write_tar(tmp_path_factory.mktemp("tar") / "a.tar", files, form)

    def read(source: Any) -> tuple[list[Any], str]:
        found: list[Any] = []
        try:
            for sample in source:
                found.append({key: value for key, value in sample.items() if key != "__url__"})
        except ValueError as error:
            return found, str(error)
        return found, ""

    pieces = list(FilePieces(path, "samples", piece_bytes=size))
    assert all(after.start == before.stop for before, after in pairwise(pieces))
    assert read(IterableWrapper(pieces).read_webdataset(decode=False)) == read(WebDatasetReader(path, decode=False))
    samples = {name for name, _, _ in names} - {".hidden", "folder/", "readme", "__meta__"}
    if size == 1 and len(samples) == len(names):
        assert len(pieces) == max(1, len(names))


@given(sizes=st.lists(st.integers(0, 90), max_size=14), size=st.integers(1, 300))
def test_pieces_of_any_records_have_each_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], size: int
) -> None:
    path = tmp_path_factory.mktemp("records") / "a.tfrecord"
    with open(path, "wb") as file:
        for length in sizes:
            write_record(file, bytes(length))
    pieces = list(FilePieces(path, "records", piece_bytes=size))
    parts = [list(map(len, IterableWrapper([piece]).read_tfrecord(parse=False))) for piece in pieces]
    assert list(chain(*parts)) == sizes
    assert all(parts) or not sizes
    if size == 1:
        assert len(pieces) == max(1, len(sizes))


def test_what_is_large_and_cannot_be_divided_is_a_whole_file_and_explain_says_so(tmp_path: Path) -> None:
    for kind in KINDS:
        folder = write(tmp_path, kind)
        large = (folder / f"a.{kind}").read_bytes()
        (folder / f"a.{kind}").write_bytes(large[: -10_240 if kind == "tar" else None])
        (folder / f"c.{kind}.gz").write_bytes(gzip.compress(large, 0))
        node = reader(kind, [folder / f"a.{kind}", folder / f"b.{kind}", folder / f"c.{kind}.gz"])
        said = DataLoader2(node.shard_pieces(piece_bytes=-(-len(large) // 2))).explain()
        assert "FilePieces  [4 pieces of 3 files (undivided: 1 compressed)]" in said
    FilePieces(folder / "a.tfrecord", "records")
    with open(tmp_path / "large.tfrecord", "wb") as file:
        for _ in range(3):
            write_record(file, bytes(16 << 20))
    said = DataLoader2(TFRecordReader(tmp_path / "large.tfrecord").shard_pieces()).explain()
    assert "[1 piece of 1 file (undivided: 1 without an index or piece_bytes=)]" in said
    assert (
        "[2 pieces of 1 file]"
        in DataLoader2(TFRecordReader(tmp_path / "large.tfrecord").shard_pieces(piece_bytes=32 << 20)).explain()
    )
    (tmp_path / "large.tfrecord").unlink()


def wds2idx(path: Path, version: str) -> bytes:
    """As DALI's tool writes it."""
    samples: dict[str, list[str]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, ending = member.name.partition(".")
            name = [member.name] if version == "v1.2" else []
            samples.setdefault(key, []).extend([ending, str(member.offset_data), str(member.size), *name])
    return "\n".join([f"{version} {len(samples)}", *map(" ".join, samples.values()), ""]).encode()


def energon(path: Path) -> bytes:
    """As Megatron-Energon writes it."""
    with tarfile.open(path) as archive:
        places = [member.offset for member in archive if member.name.endswith(".cls")]
        return struct.pack(f"<{len(places) + 1}Q", *places, archive.offset)


def tfrecord2idx(path: Path) -> bytes:
    sizes = [16 + len(record) for record in TFRecordReader(path, parse=False)]
    return "".join(f"{end - size} {size}\n" for end, size in zip(accumulate(sizes), sizes)).encode()


INDEXES: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "a.idx": ("tar", lambda path: wds2idx(path, "v1.2")),
    "a.index": ("tar", lambda path: wds2idx(path, "v1.1")),
    "a.tar.idx": ("tar", energon),
    "a.tfrecord.idx": ("tfrecord", tfrecord2idx),
    "a.tfrecord.index": ("tfrecord", tfrecord2idx),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_beside_the_file_is_used_and_checked(tmp_path: Path, name: str) -> None:
    kind, make = INDEXES[name]
    path = write(tmp_path, kind) / f"a.{kind}"
    scanned = list(FilePieces(path, "samples" if kind == "tar" else "records", piece_bytes=3_000))
    index = make(path)
    (tmp_path / name).write_bytes(index)
    node = reader(kind, path).shard_pieces(piece_bytes=3_000, shuffle=False)
    assert list(node.source.source) == scanned
    assert len(scanned) > 10
    parts = [numbers(iterate(node, shard=shard, num_shards=5)) for shard in range(5)]
    assert sorted(chain(*parts)) == list(range(50))
    other = write_tar(tmp_path / "other.tar", [(f"{number}.cls", bytes(700)) for number in range(150)])
    with open(tmp_path / "other.tfrecord", "wb") as file:
        for _ in range(40):
            write_record(file, bytes(2_000))
    wrong = [
        make(other.with_suffix(f".{kind}")),
        b"v1.2 1\nnonsense\n",
        index[: len(index) // 2 + 1],
        index[9:],
        index + b"\n5 x",
    ]
    for content in wrong:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"\.(idx|index) (does not fit .*make it anew, or remove it|is no index)"):
            reader(kind, path).shard_pieces(piece_bytes=3_000)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_reads_less_than_a_scan_and_a_scan_less_than_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "tar":
        write_tar(path, [(f"{number}.bin", bytes(40_000)) for number in range(100)])
    else:
        with open(path, "wb") as file:
            for _ in range(100):
                write_record(file, bytes(40_000))
    unit = "samples" if kind == "tar" else "records"
    scan = bytes_read_by(lambda: FilePieces(path, unit, piece_bytes=200_000))
    assert scan < 900_000  # of 4 MB
    path.with_suffix(".idx").write_bytes(wds2idx(path, "v1.2") if kind == "tar" else tfrecord2idx(path))
    assert bytes_read_by(lambda: FilePieces(path, unit, piece_bytes=200_000)) < scan / 3


@pytest.mark.parametrize("kind", KINDS)
def test_L5_at_urls_an_index_divides_and_nothing_is_scanned(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind) / f"a.{kind}"
    index = energon(path) if kind == "tar" else tfrecord2idx(path)
    with web_server() as server:
        for folder in ("plain", "indexed"):
            for name in ("a", "b"):
                server.pages[f"/{folder}/{name}.{kind}"] = Page((tmp_path / f"{name}.{kind}").read_bytes())
        server.pages[f"/indexed/a.{kind}.idx"] = Page(index)
        for number in range(30):
            server.pages[f"/many/{number}.{kind}"] = server.pages[f"/plain/b.{kind}"]
        whole = reader(kind, f"{server.address}/plain/{{a,b}}.{kind}").shard_pieces(piece_bytes=3_000)
        assert "[2 pieces of 2 files (undivided: 2 without an index)]" in DataLoader2(whole).explain()
        node = reader(kind, f"{server.address}/indexed/{{a,b}}.{kind}").shard_pieces(piece_bytes=3_000)
        assert len(node.source.source) > 10
        assert "(undivided: 1 without an index)" in DataLoader2(node).explain()
        for graph in (whole, node):
            parts = [numbers(iterate(graph, seed=1, shard=shard, num_shards=2)) for shard in range(2)]
            assert sorted(chain(*parts)) == list(range(COUNT))
        before = len(server.requests)
        reader(kind, f"{server.address}/many/{{0..29}}.{kind}").shard_pieces(piece_bytes=3_000)
        asked = [name for name, _ in server.requests[before:] if name.endswith((".idx", ".index"))]
        assert len(asked) == 4  # is there an index beside the first one?
        # An index of another archive, which only reading shows: nothing is lost in silence
        other = (
            [place + 512 if number == 20 else place for number, place in enumerate(struct.unpack("<51Q", index))]
            if (kind == "tar")
            else []
        )
        if other:
            server.pages[f"/indexed/a.{kind}.idx"] = Page(struct.pack("<51Q", *other))
            wrong = reader(kind, f"{server.address}/indexed/a.{kind}").shard_pieces(piece_bytes=1, shuffle=False)
            with pytest.raises(
                ValueError, match=r"a\.tar is not divided as its pieces were planned: sample '020' goes"
            ):
                list(wrong)
            last = len(wrong.source.source) - 1
            with pytest.raises(ValueError, match=r"not divided as its pieces.*no file begins at byte.*Make it anew"):
                for shard in range(last):
                    list(iterate(wrong, shard=last - shard, num_shards=last + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_in_a_piece_and_told_when_it_is_read(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind) / f"a.{kind}"
    content = path.read_bytes()
    header = content.index(b"020.cls") if kind == "tar" else 30_000
    for damaged in (content[: len(content) * 2 // 3], content[:header] + b"x" * 600 + content[header + 600 :]):
        path.write_bytes(damaged)
        node = reader(kind, path).shard_pieces(piece_bytes=2_000, shuffle=False)
        assert len(node.source.source) > 5
        good, errors = [], []
        try:
            for item in node:
                good += numbers([item])
        except (EOFError, ValueError) as error:
            errors.append(str(error))
        whole, expected = [], []
        try:
            for item in reader(kind, path):
                whole += numbers([item])
        except (EOFError, ValueError) as error:
            expected.append(str(error))
        assert (good, errors) == (whole, expected)
        assert len(errors) == 1
        kept = numbers(node.on_error("skip"))
        assert kept[: len(good)] == good
        assert len(set(kept)) == len(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_has_changed_since_it_was_planned_is_refused(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, kind)
    node = graph(kind, folder)
    content = (folder / f"a.{kind}").read_bytes()
    (folder / f"a.{kind}").write_bytes(content + bytes(512))
    with pytest.raises(ValueError, match=rf"a\.{kind} has changed since its pieces were planned.*build the graph anew"):
        list(node)


def keyed(folder: Path, names: list[str]) -> Path:
    return write_tar(folder / "a.tar", [(name, bytes(900)) for name in names])


@pytest.mark.parametrize("form", ["v1.1", "v1.2", "energon"])
def test_L7_a_sample_in_two_places_is_the_same_error_by_an_index_and_by_a_scan(tmp_path: Path, form: str) -> None:
    names = [f"{number:02}.cls" for number in range(20)] + ["03.bin", "30.cls", "31.cls"]
    path = keyed(tmp_path, names)
    scanned = list(FilePieces(path, "samples", piece_bytes=1_500))
    with tarfile.open(path) as archive:
        if form == "energon":
            places = [member.offset for member in archive]
            index = struct.pack(f"<{len(places) + 1}Q", *places, archive.offset)
        else:
            lines = [
                f"{member.name[3:]} {member.offset_data} {member.size} {member.name if form == 'v1.2' else ''}"
                for member in archive
            ]
            index = "\n".join([f"{form} {len(lines)}", *lines, ""]).encode()
    (tmp_path / "a.idx").write_bytes(index)
    node = WebDatasetReader(path, decode=False).shard_pieces(piece_bytes=1_500, shuffle=False)
    assert list(node.source.source) == scanned
    assert len(scanned) > 3
    got = []
    with pytest.raises(ValueError, match="sample '03' stands in the archive in two places"):
        for sample in node:
            got.append(sample["__key__"])
    assert got == [f"{number:02}" for number in range(20)]


def test_planning_samples_that_begin_with_links_reads_each_header_once(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    count = 300
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            for ending, kind in (("bin", tarfile.LNKTYPE if number else tarfile.REGTYPE), ("cls", tarfile.REGTYPE)):
                info = tarfile.TarInfo(f"{number:03}.{ending}")
                info.type, info.linkname = kind, "000.bin"
                archive.addfile(info)
    size = path.stat().st_size
    assert bytes_read_by(lambda: FilePieces(path, "samples", piece_bytes=1_024)) < 2 * size
    with tarfile.open(path) as archive:
        places = [member.offset for member in archive][::2]
        (tmp_path / "a.idx").write_bytes(struct.pack(f"<{count + 1}Q", *places, archive.offset))
    scanned = bytes_read_by(lambda: FilePieces(path, "samples", piece_bytes=1_024))
    assert scanned < 12 * size
    samples = list(WebDatasetReader(path, decode=False).shard_pieces(piece_bytes=20_000, shuffle=False))
    assert [sample["__key__"] for sample in samples] == [f"{number:03}" for number in range(count)]


def test_L7_an_index_that_comes_or_goes_is_another_plan(tmp_path: Path) -> None:
    path = write(tmp_path, "tar") / "a.tar"
    large = write_tar(path, [(f"{number:03}.bin", bytes(1 << 20)) for number in range(40)])  # over 32 MiB

    def loader() -> DataLoader2[Any]:
        node = WebDatasetReader(large, decode=False).shard_pieces().map(key_of)
        made: DataLoader2[Any] = DataLoader2(node, reading_service=InProcessReadingService(num_shards=1))
        made.seed(1)
        return made

    with loader() as first:
        next(iter(first))
        state = first.state_dict()
    index = tmp_path / "a.tar.idx"
    with tarfile.open(large) as archive:
        places = [member.offset for member in archive]
        index.write_bytes(struct.pack("<41Q", *places, archive.offset))
    with (
        loader() as second,
        pytest.raises(StateMismatchError, match="same files .* cut at other places: .*1 pieces.*2.*An index beside"),
    ):
        second.load_state_dict(state)
        list(second)
    index.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.tar\.idx does not fit .*make it anew, or remove it"):
        loader()
    index.unlink()
    with loader() as third:
        third.load_state_dict(state)
        assert len(list(third)) == 39


def key_of(sample: Any) -> str:
    return str(sample["__key__"])


def test_L7_a_server_that_is_busy_has_not_said_that_there_is_no_index(tmp_path: Path) -> None:
    path = write(tmp_path, "tar") / "a.tar"
    with web_server() as server:
        server.pages["/a.tar"] = Page(path.read_bytes())
        index = server.pages["/a.tar.idx"] = Page(energon(path), failures=[503, 503])
        assert len(FilePieces(server.address + "/a.tar", "samples", piece_bytes=3_000)) > 10
        index.failures = [503] * 9
        with pytest.raises(OSError, match=r"a\.tar\.idx"):
            FilePieces(server.address + "/a.tar", "samples", piece_bytes=3_000)
        for status in (403, 404):
            server.pages["/a.tar.idx"] = Page(status=status)
            assert len(FilePieces(server.address + "/a.tar", "samples", piece_bytes=3_000)) == 1
