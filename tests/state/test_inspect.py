"""``inspect`` shows a state to people, with the positions of nodes beside their names, and runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reading_services import MultiProcessingReadingService
from tests.state.test_codec import Bomb
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import Cursor, encode, inspect


def test_a_snapshot() -> None:
    iterator = iterate(IterableWrapper(range(30)).shuffle(buffer_size=10).enumerate())
    iterator.drop(4)
    text = inspect(encode(iterator.state_dict()))
    assert "number 4" in text
    assert "buffer of 9" in text
    assert "random 4 draws" in text
    assert "position 13" in text


def test_cursors_inside() -> None:
    inner = encode({"position": 7})
    text = inspect(encode({"version": 1, "shards": [Cursor(inner, 3).to_state(), Cursor().to_state()], "odd": False}))
    lines = [line.strip() for line in text.splitlines()]
    assert lines == [
        "version 1, odd false",
        "shards:",
        f"3 items after a snapshot of {len(inner)} bytes",
        "position 7",
        "0 items after the start of the epoch",
    ]


def test_L8_opaque_items_are_named_and_not_run(tmp_path: Path) -> None:
    text = inspect(encode({"item": Bomb(tmp_path / "fuse")}))
    assert "<opaque tests.state.test_codec.Bomb, " in text
    assert not (tmp_path / "fuse").exists()


def test_long_values_are_shortened() -> None:
    text = inspect(encode({"text": "x" * 1000, "blob": b"y" * 1000, "tensor": torch.zeros(1000), "list": [0] * 99}))
    assert max(map(len, text.splitlines())) <= 110
    assert "blob of 1,000 bytes" in text
    assert "list of 99" in text
    assert inspect(encode(3)) == "3"


def test_what_is_no_state_is_an_error() -> None:
    with pytest.raises(StateError):
        inspect(b"hello")
    with pytest.raises(StateError):
        inspect({"payload": b"hello"})


def state_after(items: int, graph: Any, **options: Any) -> dict[str, Any]:
    with DataLoader2(graph, **options) as loader:
        loader.seed(1)
        stream = iter(loader)
        for _ in range(items):
            next(stream)
        return loader.state_dict(exact=True)


def source(first: int) -> Any:
    items = IterableWrapper([{"id": number, "text": "word " * 50} for number in range(first, first + 2000)])
    return items.shuffle(buffer_size=500).sharding_filter()


def test_a_mix_of_three_under_workers_is_one_screen() -> None:
    graph = source(0).mix(source(10_000), source(20_000), weights=[5, 3, 2], stop="restart").batch(4)
    state = state_after(40, graph, reading_service=MultiProcessingReadingService(num_workers=2, num_shards=16))
    text = inspect(state)
    assert len(text.splitlines()) < 25
    assert max(map(len, text.splitlines())) <= 110
    assert "epoch 0, 40 items delivered, seed 1" in text
    assert "each shard gave 2 to 3 items; a resume makes 0 of them again" in text
    mixer = next(line for line in text.splitlines() if "Mixer" in line)
    assert "items 8 to 12" in mixer


def test_a_node_has_its_own_position_wherever_nodes_without_a_line_stand() -> None:
    graph = IterableWrapper(range(100)).on_error("skip").shuffle(buffer_size=10).prefetch(3).retry(2)
    graph = graph.enumerate().zip(IterableWrapper(range(500)).skip(100).batch(2)).prefetch(2)
    text = inspect(state_after(7, graph))
    found = {line.split()[1]: line for line in text.splitlines() if line.startswith("  ")}
    assert "number 7" in found["Enumerator"]
    assert "buffer of 9" in found["Shuffler"]
    assert [line.split("position ")[1] for line in text.splitlines() if "IterableWrapper" in line] == ["16", "114"]


def test_a_dataloaders_state() -> None:
    loader: DataLoader[Any] = DataLoader(range(100), batch_size=4, shuffle=True)  # type: ignore[arg-type]
    stream = iter(loader)
    next(stream), next(stream)
    text = inspect(loader.state_dict())
    assert "epoch 0, 2 batches delivered" in text
    assert "map-style dataset of 100, sampler RandomSampler, batch_size 4" in text
    assert "at the start" not in text
    iterable: DataLoader[Any] = DataLoader(IterableWrapper(range(40)), batch_size=4)
    stream = iter(iterable)
    next(stream)
    text = inspect(iterable.state_dict())
    assert "each shard gave 1 items" in text
    assert "iterable dataset, batch_size 4; " in text
    assert "Sampler" not in text
    assert "workers false" in text


def test_a_state_before_the_first_item_and_a_part_of_a_state() -> None:
    assert "at the start of the epoch" in inspect(DataLoader2(IterableWrapper(range(3))).state_dict())
    assert inspect(encode({"position": 3})) == "position 3"


def test_L8_forged_states_are_shown_or_refused(tmp_path: Path) -> None:
    bomb = encode({"iterator": {"buffer": [Bomb(tmp_path / "fuse")], "inputs": []}})
    rotation = {"live": [0], "turn": 0, "counts": [3], "shards": [Cursor(bomb, 3).to_state()]}
    state = {"version": 2, "payload": encode({"graph": "0 A()", "position": rotation})}
    text = inspect(state)
    assert "opaque items, which load with allow_pickle=True alone: tests.state.test_codec.Bomb" in text
    assert "0 A  buffer of 1" in text
    assert not (tmp_path / "fuse").exists()
    deep: Any = {"inputs": []}
    for _ in range(120):
        deep = {"inputs": [deep], "big": 1 << 4000}
    inner = encode({"iterator": deep})
    rotation["shards"] = [Cursor(inner, 3).to_state()] * 2
    for graph in ("0 A()", "\n".join(f"{number} A() <- {number - 1}" for number in range(1, 400)), "x\n\n<- 9", ""):
        payload = encode({"graph": graph, "position": rotation})
        assert len(inspect({"epoch": "\33[2J" * 9, "payload": payload}).splitlines()) <= 400
    for odd in (None, [], {"inputs": 3}, {"inputs": [3]}, {"live": 0, "turn": 0, "counts": 0, "shards": 0}):
        inspect({"payload": encode({"graph": "0 A()", "position": odd})})
    with pytest.raises(StateError):
        inspect({"payload": b"hello"})
    assert "\33" not in inspect({"epoch": "\33[2J", "payload": encode({"graph": ""})})


def test_tensors_in_a_state_are_counted() -> None:
    position = {"inputs": [], "held": torch.zeros(5)}
    rotation = {"live": [0], "turn": 0, "counts": [3], "shards": [Cursor(encode({"iterator": position})).to_state()]}
    assert "held" in inspect({"payload": encode({"graph": "0 A()", "position": rotation})})
