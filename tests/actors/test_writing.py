"""``write_shards`` on Ray actors, from a list that they map: an actor that is killed changes nothing."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

from reading_services import RayReadingService, RayWorkers
from torchpipe import InProcessReadingService, shared_list, write_shards
from torchpipe.iter import IterableWrapper


def drawn(row: tuple[str, int], driver: int, once: Path) -> dict[str, Any]:
    """Kills the first actor that comes to row 17."""
    if row[1] == 17 and os.getpid() != driver and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"path": row[0], "drawn": random.random()}


def test_L4_shards_and_shared_lists_survive_an_actor(tmp_path: Path) -> None:
    rows = [(f"/data/{number}", number) for number in range(40)]

    def written(name: str, items: Any, service: Any) -> dict[str, bytes]:
        fn = partial(drawn, driver=os.getpid(), once=tmp_path / "once")
        graph = IterableWrapper(items).shuffle(buffer_size=7).sharding_filter().map(fn)
        done = write_shards(graph, tmp_path / name / "out-{}.jsonl", max_samples=16, reading_service=service)
        return {os.path.basename(path): Path(path).read_bytes() for path in done.paths}

    wanted = written("here", rows, InProcessReadingService(num_shards=2))
    for name, items in (("mapped", shared_list(rows)), ("in a file", shared_list(rows, path=tmp_path / "rows.list"))):
        (tmp_path / "once").unlink(missing_ok=True)
        assert (
            written(name, items, RayReadingService(2, num_shards=2, worker_method=RayWorkers(num_cpus=0.5))) == wanted
        )
        assert (tmp_path / "once").exists()
