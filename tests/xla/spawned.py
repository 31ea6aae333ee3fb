"""What runs under ``spawn``: not a test module; ``test_spawn.py`` runs it and reads what it writes.

``python -m tests.xla.spawned FOLDER``: on 4 CPU devices, a thread each in one process. Each ordinal reads its share
of a graph twice: in process after ``MpDeviceLoader``, stopped and resumed, and with a worker process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")

import torch

from reading_services import MultiProcessingReadingService, OrdinalReadingService, SequentialReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.xla.spawn import SerialExecutor, SharedCopy, ordinal, spawn

__all__ = ["LENGTH", "SEED", "graph", "main"]

LENGTH, SEED = 48, 5


def graph(rows: Any) -> Any:
    return IterableWrapper(range(LENGTH)).shuffle().sharding_filter().map(lambda index: rows[index])


def in_process(rows: Any, index: int) -> list[int]:
    import torch_xla

    from torchpipe.xla.drop_in import MpDeviceLoader

    got: list[int] = []
    state = None
    for cut in (3, 100):
        with DataLoader2(graph(rows), reading_service=OrdinalReadingService(seed=SEED)) as loader:
            wrapped = MpDeviceLoader(loader, torch_xla.device())
            if state is not None:
                wrapped.load_state_dict(state)
            for _, item in zip(range(cut), wrapped):
                assert item.device == torch.device("xla", index)
                got.append(int(item[0]))
            state = wrapped.state_dict()
            wrapped.close()
    return got


def with_a_worker(rows: Any, index: int) -> list[int]:
    service = SequentialReadingService(
        OrdinalReadingService(seed=SEED), MultiProcessingReadingService(1, "forkserver", device="xla")
    )
    with DataLoader2(graph(rows), reading_service=service) as loader:
        items = list(loader)
    assert {item.device for item in items} == {torch.device("xla", index)}
    return [int(item[0]) for item in items]


def main(folder: Path) -> None:
    rows = SharedCopy(torch.arange(LENGTH).repeat_interleave(1000).reshape(LENGTH, 1000))
    counter = folder / "counter"
    counter.write_text("0")

    def count() -> None:
        counter.write_text(str(int(counter.read_text()) + 1))

    def run(index: int, given: str) -> None:
        assert given == "an argument"
        executor = SerialExecutor(folder / "lock")
        for _ in range(25):
            executor.run(count)
        me = ordinal()
        found = {
            "index": index,
            "rank": me.rank,
            "world_size": me.world_size,
            "pid": os.getpid(),
            "in_process": in_process(rows.get(), index),
            "with_a_worker": with_a_worker(rows.get(), index),
        }
        (folder / f"{index}.json").write_text(json.dumps(found))
        if index == 2:
            raise RuntimeError("planted in ordinal 2")

    try:
        spawn(run, args=("an argument",))
    except RuntimeError as error:
        (folder / "error").write_text(f"{error}\n" + "\n".join(getattr(error, "__notes__", ())))
    rows.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
