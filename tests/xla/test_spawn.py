"""Ordinals, one copy of data for many processes, and pipelines inside the processes and threads that XLA starts."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reading_services import MultiProcessingReadingService, OrdinalReadingService, SequentialReadingService
from tests.warm import Warm
from torchpipe.errors import GraphError, StateMismatchError
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.iter import IterableWrapper
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.testing import check_reading_service, services
from torchpipe.xla.spawn import Ordinal, SharedCopy, ordinal

# -- ordinals ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_an_ordinal_is_as_given_or_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ordinal() == Ordinal(0, 1)
    assert ordinal(2, 5) == Ordinal(2, 5)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ordinal() == Ordinal(3, 4)
    assert ordinal(0, 2) == Ordinal(0, 2)


def test_L7_a_bad_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="RANK='first' and WORLD_SIZE='4'"):
        ordinal()


@pytest.mark.filterwarnings("ignore")
def test_L7_sources_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch.distributed as dist

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert ordinal() == Ordinal(0, 2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")  # knows of no others: does not count
    assert ordinal() == Ordinal(0, 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="torch.distributed says 0 of 2, the environment says 0 of 4"):
        ordinal()


# -- the stream of an ordinal ------------------------------------------------------------------------------------------


def graph(length: int = 23) -> Any:
    return IterableWrapper(range(length)).shuffle().sharding_filter()


def whole_stream(shards: int, epochs: int = 2) -> list[list[int]]:
    with DataLoader2(graph(), reading_service=InProcessReadingService(num_shards=shards)) as loader:
        loader.seed(11)
        return [list(loader) for _ in range(epochs)]


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_L1_the_ordinals_divide_one_stream(world: int, workers: int) -> None:
    whole = whole_stream(world * max(1, workers))
    parts = []
    for rank in range(world):
        service: Any = OrdinalReadingService(11, rank, world)
        if workers:
            service = SequentialReadingService(service, MultiProcessingReadingService(workers, "fork"))
        with DataLoader2(graph(), reading_service=service) as loader:
            parts.append([list(loader) for _ in range(2)])
    for epoch in range(2):
        assert [part[epoch] for part in parts] == [whole[epoch][rank::world] for rank in range(world)]


@pytest.mark.parametrize("cut", [0, 4, 8])
def test_L2_an_ordinal_resumes_exactly(cut: int) -> None:
    def make(seed: int = 11) -> DataLoader2[Any]:
        return DataLoader2(graph(), reading_service=OrdinalReadingService(seed, 1, 3))

    with make() as loader:
        first, second = list(loader), list(loader)
    with make() as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(cut)]
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        assert got + list(loader) == first
        assert list(loader) == second
    if 0 < cut < len(first):
        with make(seed=12) as loader, pytest.raises(StateMismatchError, match="seed 11, this .* has seed 12"):
            loader.load_state_dict(state)
            iter(loader)


def test_the_conformance_kit_holds() -> None:
    check_reading_service(
        lambda shards: SequentialReadingService(
            OrdinalReadingService(services._SEED, 0, 1), InProcessReadingService(num_shards=shards)
        )
    )


def test_L7_a_graph_that_does_not_divide_is_refused() -> None:
    with pytest.raises(GraphError, match="no sharding point"):
        DataLoader2(IterableWrapper(range(3)), reading_service=OrdinalReadingService(1, 0, 2))


# -- one copy ----------------------------------------------------------------------------------------------------------

MIB = 1 << 20


def own_and_mapped(name: str = "torchpipe-shared-copy") -> tuple[int, int]:
    """Bytes of the mappings of that name in this process: pages of its own, written to, and all that it has touched."""
    own = mapped = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = name in line
        elif inside:
            kind, _, rest = line.partition(":")
            own += int(rest.split()[0]) * 1024 if kind == "Anonymous" else 0
            mapped += int(rest.split()[0]) * 1024 if kind == "Rss" else 0
    return own, mapped


def look(copy: SharedCopy[Any], queue: Any) -> None:
    torch.set_num_threads(1)  # a forked child has none of the pool's threads
    value = copy.get()
    total = float(value["tensor"].sum()) + float(value["array"].sum())
    before = own_and_mapped()
    value["tensor"].zero_()  # of this process alone
    after = own_and_mapped()
    queue.put((total, before, after, value["fn"](3)))


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_share_one_copy_until_they_write(method: str) -> None:
    size = 8 * MIB
    copy = SharedCopy(
        {
            "tensor": torch.ones(size // 4),
            "array": np.ones(size // 8),
            "fn": lambda number: number + 1,
        }
    )
    value = copy.get()
    assert copy.get() is value
    assert copy.shared_bytes >= 2 * size
    context: Any = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    for _ in range(2):
        child = context.Process(target=look, args=(copy, queue))
        child.start()
        found, before, after, called = queue.get()
        child.join()
        assert (child.exitcode, found, called) == (0, size // 4 + size // 8, 4)
        assert before[1] >= 2 * size
        assert before[0] < MIB  # it has read all, and has nothing of its own
        assert size <= after[0] < size + MIB  # but what it wrote to
        assert value["tensor"][::4096].tolist() == [1.0] * (size // 4 // 4096)
    queue.close()
    copy.close()
    copy.close()
    with pytest.raises(ValueError, match="was closed"):
        multiprocessing.get_context("spawn").Process(target=look, args=(copy, None)).start()


def test_what_is_in_a_copy_is_equal() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

    module = Module()
    node = IterableWrapper(range(5)).map(lambda number: number * 2)
    one = torch.randn(4, 3).to(torch.bfloat16)
    values = (
        module,
        node,
        one,
        [one, one.t()],
        torch.empty(0, 2),
        torch.ones(2, requires_grad=True),
        np.arange(3)[::2],
    )
    copies = SharedCopy(values).get()
    for name, parameter in copies[0].named_parameters():
        assert type(parameter) is torch.nn.Parameter
        assert torch.equal(parameter, dict(module.named_parameters())[name])
    torch.optim.SGD(copies[0].parameters(), lr=1.0)
    copies[0].layer(torch.ones(1, 3)).sum().backward()
    assert list(copies[1]) == list(node)
    assert torch.equal(copies[2], one)
    assert copies[3][0] is copies[2]
    assert torch.equal(copies[3][1], one.t())
    assert copies[4].shape == (0, 2)
    assert copies[5].requires_grad
    assert copies[6].tolist() == [0, 2]


def test_L6_a_copy_that_is_dropped_leaves_nothing() -> None:
    value = SharedCopy(torch.ones(MIB)).get()
    gc.collect()
    assert float(value.sum()) == MIB
    del value
    gc.collect()
    assert own_and_mapped() == (0, 0)


def test_L7_a_copy_that_is_gone_is_said_to_be() -> None:
    import pickle

    copy = SharedCopy([1, 2])
    data = pickle.dumps(copy)
    assert pickle.loads(data).get() == [1, 2]
    received = pickle.loads(data)
    assert pickle.loads(pickle.dumps(received)).get() == [1, 2]  # handed on
    copy.close()
    with pytest.raises(RuntimeError, match=f"SharedCopy of process {os.getpid()} cannot be opened"):
        pickle.loads(data)


# -- under XLA ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spawned(warm_xla: Warm, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``spawned.py`` has written to."""
    folder = tmp_path_factory.mktemp("spawned")
    root = pytestconfig.rootpath
    environment = {**os.environ, "PYTHONPATH": str(root)}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    done = warm_xla.run(["-m", "tests.xla.spawned", str(folder)], cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def facts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(4)]


@pytest.mark.nightly
@pytest.mark.xla
@pytest.mark.timeout(900)
def test_each_ordinal_of_a_spawn_has_its_share(spawned: Path) -> None:
    from tests.xla.spawned import LENGTH, SEED, graph

    with DataLoader2(graph(torch.arange(LENGTH)), reading_service=InProcessReadingService(num_shards=4)) as loader:
        loader.seed(SEED)
        whole = [int(item) for item in loader]
    found = facts(spawned)
    assert [(item["rank"], item["world_size"], item["index"]) for item in found] == [
        (rank, 4, rank) for rank in range(4)
    ]
    assert len({item["pid"] for item in found}) == 1  # threads
    assert found[0]["pid"] != os.getpid()
    for rank in range(4):
        assert found[rank]["in_process"] == whole[rank::4]
        assert found[rank]["with_a_worker"] == whole[rank::4]


@pytest.mark.xla
@pytest.mark.timeout(900)
def test_ordinals_take_turns_and_an_error_names_its_own(spawned: Path) -> None:
    assert (spawned / "counter").read_text() == str(4 * 25)
    text = (spawned / "error").read_text()
    assert text.startswith("planted in ordinal 2\n")
    assert "torchpipe: raised in ordinal 2, process" in text
