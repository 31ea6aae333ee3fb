"""``batch``, ``concat``, ``zip``, ``unzip``, ``in_memory_cache`` of map-style nodes, and ``to_map_datapipe``."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.errors import GraphError
from torchpipe.graph import replace_node
from torchpipe.iter import IterableWrapper, IterDataPipe
from torchpipe.map import (
    SequenceWrapper,
)
from torchpipe.testing import check_node

LETTERS = SequenceWrapper("abcde")


class ThatDraws(IterDataPipe[tuple[int, float]]):
    """Does not know its length."""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter([(index, random.random()) for index in range(6)])


def double(item: int) -> tuple[int, int]:
    return item, item * 2


def test_batches() -> None:
    node = LETTERS.batch(2)
    assert [node[index] for index in range(len(node))] == [["a", "b"], ["c", "d"], ["e"]]
    assert (node[-1], len(LETTERS.batch(2, drop_last=True)), len(LETTERS.batch(5))) == (["e"], 2, 1)
    assert LETTERS.batch(2, wrapper_class=tuple)[1] == ("c", "d")
    with pytest.raises(IndexError, match="Index 2 is out of range: batch has 2 items"):
        LETTERS.batch(2, drop_last=True)[2]
    with pytest.raises(TypeError, match="read by index, got 'a'"):
        node["a"]


def test_one_behind_the_other_and_side_by_side() -> None:
    both = LETTERS.concat(SequenceWrapper([1, 2]))
    assert [both[index] for index in range(len(both))] == ["a", "b", "c", "d", "e", 1, 2]
    assert both[-1] == 2
    with pytest.raises(IndexError, match="concat has 7 items"):
        both[7]
    pairs = LETTERS.zip(SequenceWrapper([1, 2]))
    assert (len(pairs), pairs[1]) == (2, ("b", 2))
    with pytest.raises(IndexError) as caught:
        pairs[3]
    assert "out of range for one of the inputs of zip" in caught.value.__notes__[0]
    keyed = SequenceWrapper({"x": 1}).zip(SequenceWrapper({"x": 2}))
    assert keyed["x"] == (1, 2)


@pytest.mark.parametrize("last", [-1, np.int64(-1), torch.tensor(-1)], ids=["int", "numpy", "torch"])
def test_inputs_of_other_lengths_are_aligned_from_the_end_too(last: Any) -> None:
    node = SequenceWrapper(range(7)).zip(SequenceWrapper(range(2)))
    assert node[last] == node[1] == (1, 1)
    with pytest.raises(IndexError, match="Index -3 is out of range: zip has 2 items"):
        node[-3]


def test_columns() -> None:
    rows = SequenceWrapper([(1, 2, 3), (4, 5, 6)])
    first, third = rows.unzip(3, columns_to_skip=[1])
    assert ([first[0], first[1], third[1]], len(third)) == ([1, 4, 6], 2)


def test_read_once() -> None:
    read: list[int] = []
    source = SequenceWrapper(range(4)).map(lambda item: read.append(item) or [item])
    node = source.in_memory_cache()
    node[2].append("changed in place")  # type: ignore[union-attr]
    assert node[2] == [2]
    assert (read, len(node)) == ([2], 4)
    other = replace_node(node, source, SequenceWrapper([7, 8, 9]))
    assert (other[2], node[2], read) == (9, [2], [2])  # type: ignore[index]
    plain = SequenceWrapper(range(4)).in_memory_cache()
    assert (plain[1], pickle.loads(pickle.dumps(plain))[1]) == (1, 1)


def test_by_key() -> None:
    node = IterableWrapper(range(4)).to_map_datapipe(double)
    assert ([node[index] for index in range(4)], len(node)) == ([0, 2, 4, 6], 4)
    with pytest.raises(IndexError, match="Index 4 is invalid"):
        node[4]
    with pytest.warns(UserWarning, match="duplicate key 1"):
        assert IterableWrapper([(1, "a"), (1, "b")]).to_map_datapipe()[1] == "b"
    with pytest.warns(UserWarning, match="reads all of its input"):
        assert len(IterableWrapper(range(4)).filter(lambda item: item > 1).to_map_datapipe(double)) == 2
    shuffled = IterableWrapper(range(9)).shuffle().enumerate().to_map_datapipe()
    again = IterableWrapper(range(9)).shuffle().enumerate().to_map_datapipe()
    assert [shuffled[index] for index in range(9)] == [again[index] for index in range(9)] != list(range(9))
    for items, error in (([1], TypeError), ([(1, 2, 3)], ValueError)):
        with pytest.raises(error, match="dictionary update"):
            IterableWrapper(items).to_map_datapipe()[1]  # type: ignore[misc]
    with pytest.raises(GraphError, match="divide behind it"):
        IterableWrapper(range(4)).sharding_filter().to_map_datapipe(double)


def test_L1_and_L2_in_a_graph() -> None:
    def make() -> Any:
        table = IterableWrapper(range(6)).to_map_datapipe(double)
        columns = SequenceWrapper([(item, -item) for item in range(6)]).unzip(2)
        rows = columns[0].concat(columns[1]).in_memory_cache().zip(table.concat(table))
        return rows.batch(5).shuffle().sharding_filter()

    check_node(lambda: make(), epochs=[0])
    expected = sorted(item for batch in DataLoader2(make()) for item in batch)
    with DataLoader2(make(), reading_service=MultiProcessingReadingService(2)) as loader:
        assert sorted(item for batch in loader for item in batch) == expected


@pytest.mark.filterwarnings("ignore:len.. of to_map_datapipe")
def test_what_a_loader_asks_by_the_way_does_not_read_a_table() -> None:
    """In a thread, that would draw from the process's generators, beside the loop."""
    graph = ThatDraws().to_map_datapipe().to_iter_datapipe()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
        loader.seed(1)
        items = iter(loader)
        first = [next(items) for _ in range(3)]
        before = random.getstate()
        asked = [lambda: loader.epoch, loader.stats, loader.state_dict]
        threads = [threading.Thread(target=ask) for ask in asked]
        for thread in threads:
            thread.start(), thread.join()
        assert random.getstate() == before
        with DataLoader2(graph) as whole:
            whole.seed(1)
            assert [*first, *items] == list(whole)


def test_L1_random_numbers_drawn_for_what_is_read_at_once_are_its_own() -> None:
    def node() -> Any:
        return IterableWrapper(range(5)).map(lambda item: (item, random.random())).prefetch(2).to_map_datapipe()

    random.seed(1)
    expected = [node()[index] for index in range(5)]
    drawn = random.random()
    assert drawn == random.Random(1).random()
    for workers in (0, 2):
        with DataLoader2(
            node().shuffle().sharding_filter(), reading_service=MultiProcessingReadingService(workers)
        ) as loader:
            loader.seed(workers)
            assert sorted(loader) == sorted(expected)


def test_L2_random_numbers_drawn_for_what_is_kept_are_the_keys() -> None:
    def loader(workers: int = 0) -> Any:
        graph = SequenceWrapper(range(6)).map(lambda item: (item, random.random())).in_memory_cache().shuffle()
        made = DataLoader2(
            graph.sharding_filter(), reading_service=MultiProcessingReadingService(workers, num_shards=2)
        )
        made.seed(3)
        return made

    with loader() as whole:
        expected = [list(whole) for _ in range(3)]
    assert sorted(expected[0]) == sorted(expected[1])
    for workers in (0, 2):
        with loader(workers) as stopped, loader() as resumed:
            assert list(stopped) == expected[0]
            items = iter(stopped)
            found = [next(items) for _ in range(3)]
            resumed.load_state_dict(stopped.state_dict())
            assert [found + list(resumed), list(resumed)] == expected[1:]
