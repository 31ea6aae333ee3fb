"""A shuffle buffer of items that are read from files: a state names them by number, and a resume reads them again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import InProcessReadingService, MultiProcessingReadingService
from tests.tries import tries
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, IterDataPipe, JsonlReader
from torchpipe.iter._shared import numbered
from torchpipe.testing import check_node

DOCUMENTS, SHARDS = 1500, 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("documents") / "web.jsonl"
    found.write_text("".join(json.dumps({"id": n, "text": ["x" * 7000]}) + "\n" for n in range(DOCUMENTS)))
    return str(found)


def changing(document: dict[str, Any]) -> int:
    """Changes what it gets, as functions of users do."""
    document["text"].clear()
    return int(document.pop("id"))


def make(path: str, buffer_size: int = 200) -> IterDataPipe[int]:
    return JsonlReader(path).sharding_filter().shuffle(buffer_size=buffer_size).map(changing)


def loader_of(graph: IterDataPipe[Any], workers: int) -> DataLoader2[Any]:
    service: Any = InProcessReadingService(num_shards=SHARDS)
    if workers:
        service = MultiProcessingReadingService(workers, num_shards=SHARDS)
    loader = DataLoader2(graph, reading_service=service)
    loader.seed(3)
    return loader


def epochs_of(graph: IterDataPipe[Any], epochs: int, workers: int = 0) -> list[list[Any]]:
    with loader_of(graph, workers) as loader:
        return [list(loader) for _ in range(epochs)]


@pytest.mark.parametrize("workers", [0, 2])
def test_L2_L3_a_resume_of_a_resume_goes_on_elsewhere(path: str, workers: int) -> None:
    first, second = epochs_of(make(path), 2)
    assert sorted(first) == list(range(DOCUMENTS))
    for cut in (0, 1, 300, DOCUMENTS - 40):
        with loader_of(make(path), workers) as loader:
            assert list(islice(loader, cut)) == first[:cut]
            state = loader.state_dict()
        with loader_of(make(path), 1 if workers else 2) as loader:
            loader.load_state_dict(state)
            more = list(islice(loader, 25))
            state = loader.state_dict()
        with loader_of(make(path), 0) as loader:
            loader.load_state_dict(state)
            assert more + list(loader) == first[cut:]
            assert list(loader) == second


def test_L5_a_state_does_not_hold_the_documents(path: str) -> None:
    with loader_of(make(path), 0) as loader:
        sizes = []
        for number, _ in enumerate(loader):
            if number % 100 == 99:
                sizes.append(len(loader.state_dict()["payload"]))
    assert max(sizes) < 200 * 7000 * SHARDS / 10, sizes  # a tenth of what the buffers hold


def test_L2_L5_the_small_buffers_of_many_shards_are_large_together(path: str) -> None:
    """Of 12 documents of 7 kB in each of 64 shards, 5 MB, a state has the numbers."""

    def loader(graph: IterDataPipe[Any]) -> DataLoader2[Any]:
        made: DataLoader2[Any] = DataLoader2(graph, reading_service=InProcessReadingService(num_shards=64))
        made.seed(3)
        return made

    graph = make(path, 17)
    with loader(graph) as whole:
        expected = list(whole)
        assert sorted(expected) == list(range(DOCUMENTS))
    with loader(graph) as first:
        got = list(islice(iter(first), 64 * 3))
        state = first.state_dict()
    assert len(state["payload"]) < 200_000
    with loader(graph) as again:
        again.load_state_dict(state)
        assert got + list(again) == expected


def test_L4_a_worker_that_is_killed(path: str) -> None:
    (expected,) = epochs_of(make(path), 1)
    with loader_of(make(path), 2) as loader:
        stream = iter(loader)
        got = [next(stream) for _ in range(500)]
        os.kill(loader.reading_service.worker_pids()[0], signal.SIGKILL)
        assert got + list(stream) == expected


def test_L3_states_that_hold_the_items_load_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,) = epochs_of(make(path), 1)

    def state_after(cut: int) -> dict[str, Any]:
        with loader_of(make(path), 0) as loader:
            assert list(islice(loader, cut)) == expected[:cut]
            return loader.state_dict()

    for saved_with, loaded_with in ((1 << 60, 0), (0, 1 << 60)):
        monkeypatch.setattr(numbered, "_LEAST_BYTES", saved_with)
        state = state_after(700)
        monkeypatch.setattr(numbered, "_LEAST_BYTES", loaded_with)
        with loader_of(make(path), 0) as loader:
            loader.load_state_dict(state)
            assert list(loader) == expected[700:]


@settings(max_examples=tries(25), deadline=None)
@given(length=st.integers(0, 120), buffer_size=st.integers(1, 40), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_L2_at_any_place_with_any_buffer(
    tmp_path_factory: pytest.TempPathFactory, length: int, buffer_size: int, cuts: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{length}.jsonl"
    path.write_text("".join(f'{{"id": {n}, "text": []}}\n' for n in range(length)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbered, "_LEAST_BYTES", 0)
        (expected,) = epochs_of(make(str(path), buffer_size), 1)
        got, state = [], None
        for cut in cuts:
            with loader_of(make(str(path), buffer_size), 0) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                got += list(islice(loader, cut))
                state = loader.state_dict()
        with loader_of(make(str(path), buffer_size), 0) as loader:
            if state is not None:
                loader.load_state_dict(state)
            rest = list(loader)
        assert got[:length] == expected[: len(got[:length])]
        assert rest == expected[len(got) :] or len(got) >= length


def test_a_node_that_is_checked(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered, "_LEAST_BYTES", 0)
    check_node(lambda: JsonlReader(path).take(60).shuffle(buffer_size=20), epochs=[0], num_shards=1)


def test_bad_input_is_a_state_error(path: str, tmp_path: Path) -> None:
    other = tmp_path / "web.jsonl"
    other.write_text(Path(path).read_text())
    with loader_of(make(str(other)), 0) as loader:
        list(islice(loader, 300))
        state = loader.state_dict()
    other.write_text("".join(Path(path).read_text().splitlines(keepends=True)[:900]))
    with loader_of(make(str(other)), 0) as loader, pytest.raises(StateError, match="web"):
        loader.load_state_dict(state)
        list(loader)


FUNCTIONS: list[Callable[[Any], Any]] = [lambda document: document]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_behind_a_function_of_the_users_the_items_are_saved(path: str, fn: Callable[[Any], Any]) -> None:
    """It may draw, or count: what it gives again is another question than what a file gives again."""
    node = JsonlReader(path).map(fn).shuffle(buffer_size=200)
    assert len(_state_of(node)["payload"]) > 200 * 7000
    assert len(_state_of(JsonlReader(path).shuffle(buffer_size=200))["payload"]) < 20_000
    held = IterableWrapper([{"id": n} for n in range(300)]).shuffle(buffer_size=200)  # by index: positions, as ever
    assert len(_state_of(held)["payload"]) < 20_000


def _state_of(node: IterDataPipe[Any]) -> dict[str, Any]:
    with DataLoader2(node) as loader:
        list(islice(loader, 50))
        return loader.state_dict()


@pytest.mark.parametrize("large_first", [True, False])
def test_L2_L5_items_that_become_large_or_small_on_the_way(tmp_path: Path, large_first: bool) -> None:
    count = 1200
    path = tmp_path / "mixed.jsonl"
    sizes = [7000 if (number < count // 2) is large_first else 1 for number in range(count)]
    path.write_text("".join(json.dumps({"id": n, "text": ["x" * size]}) + "\n" for n, size in enumerate(sizes)))
    (expected,) = epochs_of(make(str(path)), 1)
    assert sorted(expected) == list(range(count))
    for cut in (20, 330, 600, 700, 840, 1100):
        with loader_of(make(str(path)), 0) as loader:
            running = iter(loader)
            assert list(islice(running, cut)) == expected[:cut]
            state = loader.state_dict()
            if cut == (330 if large_first else 1100):  # at the position itself: the last snapshot may be of any time
                assert len(loader.state_dict(exact=True)["payload"]) < 200 * 7000 * SHARDS / 4
        with loader_of(make(str(path)), 2) as loader:
            loader.load_state_dict(state)
            more = list(islice(loader, 30))
            state = loader.state_dict()
        with loader_of(make(str(path)), 0) as loader:
            loader.load_state_dict(state)
            assert more + list(loader) == expected[cut:]
