"""Figures, a watch and a page of each rank, under services that divide the stream and execute it in process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from reading_services import DistributedReadingService, SequentialReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.observe.text import stats_to_dict

def bad_at_5(number):
    if number == 5:
        raise ValueError("five")
    return bytes(number)

folder, rank, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store-{name}", rank=rank, world_size=2)
service = DistributedReadingService(uneven="pad")
if name == "sequential":
    service = SequentialReadingService(service)
graph = IterableWrapper(range(41)).sharding_filter().map(bad_at_5).on_error("skip")
told = []
with DataLoader2(graph, reading_service=service) as loader:
    loader.measuring = True
    told.append(stats_to_dict(loader.stats()))
    with loader.watch(every_s=0.05) as watch:
        for epoch in range(2):
            print(len(list(loader)))
            told.append(stats_to_dict(loader.stats()))
    loader.report(folder / f"{name}-{rank}.html")
told.append(stats_to_dict(loader.stats()))
(folder / f"{name}-{rank}.json").write_text(json.dumps(told))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("name", ["distributed", "sequential"])
def test_every_rank_sees_its_own_part(name: str, warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    commands = [[str(script), str(tmp_path), str(rank), name] for rank in range(2)]
    ranks = warm.run_together(commands, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert [done.returncode for done in ranks] == [0, 0], ranks
    for rank, done in enumerate(ranks):
        out, err = done.stdout, done.stderr
        assert out.split()[-2:] == ["21", "21"]  # after what gloo may say; the shorter one is padded
        lines = [line for line in err.splitlines() if line.startswith("torchpipe: ")]
        assert len(lines) == 1, err  # at the watch's end
        assert lines[0].startswith("torchpipe: epoch 1, 21 items")
        new, first, second, closed = json.loads((tmp_path / f"{name}-{rank}.json").read_text())
        assert (new["state"], first["state"], second["state"], closed["state"]) == ("new", *["finished"] * 3)
        assert (first["epoch"], second["epoch"], first["delivered"], second["delivered"]) == (0, 1, 21, 21)
        assert [node["name"] for node in first["nodes"]] == [
            "IterableWrapper",
            "ShardingFilter",
            "Mapper(bad_at_5)",
            "OnError",
        ]
        made: dict[str, Any] = first["nodes"][2]
        numbers = [number for number in range(rank, 41, 2) if number != 5]
        assert made["items"] == len(numbers)
        assert made["skipped"] == (1 if rank else 0)
        assert [event["error"] for event in first["events"]] == ["ValueError: five"] * rank
        assert len(second["events"]) == 2 * rank
        assert made["bytes"] == pytest.approx(sum(numbers), rel=0.3)
        page = (tmp_path / f"{name}-{rank}.html").read_text()
        assert "Mapper(bad_at_5)" in page
        assert "main section" not in second["advice"]["sentence"]  # in which there is nothing
        assert ("left out an item: ValueError: five" in page) is bool(rank)
