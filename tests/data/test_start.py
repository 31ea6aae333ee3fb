"""What ``DataLoader``'s workers are started from."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from tests.warm import Warm
from torchpipe import DataLoader

ROOT = Path(__file__).parents[2]
SCRIPT = '''
import os
import multiprocessing
from pathlib import Path
from torchpipe import DataLoader

class Parents:
    """Sample 0: has the process that the worker was forked from torch loaded?"""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return "libtorch" in Path(f"/proc/{os.getppid()}/maps").read_text()

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    loader = DataLoader(Parents(), batch_size=None, num_workers=1, multiprocessing_context=CONTEXT)
    assert list(loader) == [True]
'''


def test_a_forkserver_imports_torch_once_for_all_workers(warm: Warm, tmp_path: Path) -> None:
    commands = []
    for number, context in enumerate(('"forkserver"', "None")):
        script = tmp_path / f"parents{number}.py"
        script.write_text(SCRIPT.replace("CONTEXT", context))
        commands.append([str(script)])
    for done in warm.run_together(commands, cwd=ROOT):
        assert done.returncode == 0, done.stderr


multiprocessing.RawArray("b", 1 << 16)  # multiprocessing keeps the memory that it shares: not for the first test here


class Sharing(Dataset[int]):
    """It holds what processes share, in all the ways there are; its worker dies at sample 5, once."""

    def __init__(self, context: Any) -> None:
        self.lock = context.Lock()
        self.counter = context.Value("i", 0, lock=self.lock)
        self.raw = context.RawArray("d", 2)
        self.epoch = context.Array("i", [3])
        self.seen = context.Event()
        self.both = context.Barrier(1)
        self.queue = context.SimpleQueue()
        self.cache = torch.zeros(8, 3).share_memory_()
        self.column = self.cache[:, 1]
        self.private = torch.zeros(100_000)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        with self.lock:
            self.counter.get_obj().value += 1
        self.raw[1] += 1
        self.column[index] = index
        self.private += 1
        self.both.wait()
        self.queue.put(index)
        if index == 5 and not self.seen.is_set():
            self.seen.set()
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        return index + 100 * self.epoch[0]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_share_what_multiprocessing_and_torch_can_share(method: str) -> None:
    context = multiprocessing.get_context(method)
    dataset = Sharing(context)
    with DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context=context) as loader:
        stream = iter(loader)
        found = next(stream).tolist()
        dataset.epoch[0] = 4  # seen from then on
        found += [number for batch in stream for number in batch.tolist()]
    assert [number % 100 for number in found] == [*range(8)]
    assert found[0] == 300
    assert found[-1] == 407
    assert dataset.seen.is_set()
    assert dataset.counter.value == dataset.raw[1] >= 9  # the sample that has killed was made again
    assert dataset.cache[:, 1].tolist() == [*range(8)]
    assert not dataset.private.any()
    taken = {dataset.queue.get() for _ in range(dataset.counter.value)}
    assert taken == {*range(8)}
    dataset.queue.close()
