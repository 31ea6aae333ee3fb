"""``HuggingFaceReader``: exact for every kind of dataset, whatever a stream's own state is worth."""

from __future__ import annotations

import gc
import random
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from reading_services import MultiProcessingReadingService
from tests.sources import wait_until
from torchpipe import DataLoader2
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.iter import HuggingFaceReader, hugging_face
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import check_node


def rows(count: int = 21) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"id": list(range(count)), "word": [f"w{row}" for row in range(count)]})


def stream(count: int = 21) -> Any:
    return rows(count).to_iterable_dataset(num_shards=3)


def generated(shards: list[int]) -> Any:
    for shard in shards:
        for row in range(7):
            yield {"id": shard * 7 + row}


def from_parquet(folder: Path) -> Any:
    for number in range(2):
        pq.write_table(pa.table({"id": range(9)}), folder / f"{number}.parquet", row_group_size=4)
    return from_parquet_files(folder)


def from_parquet_files(folder: Path) -> Any:
    return datasets.load_dataset(
        "parquet", data_files=str(folder / "*.parquet"), streaming=True, split="train", cache_dir=str(folder / "cache")
    )


def negative(row: Any) -> Any:
    return {"id": -row["id"]}


def negatives(batch: Any) -> Any:
    return {"id": [-value for value in batch["id"]]}


STREAMS: dict[str, Any] = {
    "arrow": lambda folder: stream(),
    "mapped": lambda folder: stream().map(negative),
    "mapped in batches": lambda folder: stream().map(
        lambda b: {"y": [-v for v in b["id"]]}, batched=True, batch_size=4
    ),
    "filtered": lambda folder: stream().filter(lambda row: row["id"] % 3 > 0),
    "skip and take": lambda folder: stream().skip(3).take(12),
    "torch": lambda folder: stream().with_format("torch"),
    "generator": lambda folder: datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": [0, 1, 2]}),
    "parquet": from_parquet,
    "interleaved": lambda folder: datasets.interleave_datasets([stream(), stream().map(negative)]),
    "shuffled": lambda folder: stream().shuffle(seed=1, buffer_size=5),
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", STREAMS)
def test_L2_exact_resume_of_streams(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "_MARK_EVERY", 4)
    dataset = STREAMS[kind](tmp_path)
    check_node(lambda: HuggingFaceReader(dataset), num_shards=1, epochs=[0, 1], positions=7)


def test_L2_exact_resume_of_tables() -> None:
    dataset = rows()
    check_node(lambda: HuggingFaceReader(dataset).shuffle().sharding_filter(), epochs=[0], positions=8)
    check_node(lambda: HuggingFaceReader(dataset, batch_size=4).sharding_filter(), epochs=[0], positions=5)
    assert [batch["id"] for batch in HuggingFaceReader(dataset, 8)] == [
        list(range(first, min(first + 8, 21))) for first in (0, 8, 16)
    ]
    assert torch.equal(next(iter(HuggingFaceReader(dataset.with_format("torch"), 2)))["id"], torch.tensor([0, 1]))
    assert (len(HuggingFaceReader(dataset)), len(HuggingFaceReader(dataset, 4))) == (21, 6)


def test_streams_in_batches() -> None:
    assert [batch["id"] for batch in HuggingFaceReader(stream(), 8)][0] == list(range(8))
    check_node(lambda: HuggingFaceReader(stream(), 4), num_shards=1, epochs=[0], positions=4)


def test_L1_epochs_of_a_shuffled_stream_differ_and_repeat() -> None:
    node = HuggingFaceReader(stream().shuffle(seed=1, buffer_size=5))
    first, second, again = ([row["id"] for row in iterate(node, epoch=epoch)] for epoch in (0, 1, 0))
    assert first == again != second
    assert sorted(first) == sorted(second) == list(range(21))
    assert node.dataset.epoch == 0


def test_L5_a_shard_reads_its_own_rows_alone() -> None:
    read: list[int] = []

    class Counted(datasets.Dataset):
        def __getitem__(self, key: Any) -> Any:
            read.append(key)
            return super().__getitem__(key)

    dataset = rows()
    dataset.__class__ = Counted
    node = HuggingFaceReader(dataset).sharding_filter()
    assert [row["id"] for row in iterate(node, shard=1, num_shards=4)] == [1, 5, 9, 13, 17]
    assert read == [1, 5, 9, 13, 17]


def test_L5_a_stream_reads_again_128_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    dataset = stream(1_000).map(lambda row: made.append(row["id"]) or row)
    iterator = iterate(HuggingFaceReader(dataset))
    costs = []
    for position in range(1, 1_000):
        next(iterator)
        if position in (130, 500, 999):
            again = iterate(HuggingFaceReader(dataset))
            again.load_state_dict(decode(encode(iterator.state_dict())))
            made.clear()
            assert (next(again, None) or {"id": 1_000})["id"] == position
            costs.append(len(made))
            made.clear()
    assert max(costs) <= 131


def test_L2_random_functions_of_a_stream_see_what_they_saw() -> None:
    def graph() -> Any:
        return HuggingFaceReader(stream(200).map(lambda row: {"id": row["id"] + random.random() + np.random.rand()}))

    reference: DataLoader2[Any] = DataLoader2(graph())
    reference.seed(1)
    expected = [row["id"] for row in reference]
    loader: DataLoader2[Any] = DataLoader2(graph())
    loader.seed(1)
    rows = iter(loader)
    got = [next(rows)["id"] for _ in range(150)]
    state = loader.state_dict()
    again: DataLoader2[Any] = DataLoader2(graph())
    again.load_state_dict(state)
    assert got + [row["id"] for row in again] == expected
    for one in (reference, loader, again):
        one.shutdown()


@pytest.mark.parametrize("kind", ["map", "filter", "parquet"])
def test_L7_what_lost_rows_in_versions_of_datasets_loses_none(kind: str, tmp_path: Path) -> None:
    """datasets#8145 (``map``), #8359 (``filter``) and #8308 (a state taken after a resume): chunks of Arrow that are
    larger than what was read of them, resumed twice in a row."""
    if kind == "parquet":
        pq.write_table(pa.table({"id": range(2_500)}), tmp_path / "0.parquet", row_group_size=1_000)
    sources: dict[str, Any] = {
        "map": lambda: rows(2_500).to_iterable_dataset().map(lambda row: {"tag": "x"}),
        "filter": lambda: rows(2_500).to_iterable_dataset().filter(lambda row: row["id"] >= 0),
        "parquet": lambda: from_parquet_files(tmp_path).filter(lambda row: row["id"] >= 0),
    }
    got: list[int] = []
    state: Any = None
    for count in (200, 450, 900, 950):
        iterator = iterate(HuggingFaceReader(sources[kind]()))
        if state is not None:
            iterator.load_state_dict(state)
        got += [next(iterator)["id"] for _ in range(count)]
        state = decode(encode(iterator.state_dict()))
    assert got == list(range(2_500))


class LosesRows(datasets.IterableDataset):
    """As several versions of datasets did: its state leads to a place further on."""

    def state_dict(self) -> Any:
        state = super().state_dict()
        inner = state["examples_iterable"]
        while "shard_idx" not in inner:
            inner = inner.get("previous_state") or inner["examples_iterable"]
        inner["shard_idx"] += 1
        return state


def test_L7_a_stream_whose_state_loses_rows_is_replayed_and_loses_none() -> None:
    dataset = stream(300)
    dataset.__class__ = LosesRows
    iterator = iterate(HuggingFaceReader(dataset))
    for _ in range(250):
        next(iterator)
    again = iterate(HuggingFaceReader(dataset))
    again.load_state_dict(iterator.state_dict())
    with pytest.warns(ReplayWarning, match="did not lead to the row where it was taken: replaying its first 250 rows"):
        assert next(again)["id"] == 250
    for _ in range(20):
        next(again)
    third = iterate(HuggingFaceReader(dataset))
    third.load_state_dict(again.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        assert [row["id"] for row in third] == list(range(271, 300))


def test_L6_a_stream_with_threads_ends_when_nobody_holds_it() -> None:
    before = threading.active_count()
    iterator = iter(HuggingFaceReader(STREAMS["interleaved"](Path())))
    next(iterator)
    assert threading.active_count() > before
    gc.disable()
    try:
        del iterator
        wait_until(lambda: threading.active_count() == before)
    finally:
        gc.enable()


def test_L5_the_buffer_of_a_shuffled_stream_is_announced() -> None:
    node = HuggingFaceReader(stream().shuffle(seed=1, buffer_size=5))
    iterator = iterate(node)
    expected = [row["id"] for row in iterate(node)]
    for _ in range(9):
        next(iterator)
    again = iterate(node)
    with pytest.warns(ReplayWarning, match=r"the shuffle buffer of the dataset in HuggingFaceReader .* first 9 items"):
        again.load_state_dict(iterator.state_dict())
    assert [row["id"] for row in again] == expected[9:]


def test_L7_rows_that_are_not_the_same_again_are_refused() -> None:
    iterator = iterate(HuggingFaceReader(stream()))
    for _ in range(9):
        next(iterator)
    state = iterator.state_dict()
    for other in (stream().map(negative), stream(5)):
        again = iterate(HuggingFaceReader(other))
        again.load_state_dict(state)
        with pytest.warns(ReplayWarning), pytest.raises(StateError, match="does not give the rows again|ended after"):
            next(again)


def test_L8_forged_states_are_refused() -> None:
    iterator = iterate(HuggingFaceReader(stream()))
    for _ in range(9):
        next(iterator)
    good = iterator.state_dict()
    wrong: list[Any] = [{"position": -1}, {"sums": [1] * 10}, {"sums": None}, {"sums": ["a"]}, {"position": 3}]
    wrong += [{"stream": 3}, {"stream": {"epoch": 0}}, {"random": 3}]
    for changed in wrong:
        again = iterate(HuggingFaceReader(stream()))
        with warnings.catch_warnings(), pytest.raises(StateError):
            warnings.simplefilter("ignore", ReplayWarning)
            again.load_state_dict({**good, **changed})
            next(again)


def test_L3_in_workers_it_is_the_same_stream() -> None:
    graph = HuggingFaceReader(stream(40)).sharding_filter()
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=2))
    assert [row["id"] for row in loader] == list(range(40))
    loader.shutdown()


def test_within_torchs_workers_it_is_divided_once() -> None:
    graph = HuggingFaceReader(stream()).sharding_filter()
    loader = torch.utils.data.DataLoader(graph, batch_size=None, num_workers=1)
    assert [row["id"] for row in loader] == list(range(21))


def test_what_is_no_dataset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="reads one split, got several: choose of 'train', 'test'"):
        HuggingFaceReader(datasets.DatasetDict({"train": rows(), "test": rows()}))
    with pytest.raises(TypeError, match="does not know its length"):
        len(HuggingFaceReader(stream()))
    assert list(HuggingFaceReader(rows(0))) == list(HuggingFaceReader(rows(0), 3)) == []
    dataset = rows()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install datasets$"):
        HuggingFaceReader(dataset)


def test_a_stream_is_read_in_another_thread_than_it_was_made_in() -> None:
    for _ in range(3):
        node = HuggingFaceReader(stream()).prefetch(2)
        assert [row["id"] for row in node] == list(range(21))
