"""``shard_pieces`` and ``FilePieces``: every line and row once, whatever the pieces; nobody reads what others have."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from tests.laws.executors import pids
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import GraphError, StateError, StateMismatchError
from torchpipe.iter import (
    CsvReader,
    FilePieces,
    IterableWrapper,
    JsonlReader,
    PathList,
    TextLineReader,
)
from torchpipe.node.datapipe import iterate
from torchpipe.node.user_code import runs_users_code
from torchpipe.testing import check_node

CONTENTS = st.lists(st.sampled_from(["", "a", "bc", "ä€", "\r", "x" * 40]), max_size=12)


def pieces_of(path: Any, size: int) -> list[Any]:
    return list(FilePieces(path, "lines", piece_bytes=size))


def lines_by_piece(path: Any, size: int) -> list[list[str]]:
    return [list(IterableWrapper([piece]).read_lines()) for piece in pieces_of(path, size)]


@given(
    lines=CONTENTS, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), bom=st.booleans(), size=st.integers(1, 90)
)
def test_each_line_is_in_the_piece_that_it_starts_in(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, last: bool, bom: bool, size: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    content = end.join(lines) + (end if last and lines else "")
    path.write_bytes(b"\xef\xbb\xbf" * bom + content.encode())
    whole = list(TextLineReader(path))
    pieces = pieces_of(path, size)
    assert [line for piece in pieces for line in IterableWrapper([piece]).read_lines()] == whole
    if len(pieces) > 1:
        stored = path.read_bytes()
        assert [piece.stop for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
        assert (pieces[0].start, pieces[-1].stop) == (0, len(stored))
        assert all(0 < piece.stop - piece.start <= size for piece in pieces)
        starts = [0, *(place + 1 for place, byte in enumerate(stored[:-1]) if byte == 10)]
        for piece in pieces:
            inside = sum(piece.start <= start < piece.stop for start in starts)
            assert len(list(IterableWrapper([piece]).read_lines())) == inside


def test_a_border_at_a_lines_start_belongs_to_the_piece_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("0123456\n" * 4)
    assert lines_by_piece(path, 8) == [["0123456"]] * 4
    assert lines_by_piece(path, 16) == [["0123456"] * 2] * 2
    path.write_text("a" * 20 + "\nb\n")  # longer than pieces: the ones in its midst have none
    assert lines_by_piece(path, 6) == [["a" * 20], [], [], ["b"]]
    path.write_text("")
    assert lines_by_piece(path, 6) == [[]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        rows = [json.dumps({"id": 100 * number + row, "t": "x" * (row % 7)}) for row in range(20)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(rows) + "\n" * (number % 2))
    return tmp_path


IDS = [100 * number + row for number in range(3) for row in range(20)]


def ids(items: Any) -> list[int]:
    return [item["id"] for item in items]


def graph(folder: Path, piece_bytes: int = 120, **options: Any) -> Any:
    return JsonlReader(folder / "*.jsonl").shard_pieces(piece_bytes=piece_bytes, **options)


def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: graph(folder), num_shards=2)
    check_node(lambda: FilePieces(folder / "*", "lines", piece_bytes=120, shuffle=True), epochs=[0])
    check_node(lambda: graph(folder, shuffle=False).shuffle(buffer_size=5), epochs=[0], num_shards=3)


def test_the_order_of_pieces_is_another_one_in_each_epoch(folder: Path) -> None:
    first, second = (ids(iterate(graph(folder), seed=1, epoch=epoch)) for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == IDS
    assert ids(iterate(graph(folder, shuffle=False), seed=1)) == IDS
    parts = [ids(iterate(graph(folder), seed=1, shard=shard, num_shards=4)) for shard in range(4)]
    assert sorted(chain(*parts)) == IDS
    assert all(parts)


def loader_of(node: Any, workers: int | None, shards: int = 3) -> DataLoader2[Any]:
    service: Any = (
        InProcessReadingService(num_shards=shards)
        if workers is None
        else MultiProcessingReadingService(workers, num_shards=shards)
    )
    loader: DataLoader2[Any] = DataLoader2(node, reading_service=service)
    loader.seed(5)
    return loader


def test_L1_L3_L4_one_stream_in_workers_that_are_killed_and_a_state_moves(folder: Path) -> None:
    with loader_of(graph(folder), None) as alone:
        expected = [ids(alone) for _ in range(2)]
    with loader_of(graph(folder), 2) as loader:
        iterator = iter(loader)
        got = ids(islice(iterator, 13))
        os.kill(pids(loader)[0], signal.SIGKILL)
        got += ids(islice(iterator, 10))
        state = loader.state_dict()
        assert got + ids(iterator) == expected[0]
        assert ids(loader) == expected[1]
    for workers in (None, 1):
        with loader_of(graph(folder), workers) as again:
            again.load_state_dict(state)
            assert got + ids(again) == expected[0]
            assert ids(again) == expected[1]


def test_L2_L5_a_shuffle_of_large_documents_behind_pieces_is_in_a_state_by_number(tmp_path: Path) -> None:
    for number in range(3):
        rows = [json.dumps({"id": 100 * number + row, "t": "x" * 30_000}) for row in range(30)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(rows))

    def make() -> Any:
        return graph(tmp_path, 100_000).shuffle(buffer_size=40)

    assert not runs_users_code(make())  # nor are random states changed over for its items
    with loader_of(make(), None, 2) as alone:
        expected = [ids(alone) for _ in range(2)]
    for count in (0, 7, 50, 90):
        with loader_of(make(), 2, 2) as loader:
            iterator = iter(loader)
            got = ids(islice(iterator, count))
            state = loader.state_dict()
        assert len(state["payload"]) < 300_000  # of 2.7 MB
        with loader_of(make(), 1, 2) as again:
            again.load_state_dict(state)
            assert got + ids(again) == expected[0]
            assert ids(again) == expected[1]


@pytest.mark.parametrize("compression", ["gz", ""])
def test_compressed_files_and_other_formats_are_pieces_as_a_whole(tmp_path: Path, compression: str) -> None:
    for number in range(4):
        content = "".join(f'{{"id": {number * 10 + row}}}\n' for row in range(10)).encode()
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(content))
        (tmp_path / f"{number}.csv").write_text(
            "id,t\n" + "".join(f'{number * 10 + row},"a\nb"\n' for row in range(10))
        )
    node: Any
    if compression:
        node = JsonlReader(tmp_path / "*.gz").shard_pieces(piece_bytes=7)
    else:
        node = CsvReader(tmp_path / "*.csv").shard_pieces(piece_bytes=7)
    assert len(node.source) == 4
    parts = [[int(row["id"]) for row in iterate(node, shard=shard, num_shards=4)] for shard in range(4)]
    assert sorted(parts) == [list(range(number, number + 10)) for number in (0, 10, 20, 30)]
    check_node(lambda: node, epochs=[0], num_shards=4)


def test_L7_fewer_pieces_than_shards_is_an_error_before_the_first_item(folder: Path) -> None:
    for workers in (None, 2):
        with pytest.raises(GraphError, match=r"3 pieces of 3 files .* among 4 shards.* 1 would read nothing.*1048576"):
            loader_of(graph(folder, 1 << 20), workers, 4)
    # Left to the number of workers, a state may say how many there are
    with DataLoader2(graph(folder, 1 << 20), reading_service=MultiProcessingReadingService(2, num_shards=3)) as three:
        state = three.state_dict()
    with DataLoader2(graph(folder, 1 << 20), reading_service=MultiProcessingReadingService(4)) as loader:
        with pytest.raises(GraphError, match="3 pieces of 3 files cannot be divided among 4 shards"):
            next(iter(loader))
        loader.load_state_dict(state)
        assert sorted(ids(loader)) == IDS
    one = TextLineReader(folder / "0.jsonl").shard_pieces()
    assert len(list(iterate(one))) == 20  # one piece for one shard


def test_L7_too_few_pieces_are_told_with_what_would_give_more(folder: Path) -> None:
    def told(node: Any) -> str:
        with pytest.raises(GraphError) as error:
            DataLoader2(node.shard_pieces(), reading_service=InProcessReadingService(num_shards=9))
        return str(error.value)

    for number in range(2):
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
        (folder / f"{number}.csv").write_text("a\n1\n")
    assert "make them smaller (than piece_bytes=" in told(JsonlReader(folder / "*.jsonl"))
    for small in (told(JsonlReader(folder / "*.jsonl.gz")), told(CsvReader(folder / "*.csv"))):
        assert "write the data in more files" in small
        assert "piece_bytes" not in small
    assert "store the files uncompressed" in told(JsonlReader(folder / "*.jsonl.gz"))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: IterableWrapper([1]).shard_pieces(), TypeError, "IterableWrapper is none: put it right behind the"),
        (lambda: JsonlReader("0.jsonl").map(str).shard_pieces(), TypeError, "and Mapper is none"),
        (
            lambda: IterableWrapper(["0.jsonl"]).read_jsonl().shard_pieces(),
            TypeError,
            "give the reader the paths themselves",
        ),
        (lambda: JsonlReader("0.jsonl").shard_pieces().shard_pieces(), TypeError, "divided already"),
        (lambda: JsonlReader("0.jsonl").shard_pieces(piece_bytes=0), ValueError, "piece_bytes"),
        (lambda: FilePieces("0.jsonl", "words"), ValueError, "unit must be one of 'lines', .*got 'words'"),
        (lambda: FilePieces("0.jsonl", "lines", shuffle="yes"), TypeError, "shuffle must be True or False"),
        (lambda: list(FilePieces("0.jsonl", "lines", piece_bytes=9).read_csv()), TypeError, "was cut at lines"),
        (lambda: DataLoader2(JsonlReader("0.jsonl").shard_pieces().sharding_filter()), GraphError, "two sharding poi"),
    ],
)
def test_L7_what_cannot_be_divided_so_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Any, error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=message):
        make()


def state_behind(node: Any, count: int) -> Any:
    with loader_of(node, None, 1) as loader:
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        return loader.state_dict()


def load(node: Any, state: Any) -> list[int]:
    with loader_of(node, None, 1) as loader:
        loader.load_state_dict(state)
        return ids(loader)


def test_files_that_come_or_change_are_noticed(folder: Path) -> None:
    planned = graph(folder)
    state = state_behind(planned, 7)
    (folder / "3.jsonl").write_text('{"id": 1000}\n')
    assert sorted(ids(planned)) == IDS  # it is in no shard's plan
    with pytest.raises(StateMismatchError, match=r"what FilePieces found has changed.* 3 files .* now it is 4 files"):
        load(graph(folder), state)
    (folder / "3.jsonl").unlink()
    assert Counter(load(graph(folder), state)) <= Counter(IDS)
    with pytest.raises(StateMismatchError, match="piece_bytes"):
        load(graph(folder, 121), state)
    content = (folder / "1.jsonl").read_text()
    (folder / "1.jsonl").write_text(content.replace("119", "911"))
    with pytest.raises(ValueError, match=r"1\.jsonl has changed since its pieces were planned.*ends with other bytes"):
        list(planned)
    (folder / "1.jsonl").write_text(content + '{"id": 5}\n')
    with pytest.raises(ValueError, match=r"1\.jsonl has changed since its pieces were planned.*it had \d+ bytes"):
        list(planned)


def test_a_bad_record_is_left_out_and_the_rest_of_its_piece_comes(folder: Path) -> None:
    content = (folder / "1.jsonl").read_text()
    (folder / "1.jsonl").write_text(content.replace('"id": 110,', '"id": 11!,'))
    node = graph(folder).on_error("skip")
    assert sorted(ids(iterate(node, seed=2))) == [number for number in IDS if number != 110]
    check_node(lambda: graph(folder).on_error("skip"), epochs=[0], num_shards=2)
    with pytest.raises(ValueError, match="no JSON") as caught:
        list(iterate(graph(folder, shuffle=False)))
    assert any("behind byte" in note for note in caught.value.__notes__)


def test_L8_forged_places_are_refused(folder: Path) -> None:
    iterator = iterate(FilePieces(folder / "*", "lines", piece_bytes=100, shuffle=True))
    next(iterator)
    good = iterator.state_dict()
    for wrong in ({"position": 10**6}, {"key": "x"}, {"computed": True}, {"files": []}):
        with pytest.raises(StateError):
            iterate(FilePieces(folder / "*", "lines", piece_bytes=100, shuffle=True)).load_state_dict({**good, **wrong})


def test_pieces_of_urls_are_read_with_storage_options(folder: Path) -> None:
    import fsspec

    for path in folder.glob("*.jsonl"):
        with fsspec.open(f"memory://pieces/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    # Of a file in a chain nobody tells the size before it is whole
    for url, least in (("memory://pieces/*.jsonl", 10), ("simplecache::memory://pieces/{0,1,2}.jsonl", 3)):
        node = JsonlReader(url, storage_options={}).shard_pieces(piece_bytes=100)
        parts = [ids(iterate(node, shard=shard, num_shards=3)) for shard in range(3)]
        assert sorted(chain(*parts)) == IDS
        assert len(node.source.source) >= least
    assert sorted(PathList(folder / "*.jsonl")) == sorted(map(str, folder.glob("*.jsonl")))
