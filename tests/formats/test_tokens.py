"""Files of tokens: headers, short files, windows over an index that leaves tokens out, tokens that are too large."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from torchpipe.map import TokenFile


def test_a_header_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(np.arange(256, dtype=np.int32).tobytes() + np.arange(100, dtype=np.uint16).tobytes())
    tokens = TokenFile(path, length=10, dtype="uint16", offset=1024)
    assert [tokens[n].tolist() for n in (0, 9)] == [list(range(10)), list(range(90, 100))]
    assert len(tokens) == 10
    with pytest.raises(ValueError, match="has 1224 bytes, and its tokens are to begin at offset=9999"):
        TokenFile(path, length=10, dtype="uint16", offset=9999)
    np.save(tmp_path / "b.npy", np.arange(100))
    with pytest.raises(ValueError, match="says itself where its tokens begin: leave offset=8 out"):
        TokenFile(tmp_path / "b.npy", length=10, offset=8)


def test_files_that_are_shorter_than_a_window_are_told(tmp_path: Path) -> None:
    for number, size in enumerate((100, 300)):
        np.save(tmp_path / f"{number}.npy", np.arange(size, dtype=np.uint16))
    with pytest.raises(ValueError, match="1 of 1 files have fewer than length=129 tokens and give no item"):
        TokenFile(tmp_path / "0.npy", length=129)
    with pytest.warns(UserWarning, match="1 of 2 files have fewer than length=129 tokens"):
        assert len(TokenFile(tmp_path / "*.npy", length=129)) == 2


def test_windows_are_made_of_the_sequences_of_the_index_alone(tmp_path: Path) -> None:
    np.arange(40, dtype=np.uint16).tofile(tmp_path / "a.bin")
    lengths, begins = (4, 6, 3), (20, 0, 33)  # in another order than in the file, and not all of it
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, 3, 1)
    index = (
        header + struct.pack("<3i", *lengths) + struct.pack("<3q", *(2 * at for at in begins)) + struct.pack("<q", 0)
    )
    (tmp_path / "a.idx").write_bytes(index)
    whole = [token for at, size in zip(begins, lengths) for token in range(at, at + size)]
    assert [token for sequence in TokenFile(tmp_path / "a.bin") for token in sequence.tolist()] == whole
    for length in range(1, 14):
        for step in (1, 2, length):
            windows = TokenFile(tmp_path / "a.bin", length, step=step)
            expected = [whole[at : at + length] for at in range(0, len(whole) - length + 1, step)]
            assert [windows[n].tolist() for n in range(len(windows))] == expected


def test_a_token_that_the_tensor_cannot_hold_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2, 1 << 63, 4], dtype=np.uint64))
    tokens = TokenFile(tmp_path / "a.npy", length=2)
    assert tokens[0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="item 1 has tokens from 4 to 9223372036854775808, which torch.int64 cannot"):
        tokens[1]
    np.save(tmp_path / "b.npy", np.array([1, 40_000], dtype=np.uint16))
    with pytest.raises(ValueError, match="which torch.int16 cannot hold"):
        TokenFile(tmp_path / "b.npy", length=2, tensor_dtype=torch.int16)[0]
