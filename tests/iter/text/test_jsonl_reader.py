"""``read_jsonl``: a value a line; broken ones are named by file, line and byte, and passed over by other shards
unparsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper, JsonlReader
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node

VALUES = [{"id": 1, "text": "ä"}, None, [1, 2], "four", 5.5, {}, 7]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    lines = [json.dumps(value, ensure_ascii=False) for value in VALUES]
    (tmp_path / "0.jsonl").write_text("\n" + "\n".join(lines[:4]) + "\n \n\n")
    (tmp_path / "1.jsonl").write_text("\n \n")
    (tmp_path / "2.jsonl").write_text("\ufeff" + "\n".join(lines[4:]))
    return [str(tmp_path / f"{number}.jsonl") for number in range(3)]


def test_blank_lines_count_as_none(paths: list[str]) -> None:
    assert list(JsonlReader(paths)) == VALUES
    assert list(IterableWrapper(paths).read_jsonl()) == VALUES


def test_L2_exact_resume(paths: list[str]) -> None:
    check_node(lambda: JsonlReader(paths))
    check_node(lambda: IterableWrapper(paths).read_jsonl().sharding_filter(), epochs=[0], num_shards=3)


def test_L7_a_line_that_is_no_json_names_file_line_and_byte(paths: list[str]) -> None:
    Path(paths[1]).write_text('{"a": 1}\n{"a": 2\n{"a": 3}\n')
    iterator = iter(JsonlReader(paths))
    assert [next(iterator) for _ in range(5)] == VALUES[:4] + [{"a": 1}]
    with pytest.raises(
        ValueError, match=r"no JSON: Expecting ',' delimiter at column 8 of '\{\"a\": 2'\. A file"
    ) as caught:
        next(iterator)
    assert caught.value.__notes__ == [f"JsonlReader: while reading {paths[1]}, line 2 (byte 9)"]


def test_a_bad_line_of_another_shard_harms_nobody(paths: list[str]) -> None:
    Path(paths[1]).write_text('{"a": 1}\n{"a": 2\n{"a": 3}\n')
    node = JsonlReader(paths).sharding_filter()
    assert list(iterate(node, shard=0, num_shards=2)) == [VALUES[0], VALUES[2], {"a": 1}, {"a": 3}, VALUES[5]]


def test_L2_the_state_after_an_error_stands_before_the_bad_line(paths: list[str]) -> None:
    Path(paths[1]).write_text('{"a": 1}\n{"a": 2]\n{"a": 3}\n')
    loader: DataLoader2[Any] = DataLoader2(JsonlReader(paths))
    got = []
    with pytest.raises(ValueError, match="no JSON"):
        for value in loader:
            got.append(value)
    Path(paths[1]).write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')  # repaired
    loader.load_state_dict(loader.state_dict())
    assert got + list(loader) == [*VALUES[:4], {"a": 1}, {"a": 2}, {"a": 3}, *VALUES[4:]]
    loader.shutdown()
