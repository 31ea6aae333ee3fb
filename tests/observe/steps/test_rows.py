"""``DataLoader2.rows`` and ``item_at``: what a run gives, computed beside it, with nothing of the loader moved."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from tests.exact import exact
from tests.tries import tries
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper
from torchpipe.observe.steps.rows import StepRows

made: list[Any] = []  # of this process


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    made.append(sample["id"])
    sample["x"] = (random.random(), float(np.random.rand()), float(torch.rand(())))
    return sample


def jitter(sample: dict[str, Any], generator: Any) -> dict[str, Any]:
    made.append(sample["id"])
    sample["y"] = generator.random() + random.random()
    return sample


def is_lucky(sample: dict[str, Any]) -> bool:
    return random.random() < 0.7 and sample["id"] % 5 > 0


class Dataset:
    """Read by index; says what was read."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        made.append(index)
        return {"id": index, "z": random.random()}


def source(kind: str, first: int) -> Any:
    if kind == "read by index":
        return IterableWrapper(Dataset())  # type: ignore[arg-type]
    return IterableWrapper([{"id": number} for number in range(first, first + 30)])


BY_NUMBER = {
    "shuffle": lambda graph, n: graph.shuffle(buffer_size=3 * n),
    "map": lambda graph, n: graph.map(augment),
    "random_map": lambda graph, n: graph.random_map(jitter),
    "parallel_map": lambda graph, n: graph.parallel_map(dict, num_threads=n),
    "prefetch": lambda graph, n: graph.prefetch(n),
    "skip": lambda graph, n: graph.skip(n),
    "take": lambda graph, n: graph.take(10 * n),
    "retry": lambda graph, n: graph.retry(n),
    "cycle": lambda graph, n: graph.cycle(min(n, 2)),
    "concat": lambda graph, n: graph.concat(source("plain", 100)),
    "mix": lambda graph, n: graph.mix(source("plain", 200).map(augment), weights=[n, 1], stop="all_exhausted"),
    "enumerate": lambda graph, n: graph.enumerate().map(lambda pair: pair[1]),
}
DECIDING = {
    "filter": lambda graph, n: graph.filter(is_lucky),
    "flatmap": lambda graph, n: graph.flatmap(lambda sample: [sample] * (sample["id"] % 3)),
    "on_error": lambda graph, n: graph.map(augment).on_error("skip"),
    "batch_unbatch": lambda graph, n: graph.batch(n).unbatch(),
}
step = st.tuples(st.sampled_from([*BY_NUMBER, *BY_NUMBER, *DECIDING]), st.integers(1, 4))


def build(kind: str, before: list[tuple[str, int]], after: list[tuple[str, int]], size: int) -> Any:
    graph = source(kind, 0)
    for name, number in before:
        graph = (BY_NUMBER | DECIDING)[name](graph, number)
    graph = graph.sharding_filter()
    for name, number in after:
        graph = (BY_NUMBER | DECIDING)[name](graph, number)
    return graph.batch(size).map(list)


def ids(batch: list[dict[str, Any]]) -> list[int]:
    return [sample["id"] for sample in batch]


@given(
    kind=st.sampled_from(["plain", "read by index"]),
    before=st.lists(step, max_size=2),
    after=st.lists(step, max_size=3),
    size=st.integers(1, 4),
    stop=st.integers(0, 6),
    epoch=st.integers(0, 1),
)
@settings(max_examples=tries(30))
def test_rows_are_those_of_a_run_and_nothing_moves(
    kind: str, before: Any, after: Any, size: int, stop: int, epoch: int
) -> None:
    def make() -> DataLoader2[Any]:
        loader = DataLoader2(build(kind, before, after, size), reading_service=InProcessReadingService(num_shards=2))
        loader.seed(4)
        return loader

    whole = make()
    runs = [[(ids(batch), exact(batch)) for batch in whole] for _ in range(2)]
    loader = make()
    loader.set_epoch(epoch)
    stream = iter(loader)
    stop = min(stop, len(runs[epoch]))
    taken = [exact(batch) for _, batch in zip(range(stop), stream)]
    state = loader.state_dict()
    random.seed(1)
    drawn = random.getstate()
    made.clear()
    found = loader.rows()
    computed = [tuple(row) for row in found]
    decided = {"filter", "flatmap", "on_error", "batch_unbatch"} & {name for name, _ in before + after}
    if not decided:
        assert made == []
        assert not found.makes
    assert computed == [(number, rows) for number, (rows, _) in enumerate(runs[epoch])][found.first :]
    other = 1 - epoch
    assert list(loader.rows(range(1, 3), epoch=other)) == [
        StepRows(number, rows) for number, (rows, _) in enumerate(runs[other]) if 0 < number < 3
    ]
    for at in {0, stop, len(runs[epoch]) - 1} & {*range(len(runs[epoch]))}:
        assert exact(loader.item_at(at)) == runs[epoch][at][1]
    assert exact(loader.state_dict()) == exact(state)
    assert random.getstate() == drawn
    assert taken + [exact(batch) for batch in stream] == [text for _, text in runs[epoch]]


def test_beside_workers_and_from_a_loaded_state() -> None:
    def make(workers: int) -> DataLoader2[Any]:
        graph = source("plain", 0).shuffle().sharding_filter().map(augment).batch(2)
        loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=workers, num_shards=3))
        loader.seed(4)
        return loader

    with make(2) as loader:
        stream = iter(loader)
        taken = [next(stream) for _ in range(4)]
        state = loader.state_dict()
        assert [row.rows for row in loader.rows([3, 0, 3])] == [ids(taken[0]), ids(taken[3])]
        assert exact(loader.item_at(2)) == exact(taken[2])
        taken += list(stream)
    with make(1) as loader:
        loader.load_state_dict(state)
        assert [row.rows for row in loader.rows()] == [ids(batch) for batch in taken]
        assert exact(loader.item_at(6)) == exact(taken[6])
        assert [exact(batch) for batch in loader] == [exact(batch) for batch in taken[4:]]


def test_what_a_row_is() -> None:
    paths = DataLoader2(IterableWrapper(["a", "b", "c"]).map(str.upper).batch(2))
    assert [row.rows for row in paths.rows()] == [["a", "b"], ["c"]]
    records = DataLoader2(IterableWrapper([{"__key__": "k", "__url__": "u", "n": torch.tensor(3)}]).batch(1))
    assert next(records.rows()).rows == [{"__key__": "k", "__url__": "u"}]
    assert next(records.rows(keep=["n"])).rows == [3]
    odd = DataLoader2(IterableWrapper([torch.zeros(2, 2), (1, "a"), None]).batch(3))
    rows = next(odd.rows()).rows
    assert rows[1:] == [(1, "a"), None]
    assert rows[0].startswith("Tensor ")
    packed = IterableWrapper([{"id": n, "tokens": [n] * 3} for n in range(4)]).pack(6, keep=["id"]).batch(2)
    found = DataLoader2(packed).rows(keep=["id"])
    assert next(found).rows == [0, 1, 2, 3]


def test_samples_that_look_like_batches_are_samples_and_batches_of_any_class_have_theirs() -> None:
    def rows(graph: Any) -> list[Any]:
        return [step.rows for step in DataLoader2(graph).rows()]

    assert rows(IterableWrapper([[1, 2], [3, 4]])) == [[[1, 2]], [[3, 4]]]
    assert rows(IterableWrapper([torch.tensor([1, 2])]).map(torch.neg)) == [[[1, 2]]]
    assert rows(IterableWrapper([[1, 2], [3, 4]]).batch(2)) == [[[1, 2], [3, 4]]]
    assert rows(IterableWrapper(range(4)).batch(2, wrapper_class=tuple)) == [[0, 1], [2, 3]]
    assert rows(IterableWrapper([(1, "a"), (2, "b")]).batch(2).collate(tuple)) == [[(1, "a"), (2, "b")]]
    assert rows(IterableWrapper(range(4)).batch(2, wrapper_class=deque)) == [[0, 1], [2, 3]]
    pair = {"id": [1, 2], "key": [5, 6]}
    assert rows(IterableWrapper([pair])) == [[pair]]
    assert rows(IterableWrapper([pair]).batch(1)) == [[pair]]
    zipped = IterableWrapper(range(4)).batch(2).zip(IterableWrapper("abcd").batch(2))
    assert rows(zipped) == [[([0, 1], ["a", "b"])], [([2, 3], ["c", "d"])]]
    nested = IterableWrapper(range(5)).batch(2).batch(2)
    assert rows(nested) == [[0, 1, 2, 3], [4]]
    assert rows(nested.filter(lambda batch: len(batch) > 0)) == [[0, 1, 2, 3], [4]]  # made, and thrown away
    assert rows(IterableWrapper(range(4)).filter(lambda _: True).batch(2).collate()) == [[0, 1], [2, 3]]


def test_mistakes() -> None:
    loader = DataLoader2(IterableWrapper(range(5)))
    with pytest.raises(LookupError, match="names fields.*is 0, which has none: leave keep out"):
        list(loader.rows(keep=["id"]))
    with pytest.raises((TypeError, ValueError), match="steps"):
        loader.rows([-1])
    with pytest.raises(IndexError, match="no step 5"):
        loader.item_at(5)
    assert list(loader.rows([])) == []
    assert list(loader.rows([7])) == []
    with loader.rows() as found:
        assert next(found) == (0, [0])
    assert next(found, None) is None
