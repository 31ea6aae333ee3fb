"""Token files that ``write_shards`` has written are read as others are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.map.test_token_file import check_windows
from torchpipe import write_shards
from torchpipe.iter import IterableWrapper


def written(path: Path, sequences: list[list[int]]) -> Path:
    write_shards(IterableWrapper(sequences), path.parent / "{:05d}.bin", dtype="uint16")
    return path.parent / "00000.bin"


@pytest.mark.parametrize("length", [1, 3, 4, 50])
def test_windows_say_what_pack_says_of_the_same_documents(tmp_path: Path, length: int) -> None:
    check_windows(tmp_path, written, length)
