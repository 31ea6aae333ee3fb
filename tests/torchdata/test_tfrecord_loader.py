"""``load_from_tfrecord``: what torchdata's tests expect of it, and exact within a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.formats.test_tfrecord import EXAMPLE, WRITTEN
from tests.torchdata.test_line_reader import Pipe
from torchpipe.formats.tfrecord import write_record
from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def field(number: int, content: bytes) -> bytes:
    """A field of bytes of a protocol buffer."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def features(values: dict[str, list[int]]) -> bytes:
    entries = [field(1, key.encode()) + field(2, field(3, field(1, bytes(row)))) for key, row in values.items()]
    return b"".join(field(1, entry) for entry in entries)


def sequence(rows: list[list[int]]) -> bytes:
    """A SequenceExample of one feature list, and a number in its context."""
    parts = b"".join(field(1, field(3, field(1, bytes(row)))) for row in rows)
    return field(1, features({"n": [len(rows)]})) + field(2, field(1, field(1, b"rows") + field(2, parts)))


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name, count in {"a": 3, "b": 0, "c": 2}.items():
        with open(tmp_path / name, "wb") as file:
            for number in range(count):
                write_record(file, sequence([[number, 7]] * (number + 1)))
    return [str(tmp_path / name) for name in "abc"]


def plain(example: Any) -> Any:
    return {key: value.tolist() if hasattr(value, "tolist") else [part.tolist() for part in value]
            for key, value in example.items()}  # fmt: skip


def test_examples(paths: list[str], tmp_path: Path) -> None:
    examples = [plain(item) for item in IterableWrapper(paths).open_files("b").load_from_tfrecord()]
    assert examples[1] == {"n": [2], "rows": [[1, 7], [1, 7]]}
    assert len(examples) == 5
    spec: Any = {"rows": ((-1, 2), torch.int32), "n": ((), None)}
    shaped = list(IterableWrapper(paths).open_files("b").load_from_tfrecord(spec, length=5))[2]
    assert (shaped["rows"].tolist(), shaped["rows"].dtype) == ([[2, 7]] * 3, torch.int32)
    assert int(shaped["n"]) == 3
    (tmp_path / "real").write_bytes(WRITTEN)
    first, *_ = IterableWrapper([str(tmp_path / "real")]).open_files("b").load_from_tfrecord()
    assert first["label"].tolist() == EXAMPLE["label"].tolist()
    assert len(IterableWrapper(paths).open_files("b").load_from_tfrecord(length=5)) == 5


def test_L2_exact_resume(paths: list[str]) -> None:
    check_node(lambda: CountingSource(paths).open_files("b").load_from_tfrecord().map(plain), pulls=lambda k: 3)
    contents = [(path, Path(path).read_bytes()) for path in paths]
    check_node(
        lambda: CountingSource(contents).map(lambda pair: (pair[0], Pipe(pair[1]))).load_from_tfrecord().map(plain),
        pulls=lambda k: 3,
        epochs=[0],
    )


def test_L7_damage_is_an_error_with_the_path(paths: list[str]) -> None:
    whole = Path(paths[0]).read_bytes()
    flipped = whole[:20] + b"x" + whole[21:]
    for content, error in ((whole[:-3], EOFError), (flipped, ValueError), (b"text" * 9, ValueError)):
        node = IterableWrapper([("x", io.BytesIO(content))], deepcopy=False).load_from_tfrecord()
        with pytest.raises(error) as caught:
            list(node)
        assert caught.value.__notes__[0].startswith("TFRecordLoader(parse_example): while reading x, record ")


def test_what_does_not_fit_the_spec_and_wrong_items_are_errors(paths: list[str]) -> None:
    pairs = IterableWrapper(paths).open_files("b")
    with pytest.raises(ValueError, match="has 2 values, where the shape"):
        list(pairs.load_from_tfrecord({"rows": ((-1, 4), None)}))
    with pytest.raises(TypeError, match="pass length="):
        len(pairs.load_from_tfrecord())
    with pytest.raises(TypeError, match="load_from_tfrecord needs"):
        list(IterableWrapper(["a"]).load_from_tfrecord())  # type: ignore[misc]
