"""The benchmarks' own checks: a wrong item is caught, a figure is written only for right data, a run prints JSON."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.balance import METHODS, documents, simulated
from benchmarks.harness import rounds, summary
from benchmarks.harness.stream import WrongData, check_pass
from benchmarks.peers._shards import ShardStream, default_collate
from benchmarks.plot import BEGIN, END, ahead, overview, quiet_only, readme_with
from benchmarks.run import constants
from benchmarks.workloads import (
    WORKLOADS,
    p1_small_items,
    p2_dict_batches,
    p2n_numpy_batches,
    p3_images,
    p7_stage_cost,
    scale_item_size,
)

ROOT = Path(__file__).resolve().parents[2]


def _p2() -> dict[str, Any]:
    return default_collate([p2_dict_batches.make(n) for n in range(5_000, 5_032)])


def test_the_checks_accept_what_was_made() -> None:
    assert list(p1_small_items.check(p1_small_items.make(7))) == [7]
    assert list(p2_dict_batches.check(_p2())) == list(range(5_000, 5_032))
    batch = p2n_numpy_batches.collate([p2n_numpy_batches.make(n) for n in range(32)])
    assert list(p2n_numpy_batches.check(batch)) == list(range(32))
    images = torch.stack([p3_images.make(n) for n in range(250, 282)])
    assert Counter(p3_images.check(images)) == p3_images.ids(282) - p3_images.ids(250)


def test_a_wrong_content_is_caught() -> None:
    with pytest.raises(WrongData):
        p1_small_items.check("7")
    batch = _p2()
    batch["x"][31, 15] += 1
    with pytest.raises(WrongData):
        p2_dict_batches.check(batch)
    numpy_batch = p2n_numpy_batches.collate([p2n_numpy_batches.make(n) for n in range(32)])
    numpy_batch["y"][3] = 4
    with pytest.raises(WrongData):
        p2n_numpy_batches.check(numpy_batch)
    images = torch.stack([p3_images.make(n) for n in range(32)])
    images[31, 2, 223, 223] ^= 1
    with pytest.raises(WrongData):
        p3_images.check(images)
    array = scale_item_size.make(100, 1).copy()
    array[99] ^= 1
    with pytest.raises(WrongData):
        scale_item_size.check(100, array)


@pytest.mark.parametrize("items", [[1, 2, 3], [1, 2, 3, 4, 4], [1, 2, 3, 5]], ids=["lost", "repeated", "another"])
def test_lost_and_repeated_samples_are_caught(items: list[int]) -> None:
    with pytest.raises(WrongData, match="lost"):
        check_pass(items, p1_small_items.check, Counter(range(4)))
    check_pass([4, 2, 3, 1], p1_small_items.check, Counter(range(4)))  # in any order


@pytest.mark.parametrize("items", [[0, 1], [0, 1, 2, 3], [0, 2, 1]], ids=["short", "long", "order"])
def test_p7_catches_a_wrong_stream(items: list[int]) -> None:
    with pytest.raises(WrongData):
        p7_stage_cost.check(items, 3)


def test_the_shares_of_a_job_are_its_samples() -> None:
    for size in (0, 10):
        job = p1_small_items.job()
        job = type(job)(count=100, make=p1_small_items.make, shuffle_buffer=size)
        shares = [list(ShardStream(job, shard, 3)) for shard in range(3)]
        assert sorted(itertools.chain(*shares)) == list(range(1, 101))
        assert (shares[0] == sorted(shares[0])) == (size == 0)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_says_what_the_runner_needs(workload: str) -> None:
    about = constants(workload)
    assert about["TITLE"].startswith("P")
    assert set(about["PEERS"]) <= set(rounds.PEERS)


def test_each_peer_begins_in_its_turn() -> None:
    peers = ["a", "b", "c"]
    assert [rounds.in_turn(peers, number) for number in range(3)] == [["a", "b", "c"], ["a", "c", "b"], ["c", "a", "b"]]


def test_busy_rounds_count_only_if_there_is_no_quiet_one() -> None:
    def result(rate: float, others: float) -> dict[str, Any]:
        return {"workload": "p1", "peer": "torch", "samples_per_s": rate, "others": others, "round": 0}

    (entry,) = summary.summarise([result(1.0, 0.5), result(4.0, 0.0), result(6.0, 0.02)])
    assert entry["figures"]["samples_per_s"] == {"median": 5.0, "min": 4.0, "max": 6.0}
    assert (entry["rounds"], entry["busy_rounds"], entry["all_busy"]) == (2, 1, False)
    (entry,) = summary.summarise([result(1.0, 0.5), {"workload": "p1", "peer": "torch", "error": "broke"}])
    assert entry["figures"]["samples_per_s"]["median"] == 1.0
    assert (entry["error"], entry["all_busy"]) == ("broke", True)
    refused = quiet_only(entry)
    assert (refused["figures"], refused["error"]) == ({}, "other programs took 50% of the machine in all rounds")


def test_the_overview_has_the_best_other_loader() -> None:
    def entry(workload: str, peer: str, unit: str, median: float) -> dict[str, Any]:
        return {"workload": workload, "peer": peer, "figures": {unit: {"median": median}}}

    document = {
        "about": {
            "p1": {"TITLE": "P1 small", "UNIT": "samples_per_s"},
            "p7": {"TITLE": "P7 stage", "UNIT": "ns_per_stage"},
            "p8": {"TITLE": "P8 device", "UNIT": "step_ratio"},
            "p20": {"TITLE": "P20 measuring", "UNIT": "p1_percent"},  # which no other loader runs
        },
        "summary": [
            *(entry("p1", peer, "samples_per_s", n) for peer, n in (("torchpipe", 9e3), ("torch", 4e3), ("spdl", 7e3))),
            entry("p1", "nodes", "samples_per_s", 5e3),
            *(entry("p7", peer, "ns_per_stage", n) for peer, n in (("torchpipe", 40.0), ("nodes", 350.0))),
            *(entry("p7", peer, "ns_per_stage", n) for peer, n in (("grain", 340.0), ("builtin_map", 30.0))),
            {"workload": "p8", "peer": "xla_mp_device", "figures": {}},
            entry("p20", "torchpipe", "p1_percent", -0.6),
        ],
    }
    assert overview(document).splitlines()[2:] == [
        "| P1 small (thousand samples/s) | **9** | 4 | 7 (SPDL) |",
        "| P7 stage (ns a stage and item) | **40** |  | 340 (grain) |",
        "| P8 device (x the ideal step) |  |  |  |",
    ]


def test_the_tables_replace_only_what_is_between_the_markers() -> None:
    text = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    assert readme_with(text, "new") == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    with pytest.raises(ValueError, match="once each"):
        readme_with("no markers", "new")


def test_a_tiny_run_writes_figures_of_both_peers(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, "benchmarks/run.py", "p1", "--peers", "torchpipe,torch", "--rounds", "1"]
    command += ["--seconds", "0.1", "--python", sys.executable, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    document = json.loads(out.read_text())
    assert [entry["peer"] for entry in document["summary"]] == ["torchpipe", "torch"]
    for entry in document["summary"]:
        assert entry["figures"]["samples_per_s"]["median"] > 0, entry
        assert entry["figures"]["cpu_s"]["median"] > 0, entry
        assert entry["figures"]["pss_mb"]["median"] > 1, entry


def test_a_loader_that_loses_an_item_gets_no_figure() -> None:
    class Losing:
        def __init__(self, job: Any) -> None:
            self.items = [n + 1 for n in range(job.count) if n != 17]

        def __iter__(self) -> Any:
            return iter(self.items)

    with pytest.raises(WrongData, match=r"1 of 5000 samples were lost \(\[17\]"):
        p1_small_items.run(SimpleNamespace(Loader=Losing), 0.01)  # type: ignore[arg-type]


def test_the_readme_says_where_a_peer_is_ahead() -> None:
    def entry(peer: str, figure: float) -> dict[str, Any]:
        return {"peer": peer, "figures": {"samples_per_s": {"median": figure}, "memory_mb": {"median": figure}}}

    entries = [entry("torchpipe", 10.0), entry("torch", 5.0), entry("nodes", 12.0), entry("spdl", 40.0)]
    assert ahead("p1", {"UNIT": "samples_per_s"}, entries) == "- P1: SPDL 4 x, torchdata.nodes by 20%"
    assert ahead("p9", {"UNIT": "memory_mb"}, entries) == "- P9: torch DataLoader 2 x"
    assert ahead("p1", {"UNIT": "samples_per_s"}, entries[:2]) == "- P1: none is ahead"
    assert ahead("p1", {"UNIT": "samples_per_s"}, entries[:1]) == ""  # nobody to be compared with


def test_every_way_to_balance_gives_each_sample_once() -> None:
    lengths = documents(8 * 4 * 8)
    assert 0 < lengths.min() < lengths.max() == 8192
    for name, method in METHODS.items():
        found = method(lengths, 8, 4)
        assert found.shape == (8, 4, 8), name
        assert sorted(found.ravel().tolist()) == list(range(len(lengths))), name
        slowest, longest, _ = simulated(method, lengths, 8, 4)
        assert 1 <= slowest < 2
        assert longest >= 1
