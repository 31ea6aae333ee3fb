"""``shard_pieces(plan_file=)``: a plan is made once, for all ranks and for runs that resume."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any

import fsspec.asyn
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reads import bytes_read_by
from tests.servers import Page, web_server
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import FilePieces, JsonlReader, ParquetReader
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode

# Its descriptors stay, and a thread that looks up names: no test is to be the one that begins them
fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.to_thread, int)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(4):
        write(tmp_path, number)
    return tmp_path


def write(folder: Path, number: int) -> None:
    ids = range(10 * number, 10 * number + 10)
    (folder / f"data/{number}.jsonl").write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
    pq.write_table(pa.table({"id": ids}), folder / f"data/{number}.parquet", row_group_size=3)
    with tarfile.open(folder / f"data/{number}.tar", "w") as archive:
        for each in ids:
            info = tarfile.TarInfo(f"{each}.bin")
            info.size = 700
            archive.addfile(info, BytesIO(bytes(700)))


UNITS = {"jsonl": "lines", "parquet": "row groups", "tar": "samples"}


@pytest.mark.parametrize("kind", UNITS)
def test_a_plan_is_made_once_and_is_the_same_again(folder: Path, kind: str) -> None:
    def make() -> FilePieces:
        return FilePieces(folder / f"data/*.{kind}", UNITS[kind], piece_bytes=90, plan_file=folder / "plan")

    first = make()
    again = make()
    bare = FilePieces(folder / f"data/*.{kind}", UNITS[kind], piece_bytes=90)
    assert list(first) == list(again) == list(bare)
    assert len(bare) > 4
    assert (again.listed, again.explained()) == (first.listed, first.explained())
    assert [again.plan.rows_of(number) is None for number in range(3)] == [kind != "parquet"] * 3
    if kind == "parquet":
        assert [again.plan.rows_of(number).tolist() for number in range(len(bare))] == [  # type: ignore[union-attr]
            bare.plan.rows_of(number).tolist()  # type: ignore[union-attr]
            for number in range(len(bare))
        ]
    assert bytes_read_by(make) < 3_000
    assert sorted(path.name for path in folder.iterdir()) == ["data", "plan"]


def ids(items: Any) -> list[int]:
    return [item["id"] for item in items]


def test_L3_a_run_resumes_under_its_plan_though_a_file_has_come(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def loader() -> DataLoader2[Any]:
        node = JsonlReader(folder / "data/*.jsonl").shard_pieces(piece_bytes=50, plan_file=folder / "plan")
        made: DataLoader2[Any] = DataLoader2(node, reading_service=InProcessReadingService(num_shards=3))
        made.seed(2)
        return made

    with loader() as first:
        expected = [ids(first) for _ in range(2)]
    with loader() as first:
        got = ids(islice(iter(first), 11))
        state = first.state_dict()
    write(folder, 9)
    with caplog.at_level(logging.WARNING), loader() as second:
        second.load_state_dict(state)
        assert got + ids(second) == expected[0]
        assert ids(second) == expected[1]
    assert "1 files that are not in the plan" in caplog.text
    (folder / "plan").unlink()
    with loader() as third:
        assert sorted(ids(third)) == [*range(40), *range(90, 100)]


def test_L1_who_comes_at_the_same_time_has_the_same_plan_and_looks_up_nothing(folder: Path) -> None:
    with web_server() as server:
        for number in range(4):
            server.pages[f"/{number}"] = Page((folder / f"data/{number}.parquet").read_bytes())

        def make(rank: int) -> Any:
            reader = ParquetReader(server.address + "/{0..3}")
            return reader.shard_pieces(piece_bytes=1, plan_file=folder / "plan", shuffle=False)

        make(0)
        alone = len(server.requests)
        (folder / "plan").unlink()
        with ThreadPoolExecutor(6) as ranks:
            nodes = list(ranks.map(make, range(6)))
        assert len(server.requests) == 2 * alone
        parts = [ids(iterate(node, shard=rank, num_shards=6)) for rank, node in enumerate(nodes)]
        assert sorted(chain(*parts)) == list(range(40))


def test_L7_another_plan_is_refused(folder: Path) -> None:
    plan = folder / "plan"

    def make(**options: Any) -> FilePieces:
        options = {"unit": "lines", "piece_bytes": 90, "plan_file": plan} | options
        return FilePieces(folder / "data/*.jsonl", **options)

    make()
    good = plan.read_bytes()
    with pytest.raises(ValueError, match=r"the plan of other pieces: of piece_bytes=90, here it is 91\. Remove"):
        make(piece_bytes=91)
    with pytest.raises(ValueError, match="of unit='lines', here it is 'files'"):
        make(unit="files")
    data = decode(good)
    for wrong in (
        b"",
        good[:-5],
        encode({}),
        encode([1]),
        encode({**data, "plan of pieces": 9}),
        encode({**data, "paths": ["a"]}),
        encode({**data, "spans": 3}),
        encode({**data, "spans": data["spans"] + 1}),
        encode({**data, "sizes": data["sizes"][::-1], "paths": data["paths"][:-1] + ["b"]}),
    ):
        plan.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"plan is no plan of pieces, or a damaged one: .*Remove it"):
            make()
    plan.write_bytes(good)
    (folder / "data/1.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"1\.jsonl has changed since .*remove the plan_file .*/plan, build the graph"):
        list(make().read_jsonl())
    (folder / "data/1.jsonl").unlink()
    with pytest.raises(ValueError, match=r"the plan of 4 files, of which 1 are not among those.*1\.jsonl"):
        make()
    for wrong_file, error in ((3, TypeError), (b"plan", TypeError), ("s3://bucket/plan", ValueError)):
        with pytest.raises(error, match="plan_file must be"):
            make(plan_file=wrong_file)


def test_L3_a_run_that_has_moved_goes_on_under_its_plan(folder: Path) -> None:
    def loader(data: str) -> DataLoader2[Any]:
        node = JsonlReader(folder / data / "*.jsonl").shard_pieces(piece_bytes=50, plan_file=folder / "plan")
        made: DataLoader2[Any] = DataLoader2(node, reading_service=InProcessReadingService(num_shards=2))
        made.seed(4)
        return made

    with loader("data") as first:
        expected = ids(first)
    with loader("data") as first:
        got = ids(islice(iter(first), 7))
        state = first.state_dict()
    (folder / "data").rename(folder / "elsewhere")
    write_ids(folder / "elsewhere/9.jsonl", range(3))
    with loader("elsewhere") as second:
        second.load_state_dict(state)
        assert got + ids(second) == expected
    write_ids(folder / "elsewhere/2.jsonl", range(2))
    with pytest.raises(ValueError, match=r"plan of other files of these names: .*2\.jsonl has \d+ bytes, and had"):
        loader("elsewhere")


def write_ids(path: Path, ids: Any) -> None:
    path.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))


def test_L7_a_plan_is_that_of_its_files_in_order_and_with_repetitions(folder: Path) -> None:
    a, b = folder / "data/0.jsonl", folder / "data/1.jsonl"

    def read(*paths: Path) -> list[int]:
        return ids(JsonlReader([*paths]).shard_pieces(shuffle=False, plan_file=folder / "plan"))

    assert read(a, a, b) == read(a, a, b) == [*range(10), *range(10), *range(10, 20)]
    for other in ((a, b), (a, b, a), (a, a, b, b)):
        with pytest.raises(ValueError, match=r"the same files in another order, or each another number of times"):
            read(*other)


def test_a_plan_in_the_folder_that_is_read_is_none_of_its_files(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (folder / "data").glob("*[rt]"):
        path.unlink()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            node = JsonlReader(folder / "data/*").shard_pieces(plan_file=folder / "data/plan")
            assert sorted(ids(node)) == [*range(40)]
        for path in (folder / "data").glob("*"):
            path.with_name(f"plan.{path.name}").write_bytes(path.read_bytes())
    assert not caplog.text


def test_a_file_system_without_hard_links_holds_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    monkeypatch.setattr(os, "link", refused)
    for _ in range(2):
        node = JsonlReader(str(tmp_path / "a.jsonl")).shard_pieces(plan_file=str(tmp_path / "plan"))
        assert list(node) == [{"n": 1}]
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "plan"]
