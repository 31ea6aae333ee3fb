"""What a state is refused for, end to end: the argument is named, and data are known by what identifies them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

import torchpipe.iter
import torchpipe.map
from torchpipe import DataLoader2
from torchpipe.errors import StateMismatchError
from torchpipe.formats.tfrecord import write_record
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.fingerprint import describe_graph, fingerprint


def pairs(*items: Any) -> Any:
    return items


def numbers() -> Any:
    return IterableWrapper([3, 1, 2, 0])


def refusal(saved: Any, here: Any) -> str:
    """What is said when a state of the one graph is loaded into the other, after one item."""
    loader = DataLoader2(saved)
    next(iter(loader))
    with pytest.raises(StateMismatchError) as caught:
        DataLoader2(here).load_state_dict(loader.state_dict())
    return str(caught.value)


def test_the_error_names_node_and_argument_with_both_sides(tmp_path: Path) -> None:
    def graph(boundaries: range, by: int) -> Any:
        return IterableWrapper([[0] * 3] * 9).map(functools.partial(pairs, by)).bucket_by_length(boundaries, 2)

    said = refusal(graph(range(1, 12), 1), graph(range(2, 13), 1))
    assert "The first node that differs, in its boundaries:" in said
    assert "(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)" in said
    assert "(2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)" in said
    assert "differs, in its fn:" in refusal(graph(range(1, 12), 1), graph(range(1, 12), 2))


def tokens(folder: Path, name: str, first: int, count: int = 20) -> str:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{name}.npy", np.arange(first, first + count, dtype=np.uint16))
    return str(folder / f"{name}.npy")


def test_files_of_tokens_count_by_name_size_and_order_but_not_by_folder(tmp_path: Path) -> None:
    one, two = (tokens(tmp_path / "a", name, first) for name, first in (("one", 0), ("two", 100)))
    graph = torchpipe.map.TokenFile([one, two], 5).shuffle()
    moved = [tokens(tmp_path / "b", name, first) for name, first in (("one", 0), ("two", 100))]
    assert fingerprint(torchpipe.map.TokenFile(moved, 5).shuffle()) == fingerprint(graph)
    others = [tokens(tmp_path / "c", "three", 0), tokens(tmp_path / "c", "four", 0)]
    cut = [tokens(tmp_path / "d", "one", 0, 30), tokens(tmp_path / "d", "two", 0, 10)]
    for paths in ([two, one], others, cut):
        assert "differs, in its files:" in refusal(graph, torchpipe.map.TokenFile(paths, 5).shuffle())


def test_files_of_tfrecords_count_by_name_and_size(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with open(tmp_path / f"{name}.tfrecord", "wb") as file:
            write_record(file, b"ab")
    one, two = (torchpipe.map.TFRecordFile(tmp_path / f"{name}.tfrecord", parse=False) for name in ("one", "two"))
    assert "differs, in its files:" in refusal(one.to_iter_datapipe(), two.to_iter_datapipe())


def test_a_list_of_paths_counts_by_names_below_their_folder() -> None:
    def listed(root: str, name: str = "x") -> str:
        return fingerprint(IterableWrapper([f"{root}/{kind}/{name}{n}.png" for kind in "ab" for n in range(999)]))

    assert listed("/data") == listed("/mnt/other") != listed("/data", "y")
    assert listed("s3://one") == listed("s3://two/deep") != listed("s3://one", "y")
    assert listed("relative") != listed("other")  # where a run stands when it begins is up to the user


def test_a_dataset_of_hugging_faces_counts_by_its_rows() -> None:
    def data(values: range, **options: Any) -> Any:
        return torchpipe.iter.HuggingFaceReader(datasets.Dataset.from_dict({"x": values}, **options))

    one, other = data(range(20)), data(range(100, 120))
    assert fingerprint(data(range(20))) == fingerprint(one) != fingerprint(other)
    assert "differs, in its dataset:" in refusal(one, other)
    shuffled = torchpipe.iter.HuggingFaceReader(one.dataset.shuffle(seed=1))
    assert fingerprint(shuffled) != fingerprint(one)
    renamed = torchpipe.iter.HuggingFaceReader(one.dataset.rename_column("x", "y"))
    assert fingerprint(renamed) != fingerprint(one)
    assert fingerprint(torchpipe.iter.HuggingFaceReader(one.dataset.with_format("numpy"))) != fingerprint(one)


class Reading:
    """Data of the user's, whose items nobody asks for before they are read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        raise AssertionError("read")


def test_items_of_the_users_own_data_are_not_read() -> None:
    assert "iterable=Reading[5]" in describe_graph(IterableWrapper(Reading()))  # type: ignore[arg-type]
    assert "sequence=Reading[5]" in describe_graph(SequenceWrapper(Reading()).to_iter_datapipe())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
@pytest.mark.parametrize("place", [0, -1])
def test_the_first_and_the_last_item_are_in_every_sample(kind: Any, place: int) -> None:
    items = list(range(3_000_000))
    one = fingerprint(IterableWrapper(kind(items)))
    items[place] += 1
    assert fingerprint(IterableWrapper(kind(items))) != one


def test_an_argument_of_any_length_counts_whole() -> None:
    words = {f"word {number}": number for number in range(10_000)}
    assert fingerprint(numbers().map(words.get)) != fingerprint(numbers().map((words | {"word 5000": 0}).get))


def test_a_value_that_is_used_is_no_other_for_the_loader_that_uses_it() -> None:
    class Counter:
        calls = 0

        def add(self, item: int) -> int:
            self.calls += 1
            return item

    loader = DataLoader2(numbers().map(Counter().add))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    loader.load_state_dict(state)
    assert list(loader) == rest == [1, 2, 0]
