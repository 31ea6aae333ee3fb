"""``DistributedReadingService`` with real processes, which talk through gloo; what they do is in ``rank_script``.

Each group of processes starts once and plays several scenarios; the tests look at what came of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from reading_services import ReadingServiceInterface
from tests.services import rank_script
from tests.services.ranks import FixedRank
from tests.warm import Warm
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.state import merge

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")

ROOT = Path(__file__).parents[2]
Results = dict[str, list[Any]]
Start = Callable[..., tuple[Results, list[int]]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where groups leave states for each other."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, shared: Path, warm: Warm) -> Start:
    """Plays scenarios in a group of processes. Returns their results, in the order of ranks, and the exit codes."""
    return starting("tests.services.rank_script", tmp_path_factory, shared, warm)


def starting(script: str, tmp_path_factory: pytest.TempPathFactory, shared: Path, warm: Warm) -> Start:
    """The same for the scenarios of another module."""

    def run(world_size: int, *scenarios: str) -> tuple[Results, list[int]]:
        folder = tmp_path_factory.mktemp("ranks")
        commands = [["-m", script, str(folder), str(rank), str(world_size), *scenarios] for rank in range(world_size)]
        ended = warm.run_together(commands, cwd=ROOT, env=os.environ | {"RANKS_SHARED": str(shared)})
        said = "\n".join((one.stdout + one.stderr)[-3000:] for one in ended)
        codes = [one.returncode for one in ended]
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
        "left_out",
        "in_a_handler",
        "different_positions",
        "graphs_of_torch",
        "left_behind",
        "total",
        "loader",
        "a_rank_stops",
    )[0]


@pytest.fixture(scope="module")
def four(start: Start, two: Results) -> Results:
    """After ``two``, whose states it loads."""
    return start(4, "total", "loader", "resume_total", "resume_loader", "unlike", "alone_in_state_dict", "destroyed")[0]


@pytest.fixture(scope="module")
def three(start: Start, four: Results) -> Results:
    """After the others, whose states it loads."""
    return start(3, "alone", "uneven", "resume_total", "resume_loader")[0]


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


@pytest.mark.nightly
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


def test_L7_the_state_of_all_in_a_signal_handler_is_refused_and_hangs_nobody(two: Results) -> None:
    for rank, (items, errors, reentered, told, after) in enumerate(two["in_a_handler"]):
        assert items == list(range(rank, 24, 2))
        assert len(errors) == (2 if rank == 0 else 0)
        for error in errors:
            assert error.startswith(
                "RuntimeError: state_dict() was called while next() is at work, by a signal handler"
            )
        if rank == 0:
            assert re.match(
                r"RuntimeError: this rank is in state_dict.* while it is telling the other ranks", reentered
            )
        assert told == ["told", "told"]
        assert after == [0, 1]


def test_L7_what_uneven_parts_leave_out_is_told(two: Results) -> None:
    ranks = two["left_out"]
    for rank, result in enumerate(ranks):
        for name, steps in (("files", 24), ("files with workers", 24), ("files without a total", 52)):
            found = result[name]
            assert found["epochs"] == [steps, steps]
            assert 0 < found["left"] <= 132 - 2 * steps
            (event,) = found["events"]
            assert re.search(rf"the epoch ended with rank 0.*left out (at least )?{found['left']} items", event)
            assert len(found["told"]) == (rank == 0), "once, by one of the ranks"
        assert result["files"]["left"] == ranks[0]["files"]["left"]
        assert "rank 0 (shard 0)" in result["files"]["events"][0]
        for name, steps, left in (("rows", 64, 4), ("rows without a total", 66, 0), ("sized", 20, 1)):
            found = result[name]
            assert (found["epochs"], found["left"], found["told"]) == ([steps, steps], left, [])
    told = ranks[0]["files"]["told"][0]
    for way_out in ("sharding_filter() stands behind what yields rows", 'uneven="pad"', '"raise"', "left_over"):
        assert way_out in told


def test_L7_a_rank_or_shard_without_items_is_an_error_at_the_beginning(two: Results) -> None:
    for rank, result in enumerate(two["left_out"]):
        shards = result["empty shards"]
        assert shards["epochs"] == result["empty rank"]["epochs"] == []
        own = ", ".join(str(shard) for shard in range(8 + rank, 24, 2))
        assert f"RankError: shard {own} has no item at all" in shards["error"]
        assert "divided among 24 shards" in shards["error"]
        assert "RankError: rank 1 has no item at all" in result["empty rank"]["error"]
        assert (result["nothing"]["epochs"], result["nothing"]["error"]) == ([0, 0], "")


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
    assert other["waited_s"] < rank_script.TIMEOUT_S


def test_a_rank_that_is_killed_does_not_hang_the_others(start: Start) -> None:
    results, codes = start(3, "a_rank_is_killed")
    assert codes[0] == -signal.SIGKILL
    for other in results["a_rank_is_killed"][1:]:
        assert other["count"] == 7
        assert other["error"].startswith("RankError")
        assert other["waited_s"] < rank_script.TIMEOUT_S


# -- one stream and one state for any number of ranks ----------------------------------------------------------


def _rounds(name: str) -> list[str]:
    """The stream of all shards, as far as each of them has an item."""
    graph, _ = rank_script.TOTALS[name]
    streams = []
    for shard in range(rank_script.TOTAL):
        streams += _in_process(FixedRank(shard, rank_script.TOTAL, rank_script.TOTAL), graph(), epochs=1)
    assert len({len(stream) for stream in streams}) > 1, "the test needs uneven shards"
    return [item for items in zip(*streams) for item in items]


@pytest.mark.parametrize("name", rank_script.TOTALS)
def test_L1_any_number_of_ranks_has_the_same_stream(two: Results, four: Results, name: str) -> None:
    whole = _rounds(name)
    for ranks in (two["total"], four["total"]):
        streams = [result[name]["items"] for result in ranks]
        assert len({len(items) for items in streams}) == 1
        assert [item for step in zip(*streams) for item in step] == whole


@pytest.mark.parametrize("name", rank_script.TOTALS)
def test_L3_any_number_of_ranks_takes_up_the_one_state(four: Results, three: Results, start: Start, name: str) -> None:
    whole = _rounds(name)
    graph, _ = rank_script.TOTALS[name]
    (everything,) = _in_process(InProcessReadingService(num_shards=rank_script.TOTAL), graph(), epochs=1)
    for world, ranks in ((4, four["resume_total"]), (3, three["resume_total"])):
        for saved in (2, 4):
            done = saved * rank_script.STEPS
            results = [result[f"{name}.{saved}.0"] for result in ranks]
            expected = [
                [item for place, item in enumerate(whole) if place >= done and place % world == rank]
                for rank in range(world)
            ]
            most = min(map(len, expected))
            assert [result["drop"] for result in results] == [items[:most] for items in expected]
            padded = [result["pad"] for result in results]
            assert len({len(items) for items in padded}) == 1
            assert {item for items in padded for item in items} == set(everything[done:])


@pytest.mark.parametrize("name", rank_script.TOTALS)
def test_L3_the_one_state_is_the_same_on_all_ranks_and_of_files(four: Results, shared: Path, name: str) -> None:
    graph, _ = rank_script.TOTALS[name]
    (everything,) = _in_process(InProcessReadingService(num_shards=rank_script.TOTAL), graph(), epochs=1)
    for world in (2, 4):
        states = [torch.load(shared / f"{name}.{world}.{rank}", weights_only=True) for rank in range(world)]
        assert all(state["all"] == states[0]["all"] for state in states)
        assert merge([state["own"] for state in states]) == states[0]["all"]
        with DataLoader2(graph()) as loader:  # a single process, without ranks
            loader.load_state_dict(states[0]["all"])
            assert [repr(item) for item in loader] == everything[world * rank_script.STEPS :]


@pytest.mark.parametrize("name", rank_script.LOADERS)
def test_ranks_are_dealt_the_batches_of_one_process(two: Results, four: Results, name: str) -> None:
    pads = name == "padded"
    count = 13 if rank_script.LOADERS[name].get("drop_last") else 14
    streams: list[list[list[Any]]] = [[], []]
    for world, ranks in ((2, two["loader"]), (4, four["loader"])):
        results = [result[name] for result in ranks]
        assert len({json.dumps(result["state"]) for result in results}) == 1, "the state is not one for all ranks"
        steps = -(-count // world) if pads else count // world
        for epoch in range(2):
            batches = [result["epochs"][epoch] for result in results]
            assert {len(items) for items in batches} == {steps} == {result["length"] for result in results}
            dealt = [batch for step in zip(*batches) for batch in step]
            for rank in range(count - (steps - 1) * world, world) if pads else ():
                assert batches[rank][-1] == batches[rank][-2], "a rank without a batch repeats its own"
            streams[epoch].append(dealt[: min(count, len(dealt))])
        assert all(result["again"] and result["sampled"] for result in results)
    for by_two, by_four in streams:
        most = min(len(by_two), len(by_four))
        assert by_two[:most] == by_four[:most], "the batches, augmentation included, depend on the number of ranks"
        indices = [row[0] for batch in by_two for row in batch]
        assert len(set(indices)) == len(indices) >= 4 * (count // 4)
    if rank_script.LOADERS[name].get("shuffle", True):
        assert streams[0] != streams[1]


@pytest.mark.parametrize("name", rank_script.LOADERS)
def test_any_number_of_ranks_goes_on_with_the_batches(two: Results, four: Results, three: Results, name: str) -> None:
    ranks_of_two = [result[name] for result in two["loader"]]
    pads = name == "padded"
    count = 13 if rank_script.LOADERS[name].get("drop_last") else 14
    whole = [
        [batch for step in zip(*(result["epochs"][epoch] for result in ranks_of_two)) for batch in step][:count]
        for epoch in range(2)
    ]
    for world, ranks in ((4, four["resume_loader"]), (3, three["resume_loader"])):
        for path in ranks[0]:
            if not path.startswith(f"loader {name}."):
                continue
            saved = int(path.split(".")[-2])
            done = saved * rank_script.STEPS
            results = [result[path] for result in ranks]
            assert all(result["follows"] for result in results)
            for epoch, first in ((0, done), (1, 0)):
                left = count - first
                steps = -(-left // world) if pads else left // world
                batches = [result["rest"][epoch] for result in results]
                assert {len(items) for items in batches} == {steps}
                dealt = [batch for step in zip(*batches) for batch in step]
                assert dealt[: min(left, len(dealt), len(whole[epoch]) - first)] == whole[epoch][first:][: len(dealt)]
            before = {row[0] for batch in whole[0][:done] for row in batch}
            others = [row[0] for result in results for batch in result["others"] for row in batch]
            assert not before & set(others), "samples come again in batches of another size"
            if pads:
                assert before | set(others) == set(range(53))


def test_ranks_that_are_not_alike_are_told_at_once(four: Results) -> None:
    expected = {
        "seeds": r"seed differs \(rank 0: 5, rank 1: 6, rank 2: 7, rank 3: 8\)",
        "graphs": r"(?s)different graphs: rank 0 has fingerprint \w+, rank 1 \w+.*range\(0, 48\).*range\(0, 49\)",
        "files": r"different files with FilePieces: rank 0 4 files .*, rank 1 5 files .*give all ranks the same list",
        "indexes": r"cut the same files at other places with FilePieces: .*in 4 pieces.*in 5 pieces.*An index beside",
        "state": r'rank 0 is in state_dict\(states="all"\), rank 1 takes an item',
        "a rank without state": r"delivered differs \(rank 0: 1, rank 1: 0",
        "own and of all": r"loaded state of all ranks differs \(rank 0: None, rank 1: 'state \w{8}'",
        "other states": r"delivered differs \(rank 0: 2, rank 1: 1",
        "batch sizes": r"batch_size differs \(rank 0: 4, rank 1: 5",
        "another split": "what the dataset holds differs",
        "another order": "what the dataset holds differs",
        "another split in a graph": "what the graph's data hold differs",
        "another order in a graph": "what the graph's data hold differs",
        "uneven batches": "14 batches do not divide among 4 ranks",
    }
    for result in four["unlike"]:
        assert result["no seed yet"]["error"] == result["a device of its own"]["error"] == ""
        for name, pattern in expected.items():
            assert re.search(pattern, result[name]["error"]), (name, result[name]["error"])
            assert result[name]["error"].startswith("RankError")


def test_a_rank_alone_in_a_collective_is_told_who_is_missing(four: Results) -> None:
    told = four["alone_in_state_dict"][0]
    assert "rank 0 of 4 has no answer from rank 1, 2, 3 (timeout 2 s)" in told["error"]
    assert told["waited_s"] < rank_script.TIMEOUT_S


def test_a_loader_goes_on_without_the_process_group_that_it_was_made_in(four: Results) -> None:
    assert four["destroyed"] == [True] * 4
