"""``DistributedReadingService`` with real processes, which talk through gloo; what they do is in ``rank_script``.

Each group of processes starts once and plays several scenarios; the tests look at what came of them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.services import rank_script
from tests.services.ranks import FixedRank
from torchpipe import DataLoader2, InProcessReadingService, ReadingServiceInterface

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")

ROOT = Path(__file__).parents[2]
Results = dict[str, list[Any]]
Start = Callable[..., tuple[Results, list[int]]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Plays scenarios in a group of processes. Returns their results, in the order of ranks, and the exit codes."""

    def run(world_size: int, *scenarios: str) -> tuple[Results, list[int]]:
        folder = tmp_path_factory.mktemp("ranks")
        processes = []
        for rank in range(world_size):
            command = [sys.executable, "-m", "tests.services.rank_script", str(folder), str(rank), str(world_size)]
            with open(folder / f"{rank}.log", "w") as log:
                processes.append(
                    subprocess.Popen([*command, *scenarios], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
                )
        try:
            codes = [process.wait() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        said = "\n".join((folder / f"{rank}.log").read_text()[-3000:] for rank in range(world_size))
        assert all(code in (0, -signal.SIGKILL) for code in codes), said
        return {
            name: [_read(folder / f"{name}.{rank}.json") for rank in range(world_size)] for name in scenarios
        }, codes

    return run


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture(scope="module")
def two(start: Start) -> Results:
    return start(
        2,
        "alone",
        "with_workers",
        "shared_seed",
        "resume",
        "uneven",
        "different_positions",
        "graphs_of_torch",
        "left_behind",
        "a_rank_stops",
    )[0]


@pytest.fixture(scope="module")
def three(start: Start) -> Results:
    return start(3, "alone", "uneven")[0]


def _in_process(service: ReadingServiceInterface, graph: Any, seed: int = 5, epochs: int = 2) -> list[list[str]]:
    with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(seed)
        return [[repr(item) for item in loader] for _ in range(epochs)]


def test_data_loader_divides_a_graph_among_ranks_as_torchs_does(two: Results) -> None:
    for rank, found in enumerate(two["graphs_of_torch"]):
        for workers in ("0", "2"):
            epochs, resumed = found[workers]
            assert resumed
            assert epochs[0] != epochs[1]
            assert len(epochs[0]) == 12
        assert f"[{rank}, 2]" in found["other"]
        assert found["undivided"] == [*range(24)]
        assert "each of 2 ranks" in found["warned"][0]
    for workers in ("0", "2"):
        ours, theirs = (found[workers][0] for found in two["graphs_of_torch"])
        assert [sorted(one + other) for one, other in zip(ours, theirs)] == [[*range(24)]] * 2


def test_ranks_have_the_stream_of_all_shards_between_them(two: Results, three: Results) -> None:
    for results in (two, three):
        ranks = results["alone"]
        graph = rank_script.random_graph()
        oracle = _in_process(InProcessReadingService(num_shards=len(ranks)), graph)
        for rank, result in enumerate(ranks):
            assert result["epochs"] == [epoch[rank :: len(ranks)] for epoch in oracle]
            assert result["length"] == 48 // len(ranks)
            assert f"rank {rank} of {len(ranks)}, uneven ranks: drop" in result["plan"]


def test_ranks_with_workers_too(two: Results) -> None:
    oracle = _in_process(InProcessReadingService(num_shards=4), rank_script.random_graph())
    for rank, epochs in enumerate(two["with_workers"]):
        assert epochs == [epoch[rank::2] for epoch in oracle]


def test_the_seed_is_that_of_rank_0(two: Results) -> None:
    (oracle,) = _in_process(InProcessReadingService(num_shards=2), rank_script.random_graph(), seed=11, epochs=1)
    for rank, (items, seed) in enumerate(two["shared_seed"]):
        assert items == oracle[rank::2]
        assert seed == 11


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_every_rank_resumes_exactly(two: Results, uneven: str) -> None:
    own = []
    for rank in range(2):
        service = InProcessReadingService(num_shards=2)
        place = FixedRank(rank, 2)
        place._executing = service
        own.append(_in_process(place, rank_script.sample_graph(41), epochs=1)[0])
    count = (min if uneven == "drop" else max)(len(items) for items in own)
    assert len(own[0]) != len(own[1]), "the test needs uneven ranks"
    for rank, results in enumerate(two["resume"]):
        result = results[uneven]
        assert result["items"] == (own[rank] + own[rank][-1:] * count)[:count]
        assert result["rests"]
        assert all(result["rests"].values()), result["rests"]


def test_uneven_ranks_end_together(two: Results, three: Results) -> None:
    for results in (two, three):
        world = len(results["uneven"])
        own = [[n for n in range(rank, 22, world) if n % 2 == 0 or n < 12] for rank in range(world)]
        counts = [len(items) for items in own]
        assert len(set(counts)) > 1
        for rank, result in enumerate(results["uneven"]):
            for every in (1, 4):
                assert result[f"drop {every}"] == own[rank][: min(counts)]
                assert result[f"pad {every}"] == own[rank] + own[rank][-1:] * (max(counts) - counts[rank])
                assert result[f"raise {every}"] == [*own[rank][: min(counts)], "RankError"]


def test_ranks_at_different_positions_are_refused(two: Results) -> None:
    for error in two["different_positions"]:
        assert error.startswith("RankError: the ranks do not begin the same epoch: delivered differs")
        assert "rank 0: 3, rank 1: 0" in error


def test_nothing_is_left_behind_of_the_groups(two: Results) -> None:
    for before, after, threads in two["left_behind"]:
        assert after[0] <= before[0], threads
        assert after[1] <= before[1] + 2


def test_a_rank_that_stops_does_not_hang_the_others(two: Results) -> None:
    _, other = two["a_rank_stops"]
    assert other["count"] == 7
    assert other["error"].startswith("RankError: rank 1 of 2 has no answer from rank 0 (timeout 2 s)")
    assert other["waited_s"] < rank_script.SHORT_S + 3


def test_a_rank_that_is_killed_does_not_hang_the_others(start: Start) -> None:
    results, codes = start(3, "a_rank_is_killed")
    assert codes[0] == -signal.SIGKILL
    for other in results["a_rank_is_killed"][1:]:
        assert other["count"] == 7
        assert other["error"].startswith("RankError")
        assert other["waited_s"] < rank_script.SHORT_S + 3
