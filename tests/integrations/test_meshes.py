"""Meshes of data and tensor parallelism, of real processes: peers have the same batches, and each sample comes once.

What the processes do is in ``mesh_script``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.integrations import mesh_script
from tests.warm import Warm

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")

ROOT = Path(__file__).parents[2]
Play = Callable[..., dict[str, list[Any]]]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Play:
    """Plays scenarios on a mesh. Returns their results, in the order of ranks: rank ``d * tp + t`` is at (d, t)."""

    def run(dp: int, tp: int, *scenarios: str, folder: Path | None = None) -> dict[str, list[Any]]:
        folder = tmp_path_factory.mktemp("mesh") if folder is None else folder
        commands = [
            ["-m", "tests.integrations.mesh_script", str(folder), str(rank), str(dp), str(tp), *scenarios]
            for rank in range(dp * tp)
        ]
        ended = warm.run_together(commands, cwd=ROOT, env=os.environ | {"MESH_FOLDER": str(folder)})
        assert all(one.returncode == 0 for one in ended), "\n".join((one.stdout + one.stderr)[-3000:] for one in ended)
        return {
            name: [json.loads((folder / f"{name}.{dp}x{tp}.{rank}.json").read_text()) for rank in range(dp * tp)]
            for name in scenarios
        }

    return run


@pytest.fixture(scope="module")
def square(play: Play) -> dict[str, list[Any]]:
    return play(2, 2, "batches", "graphs", "foretold", "refused", "kept", "places")


@pytest.mark.parametrize("name", ["batches", "graphs"])
def test_peers_have_the_same_batches_and_each_sample_comes_once(square: dict[str, list[Any]], name: str) -> None:
    ranks = square[name]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    for first, second in zip(ranks[0], ranks[2], strict=True):
        assert first[0] != first[1], "epochs are the same"
        for epoch in range(2):
            seen = sorted(int(sample[0]) for batch in first[epoch] + second[epoch] for sample in batch)
            assert seen == [*range(mesh_script.SAMPLES)]


def test_a_state_from_before_the_first_item_has_the_seed_of_the_job(square: dict[str, list[Any]]) -> None:
    assert square["foretold"] == [True] * 4


def test_data_that_is_not_divided_is_read_whole_by_all_peers(play: Play) -> None:
    for ranks in play(1, 2, "batches", "graphs").values():
        assert ranks[0] == ranks[1]
        for epochs in ranks[0]:
            for epoch in epochs:
                assert sorted(int(sample[0]) for batch in epoch for sample in batch) == [*range(mesh_script.SAMPLES)]


def test_what_names_no_ranks_is_refused(square: dict[str, list[Any]]) -> None:
    for rank, (errors, kept) in enumerate(square["refused"]):
        assert kept
        for given in ("mesh", "text"):
            assert "distributed= got" in errors[given][0]
            assert "DistributedReadingService got" in errors[given][1]
        for error in errors["mesh"]:
            assert "a mesh of 2 dimensions (dp, tp): give the slice" in error
            assert 'mesh["dp"]' in error
        for error in (*errors["text"], errors["number"][0], errors["none"][0]):
            assert error.startswith("TypeError: ")
            assert "give the ranks that divide the data" in error
        for error in errors["others"]:
            assert (f"rank {rank} is not in" in error) == (rank > 0)
        assert "divides among 2 ranks, and distributed= names other ones" in errors["sampler"][0]


def test_all_ranks_are_told_what_one_cannot_load(square: dict[str, list[Any]]) -> None:
    shards = mesh_script.SHARDS
    for rank, (names, (missing, mixed), rest) in enumerate(square["kept"]):
        assert names == [f"shard {shard} of {shards}" for shard in range(rank // 2, shards, 2)]
        assert f"rank 1 of 2 needs the state of shard 1 of {shards}, and the checkpoint has" in missing
        assert missing.startswith("StateMismatchError" if rank // 2 else "RankError: not all ranks can load")
        assert "the step of ranks differs (1, 2)" in mixed
        assert len(rest) == mesh_script.SAMPLES // 4 - 1


def test_a_place_without_a_mesh_makes_the_same_groups_and_others_are_refused(square: dict[str, list[Any]]) -> None:
    for rank, (members, fitting, others, unequal) in enumerate(square["places"]):
        assert members == [rank % 2, 2 + rank % 2]
        assert fitting == [""] * 5
        for error in others:
            assert (
                f"dp_world_size=2 and this process is dp_rank={rank // 2}, but the loader is rank {rank} of 4" in error
            )
        assert "RankError: the processes do not divide data into equal parts (rank 0: 0 of 3" in unequal


def _trained(play: Play, folder: Path, kind: str, runs: list[tuple[int, int, str, int]]) -> None:
    """Trains on meshes one after the other, each from the other's checkpoint: (data ranks, peers, how to save, steps).

    Peers are equal, each sample comes once, weights are loaded as they were saved.
    """
    seen: list[int] = []
    saved: list[float] = []
    for dp, tp, use, steps in runs:
        ((_, ranks),) = play(dp, tp, f"train:{kind}:{use}:{steps}", folder=folder).items()
        for rank, found in enumerate(ranks):
            assert found["batches"] == ranks[rank - rank % tp]["batches"], f"rank {rank} and its peers"
            assert len(found["batches"]) == steps or not steps
            assert found["norms"][: len(saved)] == pytest.approx(saved)
            assert found.get("epoch", 0) == 0
        seen += [int(sample[0]) for found in ranks[::tp] for batch in found["batches"] for sample in batch]
        saved = ranks[0]["norms"][-1:]
    assert sorted(seen) == [*range(mesh_script.SAMPLES)]


@pytest.mark.parametrize("kind", ["graph", pytest.param("batches", marks=pytest.mark.nightly)])
def test_fsdp_and_tensor_parallelism_go_on_with_fewer_data_ranks(play: Play, tmp_path: Path, kind: str) -> None:
    _trained(play, tmp_path, kind, [(2, 2, "save", 3), (1, 2, "save", 0)])


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["graph", "device", "ordinal", "batches"])
@pytest.mark.parametrize("use", ["save", "async_save"])
def test_four_three_two_data_ranks(play: Play, tmp_path: Path, kind: str, use: str) -> None:
    _trained(play, tmp_path, kind, [(4, 2, use, 2), (3, 2, use, 2), (2, 2, use, 0)])
