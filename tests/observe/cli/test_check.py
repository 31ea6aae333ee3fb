"""``torchpipe check`` on data with planted faults of each kind: each is told with its place, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchpipe import write_shards
from torchpipe.iter import IterableWrapper
from torchpipe.observe.cli.main import main


def as_sample(row: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": f"{row['id']:03d}", "txt": row["text"], "cls": row["id"]}


def tokens(row: dict[str, Any]) -> list[int]:
    return [1] * len(row["text"])


def write(folder: Path, kind: str, name: str = "a", first: int = 0) -> None:
    rows = IterableWrapper([{"id": first + n, "text": "x" * (first + n)} for n in range(10)])
    graph = rows.map(as_sample) if kind == "tar" else rows.map(tokens) if kind == "bin" else rows
    dtype = "uint16" if kind == "bin" else None
    write_shards(graph, folder / f"{name}-{{}}.{kind}", max_samples=5, dtype=dtype)


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def check(*arguments: str, workers: int = 0) -> tuple[int, Any]:
        code = main(["check", "--json", "--workers", str(workers), *arguments])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return check


def test_csv_is_read_by_rows(tmp_path: Path, checked: Any) -> None:
    Path("a.csv").write_text("name,text\nx,1\ny,22\n")
    Path("b.tsv").write_text("name\ttext\nz,1\t1\nz\n")
    code, found = checked("a.csv", "b.tsv")
    assert (code, found["records"], len(found["problems"])) == (1, 3, 1)
    assert "b.tsv" in found["problems"][0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["tar", "parquet", "jsonl", "jsonl.zst", "bin"])
def test_good_data(kind: str, workers: int, tmp_path: Path, checked: Any) -> None:
    write(tmp_path, kind)
    code, found = checked(f"a-*.{kind}", workers=workers)
    name = {"tar": "txt", "bin": "tokens"}.get(kind, "text")
    assert (code, found["problems"], found["files"], found["records"]) == (0, [], 2, 10)
    assert found["lengths"][name] == {"least": 0, "mean": 4.5, "most": 9}
    assert found["bytes"] == sum(path.stat().st_size for path in tmp_path.glob(f"a-[01].{kind}"))
    assert (found["bytes of a row group"] is not None) == (kind == "parquet")


def test_bad_records_are_told_with_their_places_and_the_others_read(tmp_path: Path, checked: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id":\n{"id": 2}\n{"x": 3}\n')
    code, found = checked("a.jsonl", "--key", "id")
    first, second = found["problems"]
    assert (code, found["records"]) == (1, 2)
    assert first.startswith("a.jsonl, line 2 (byte 10): ValueError: no JSON")
    assert second == "a.jsonl, line 4 (byte 27): ValueError: it has no field 'id', only x"


def test_many_bad_records_are_counted(tmp_path: Path, checked: Any) -> None:
    (tmp_path / "a.jsonl").write_text("{\n" * 50 + "1\n")
    _, found = checked("a.jsonl")
    assert found["records"] == 1
    assert len(found["problems"]) == 21
    assert found["problems"][-1] == "a.jsonl: 30 more bad records"


@pytest.mark.parametrize("kind", ["tar", "parquet", "jsonl.zst", "bin"])
def test_files_that_are_cut_off(kind: str, tmp_path: Path, checked: Any) -> None:
    write(tmp_path, kind)
    path = tmp_path / f"a-0.{kind}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3 - 1])
    code, found = checked(f"a-*.{kind}")
    assert code == 1
    assert all(problem.startswith(f"a-0.{kind}") for problem in found["problems"])
    assert found["problems"][-1].endswith("what is behind that could not be read")
    assert 5 <= found["records"] < 10


def test_runs_of_tokens_that_readers_cut(tmp_path: Path, checked: Any) -> None:
    tokens = np.arange(100, dtype=np.uint16)
    np.save(tmp_path / "flat.npy", tokens)
    tokens.tofile(tmp_path / "flat.bin")
    code, found = checked("flat.*")
    assert (code, found["problems"], found["lengths"]["tokens"]["most"]) == (0, [], 100)
    (tmp_path / "flat.npy").write_bytes((tmp_path / "flat.npy").read_bytes()[:-1])
    (tmp_path / "flat.bin").write_bytes(b"")
    code, found = checked("flat.*")
    assert code == 1
    empty, cut_off, lost = found["problems"]
    assert empty.startswith("flat.bin, the file: ValueError: it has no records")
    assert cut_off.startswith("flat.npy, the file: ValueError: flat.npy is no .npy file of numbers, or a damaged one")
    assert lost == "flat.npy: what is behind that could not be read"


def test_equal_keys(tmp_path: Path, checked: Any) -> None:
    write(tmp_path, "tar")
    write(tmp_path, "tar", "b", first=8)
    code, found = checked("*.tar", workers=2)
    assert code == 1
    assert found["problems"] == [
        "record 0 of b-0.tar has the key of record 3 of a-1.tar",
        "record 1 of b-0.tar has the key of record 4 of a-1.tar",
    ]
    pq.write_table(pa.table({"id": [1, 2, 1] * 20}), tmp_path / "c.parquet")
    _, found = checked("c.parquet", "--key", "id")
    assert found["problems"][0] == "record 2 of c.parquet has the key of record 0 of c.parquet"
    assert found["problems"][-1] == "38 more records have the key of another one"
    assert checked("c.parquet")[0] == 0


def test_files_that_are_empty_or_not_there(tmp_path: Path, checked: Any) -> None:
    (tmp_path / "a.jsonl").write_text("")
    assert checked("a.jsonl")[1]["problems"] == ["a.jsonl, the file: ValueError: it has no records"]
    for pattern in ("none-*.jsonl", "none.jsonl"):
        assert checked(pattern) == (2, None)
    (tmp_path / "a.xyz").write_text("")
    assert checked("a.xyz") == (2, None)


def test_text_for_people(tmp_path: Path, checked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "parquet")
    assert main(["check", "a-*.parquet", "--workers", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 files of ")
    assert lines[0].endswith("10 records")
    assert lines[2].startswith("bytes of a row group: least ")
    assert lines[3:] == ["length of text: least 0, mean 4.5, most 9", "ok"]


@pytest.mark.parametrize("kind", ["tar", "bin"])
def test_shards_are_compared_with_their_manifest(kind: str, tmp_path: Path, checked: Any) -> None:
    write(tmp_path, kind)
    assert checked(f"a-*.{kind}")[1]["problems"] == []
    changed = tmp_path / ("a-0.tar" if kind == "tar" else "a-0.idx")
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1  # of what fills the archive up, and of the index's last document
    changed.write_bytes(data)
    (tmp_path / f"a-1.{kind}").unlink()
    manifest = tmp_path / f"a-manifest.{kind}.ndjson"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:-1]))
    code, found = checked(f"a-*.{kind}")
    missing, unfinished, other = found["problems"][:3]
    assert code == 1
    assert missing == f"{tmp_path / f'a-1.{kind}'} is missing: {manifest} lists it"
    assert unfinished.endswith("has not finished: call write_shards again")
    assert other.startswith(f"a-0.{kind}, {'the file' if kind == 'tar' else 'a-0.idx'}: ValueError: it has changed")
    manifest.write_bytes(b"".join([lines[0], b"{}\n"]))
    assert "is damaged in line 2" in checked(f"a-0.{kind}")[1]["problems"][0]


def test_a_file_beside_the_shards_that_is_none_of_them(tmp_path: Path, checked: Any) -> None:
    """A copy, say: a pattern finds it, so its samples would be read twice."""
    write(tmp_path, "jsonl")
    (tmp_path / "a-2.jsonl").write_bytes((tmp_path / "a-0.jsonl").read_bytes())
    (tmp_path / "a-x.jsonl").write_text("1\n")
    (tmp_path / "of-somebody-manifest.ndjson").write_text('{"samples": 3, "files": []}\n')
    code, found = checked("a-*.jsonl")
    assert code == 1
    assert [problem.split(" is named as the shards")[0] for problem in found["problems"]] == [
        str(tmp_path / "a-2.jsonl")
    ]


def test_a_bar_on_a_terminal_alone(
    tmp_path: Path, checked: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "jsonl")
    assert checked("a-*.jsonl")[0] == 0
    assert main(["check", "a-*.jsonl", "--workers", "0"]) == 0
    assert "%" not in "".join(capsys.readouterr())
    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    monkeypatch.setenv("TERM", "xterm")
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert main(["check", "a-*.jsonl", "--workers", "0"]) == 0
        terminal.flush()
        shown = b""
        while b"100 %, 2 of 2 files" not in shown:  # a terminal gives what it has, line for line
            shown += os.read(ours, 1 << 16)
    os.close(ours)
