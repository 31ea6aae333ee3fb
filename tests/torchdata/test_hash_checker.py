"""``check_hash``."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name in "abc":
        (tmp_path / name).write_text(name * 99)
    return [str(tmp_path / name) for name in "abc"]


def hashes(paths: list[str], kind: str = "sha256") -> dict[str, str]:
    return {path: hashlib.new(kind, Path(path).read_bytes()).hexdigest() for path in paths}


def test_L2_exact_resume(paths: list[str]) -> None:
    check_node(lambda: CountingSource(paths).open_files("b").check_hash(hashes(paths)))


def test_content_is_handed_on(paths: list[str]) -> None:
    pairs = IterableWrapper(paths).open_files("b")
    assert [stream.read()[:2] for _, stream in pairs.check_hash(hashes(paths, "md5"), "md5")] == [b"aa", b"bb", b"cc"]
    assert [stream.read() for _, stream in pairs.check_hash(hashes(paths), rewind=False)] == [b"", b"", b""]
    assert len(pairs.check_hash(hashes(paths))) == 3
    texts = [("a", "aä"), ("b", b"b"), ("c", io.BytesIO(b"c"))]
    known = {name: hashlib.sha256(data).hexdigest().upper() for name, data in zip("abc", ["aä".encode(), b"b", b"c"])}
    found = list(IterableWrapper(texts, deepcopy=False).check_hash(known))
    assert found[:2] == texts[:2]
    assert found[2][1].read() == b"c"  # type: ignore[union-attr]


def test_L7_what_does_not_match_is_an_error(paths: list[str]) -> None:
    pairs = IterableWrapper(paths).open_files("b")
    with pytest.raises(RuntimeError, match="Unspecified hash for file"):
        list(pairs.check_hash({}))
    with pytest.raises(RuntimeError, match="does not match"):
        list(pairs.check_hash({**hashes(paths), paths[1]: "0"}))


def test_wrong_items_are_errors() -> None:
    class Pipe(io.RawIOBase):
        def readable(self) -> bool:
            return True

    cases: list[Any] = [
        ("a", TypeError, "needs pairs"),
        (("a", 3), TypeError, "open stream, bytes or text"),
        (("a", Pipe()), ValueError, "rewind=False"),
    ]
    for item, error, message in cases:
        with pytest.raises(error, match=message):
            list(IterableWrapper([item], deepcopy=False).check_hash({"a": "0"}))
