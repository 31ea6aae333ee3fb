"""``inspect`` shows a state to people and runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.state.test_codec import Bomb
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import Cursor, encode, inspect


def test_a_snapshot() -> None:
    iterator = iterate(IterableWrapper(range(30)).shuffle(buffer_size=10).enumerate())
    iterator.drop(4)
    text = inspect(encode(iterator.state_dict()))
    assert "number: 4" in text
    assert "buffer: 9 items, the first " in text
    assert "draws: 4" in text
    assert "position: 13" in text


def test_a_loaders_state_with_cursors_inside() -> None:
    inner = encode({"position": 7})
    payload = encode({"shards": [Cursor(inner, 3).to_state(), Cursor().to_state()], "graph": "0 A()\n1 B() <- 0"})
    text = inspect({"version": 1, "epoch": 2, "payload": payload})
    lines = [line.strip() for line in text.splitlines()]
    assert lines[:3] == ["version: 1", "epoch: 2", f"payload: {len(payload)} bytes"]
    assert f"3 items after a snapshot of {len(inner)} bytes" in lines
    assert "position: 7" in lines
    assert "0 items after the start of the epoch" in lines
    assert lines[-2:] == ["0 A()", "1 B() <- 0"]


def test_L8_opaque_items_are_named_and_not_run(tmp_path: Path) -> None:
    text = inspect(encode({"item": Bomb(tmp_path / "fuse")}))
    assert "<opaque tests.state.test_codec.Bomb, " in text
    assert not (tmp_path / "fuse").exists()


def test_long_values_are_shortened() -> None:
    text = inspect(encode({"text": "x" * 1000, "blob": b"y" * 1000, "tensor": torch.zeros(1000), "list": [0] * 99}))
    assert max(map(len, text.splitlines())) < 90
    assert "blob: 1000 bytes" in text
    assert "list: 99 items, the first 0" in text
    assert inspect(encode(3)) == "3"


def test_what_is_no_state_is_an_error() -> None:
    with pytest.raises(StateError):
        inspect(b"hello")
    with pytest.raises(StateError):
        inspect({"payload": b"hello"})
