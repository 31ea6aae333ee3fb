"""Adapters: a changed copy of the graph; the user's nodes stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data.datapipes import iter as torch_iter

from torchpipe import DataLoader2, MapDataPipe
from torchpipe.errors import StateMismatchError
from torchpipe.graph import walk
from torchpipe.iter import IterableWrapper
from torchpipe.torchdata.dataloader2.adapter import Adapter, CacheTimeout, Shuffle


def shuffled(length: int = 20) -> Any:
    return IterableWrapper(range(length)).shuffle(buffer_size=10).sharding_filter()


def run(graph: Any, *adapters: Any, seed: int = 1) -> list[Any]:
    loader: Any = DataLoader2(graph, list(adapters))
    loader.seed(seed)
    return list(loader)


def test_shuffle_off_gives_the_order_of_the_source_and_on_a_seeds_own() -> None:
    graph = shuffled()
    assert run(graph, Shuffle(False)) == list(range(20))
    assert run(graph, Shuffle()) == run(graph) != list(range(20))
    assert run(graph, Shuffle(False), Shuffle(True)) == run(graph)


def test_every_shuffle_of_the_graph_is_switched() -> None:
    graph = shuffled().shuffle(buffer_size=5).zip(IterableWrapper(range(20)).shuffle(buffer_size=3)).batch(2)
    assert run(graph, Shuffle(False)) == [[(n, n), (n + 1, n + 1)] for n in range(0, 20, 2)]


def test_the_users_nodes_are_not_changed() -> None:
    graph = shuffled()
    before = [dict(vars(node)) for node in walk(graph)]
    changed = Shuffle(False)(graph)
    assert [dict(vars(node)) for node in walk(graph)] == before
    assert changed is not graph
    assert walk(changed)[0] is walk(graph)[0]


def test_a_graph_without_shuffle_comes_back_as_it_is() -> None:
    graph = IterableWrapper(range(3)).map(str)
    assert Shuffle(False)(graph) is graph


def test_torchs_own_shuffler_is_switched_as_well() -> None:
    graph = torch_iter.Shuffler(torch_iter.IterableWrapper(range(20)), buffer_size=10)
    assert run(graph, Shuffle(False)) == list(range(20))
    assert sorted(run(graph)) == list(range(20)) != run(graph)


def test_any_node_that_offers_set_shuffle_is_switched() -> None:
    class Backwards(MapDataPipe[int]):
        def __init__(self) -> None:
            self.backwards = True

        def set_shuffle(self, shuffle: bool = True) -> Any:
            self.backwards = shuffle
            return self

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return 2 - index if self.backwards else index

    graph: Any = Backwards()
    assert run(graph.to_iter_datapipe(), Shuffle(False)) == [0, 1, 2]
    assert run(graph.to_iter_datapipe()) == [2, 1, 0]


def test_a_state_with_shuffling_on_does_not_fit_one_with_it_off() -> None:
    graph = shuffled()
    for position in (0, 3):
        saving: Any = DataLoader2(graph)
        iterator = iter(saving)
        for _ in range(position):
            next(iterator)
        with pytest.raises(StateMismatchError, match=r"enabled=True(.|\n)*enabled=False"):
            DataLoader2(graph, Shuffle(False)).load_state_dict(saving.state_dict())
        DataLoader2(graph, Shuffle(True)).load_state_dict(saving.state_dict())


def test_an_adapter_of_ones_own() -> None:
    class Doubled(Adapter):
        def __call__(self, datapipe: Any) -> Any:
            return datapipe.map(lambda item: 2 * item)

    graph = IterableWrapper(range(3))
    assert run(graph, Doubled()) == [0, 2, 4]
    assert run(graph, Doubled(), Doubled(), lambda datapipe: datapipe.take(2)) == [0, 4]
    assert run(graph) == [0, 1, 2]


def test_an_adapter_defines_what_it_does() -> None:
    with pytest.raises(NotImplementedError, match=r"Half must define __call__\(self, datapipe\)"):
        DataLoader2(shuffled(), type("Half", (Adapter,), {})())


def test_shuffle_on_without_a_shuffle_puts_one_at_the_end_and_says_so() -> None:
    graph = IterableWrapper(range(20)).map(abs)
    with pytest.warns(UserWarning, match=r"put a shuffle\(\) after Mapper\(abs\), the last node"):
        items = run(graph, Shuffle(True))
    assert sorted(items) == list(range(20)) != items
    assert run(graph) == list(range(20))


def test_shuffle_none_changes_nothing() -> None:
    graph = shuffled()
    assert Shuffle(None)(graph) is graph
    plain = IterableWrapper(range(3))
    assert Shuffle(None)(plain) is plain
    assert run(plain, Shuffle(None)) == [0, 1, 2]


def test_what_waits_for_files_of_other_processes_waits_as_long_as_is_said() -> None:
    node: Any = IterableWrapper([3]).on_disk_cache(str).map(str).end_caching(same_filepath_fn=True, skip_read=True)
    changed = CacheTimeout(7)(node)
    assert (node.timeout, changed.timeout) == (300, 7)
