"""``on_error("skip")`` behind nodes of many kinds: what is bad is left out, the rest comes, a resume is exact."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.testing import CountingSource, check_node


def no_threes(item: Any) -> Any:
    if item % 3 == 0:
        raise ValueError(f"a three: {item}")
    return item


def opened(item: Any) -> Any:
    return str(item), io.BytesIO(b"{" if item % 3 == 0 else b"%d" % item)


def branches(source: Any) -> Any:
    low, high = source.demux(2, lambda item: no_threes(item) % 2)
    return low.mux_longest(high)


def paired(source: Any) -> Any:
    one, other = source.fork(2)
    return one.map(no_threes).zip(other).filter(_alike)


def _alike(pair: Any) -> bool:
    assert pair[0] == pair[1], f"of two records: {pair}"
    return True


CASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "zip_with_map": (lambda source: source.zip_with_map(SequenceWrapper({1: 1, 2: 2}), lambda item: item % 3), 6),
    "zip_with_iter": (lambda source: source.zip_with_iter(IterableWrapper([(1, 1), (4, 4)]), int, lambda p: p[0]), 2),
    "groupby": (lambda source: source.groupby(no_threes), 6),
    "demux": (branches, 6),
    "zip": (paired, 6),
}


@pytest.mark.parametrize("name", list(CASES))
def test_L2_bad_items_are_left_out(name: str) -> None:
    build, count = CASES[name]

    def make() -> Any:
        return build(CountingSource(range(9))).on_error("skip")

    assert len(list(make())) == count
    check_node(make, pulls=lambda k: 9, epochs=[0], num_shards=1)


def test_savers_and_openers(tmp_path: Path) -> None:
    names = ["a", "../b", "c"]
    saved = IterableWrapper(names).map(lambda name: (name, name)).save_by_fsspec(root=str(tmp_path)).on_error("skip")
    assert list(saved) == [f"{tmp_path}/a", f"{tmp_path}/c"]
    paths = [f"{tmp_path}/{name}" for name in names]
    opened = IterableWrapper(paths).open_files_by_fsspec().on_error("skip")
    assert [stream.read() for _, stream in opened] == ["a", "c"]


def test_a_buffer_that_overflows_is_an_error_all_the_same() -> None:
    one, other = IterableWrapper(range(9)).fork(2, buffer_size=2)
    with pytest.raises(BufferError) as caught:
        list(one.concat(other).on_error("skip"))
    assert any("cannot leave out" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError, match="Failed to group"):
        list(IterableWrapper(range(9)).groupby(int, buffer_size=3, group_size=2).on_error("skip"))
