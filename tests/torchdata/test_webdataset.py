"""``webdataset``: what belongs together, open streams in the state."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import GraphError, StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node

NAMES = [
    "a/.hidden",
    "__meta__.json",
    "a/1.JPG",
    "a/1.cls",
    "a/_readme",
    "a/2.seg.png",
    "a/2.jpg",
    "b.c/1",
    "a.b/2.jpg",
    "a/2.jpg",
]


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for name in NAMES:
                info = tarfile.TarInfo(name)
                info.size = 700
                archive.addfile(info, io.BytesIO(f"{number}{name}".encode().ljust(700)))
    return [str(tmp_path / f"{number}.tar") for number in range(2)]


def test_L2_exact_resume() -> None:
    pairs = [(name, name.encode()) for name in NAMES]
    check_node(lambda: CountingSource(pairs).webdataset(), pulls=lambda k: len(NAMES))


def test_L2_exact_resume_with_open_streams(shards: list[str]) -> None:
    check_node(lambda: CountingSource(shards).open_files("b").load_from_tar().webdataset(), pulls=lambda k: 2)


def test_samples(shards: list[str]) -> None:
    samples = [
        {key: value if key == "__key__" else value.read().rstrip() for key, value in sample.items()}
        for sample in IterableWrapper(shards).open_files("b").load_from_tar().webdataset()
    ]
    assert samples[:4] == [
        {"__key__": f"{shards[0]}/a/1", ".jpg": b"0a/1.JPG", ".cls": b"0a/1.cls"},
        {"__key__": f"{shards[0]}/a/2", ".seg.png": b"0a/2.seg.png", ".jpg": b"0a/2.jpg"},
        {"__key__": f"{shards[0]}/a.b/2", ".jpg": b"0a.b/2.jpg"},
        {"__key__": f"{shards[0]}/a/2", ".jpg": b"0a/2.jpg"},
    ]
    assert len(samples) == 8


def test_an_open_stream_is_saved_with_its_content_and_can_still_be_read(shards: list[str]) -> None:
    iterator = iterate(IterableWrapper(shards).open_files("b").load_from_tar().webdataset())
    next(iterator)
    data = encode(iterator.state_dict())
    assert b"0a/2.seg.png" in data
    assert b"0a/2.jpg " not in data
    assert len(data) < 20_000
    assert next(iterator)[".seg.png"].read().rstrip() == b"0a/2.seg.png"


def test_L8_forged_streams_are_refused(shards: list[str]) -> None:
    node = IterableWrapper(shards).open_files("b").load_from_tar().webdataset()
    iterator = iterate(node)
    next(iterator)
    data = encode(iterator.state_dict())
    for change in ({"stream": ["x", 3]}, {"stream": 3}, {"held": 3}, {"held": ["a"]}, {"held": [1, 2]}):
        with pytest.raises(StateError):
            iterate(node).load_state_dict(decode(data) | change)


def test_two_files_of_one_ending_and_wrong_items_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'a/1' has two files '\.jpg'"):
        list(IterableWrapper([("a/1.jpg", 1), ("a/1.jpg", 2)]).webdataset())
    items: list[Any] = ["a", ("a",), (1, 2)]
    for item in items:
        with pytest.raises(TypeError, match="webdataset needs"):
            list(IterableWrapper([item]).webdataset())


@pytest.mark.parametrize("between", ["sharding_filter", "sharding_round_robin_dispatch", "shuffle"])
@pytest.mark.parametrize("loader", ["load_from_tar", "load_from_zip"])
def test_the_files_of_a_sample_are_not_parted(between: str, loader: str) -> None:
    members = getattr(IterableWrapper(["a.tar"]).shuffle().sharding_filter().open_files("b"), loader)()
    members.map(str, input_col=0).webdataset()
    with pytest.raises(GraphError, match="stands between"):
        getattr(members.map(str, input_col=0), between)().webdataset()
