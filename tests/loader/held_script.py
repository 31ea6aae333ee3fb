"""A script whose classes and globals hold locks: each process has its own. ``held_script.py METHOD``.

Prints what came, or the last line of the error.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

if len(sys.argv) < 3 or __name__ == "__main__":
    LOCK = threading.RLock()
ADDED = 0


def asked(number: int) -> int:
    with LOCK:
        return number + ADDED


class Held:
    lock = threading.Lock()

    def __call__(self, number: int) -> int:
        with self.lock:
            return asked(number)


class Numbers(Held, Dataset[Any]):
    def __len__(self) -> int:
        return 4

    __getitem__ = Held.__call__


class Stream(Held, IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return map(self, range(4))


def plain(batch: list[int]) -> list[int]:
    assert asked(1) == 1 + ADDED
    return batch


def main() -> None:
    global ADDED
    warnings.simplefilter("ignore")
    ADDED = 1
    workers = 0 if sys.argv[1] == "in process" else 1
    context = sys.argv[1] if workers else None
    for dataset in (Numbers(), Stream()):
        with DataLoader(dataset, 2, num_workers=workers, collate_fn=plain, multiprocessing_context=context) as loader:
            assert [*loader] == [[1, 2], [3, 4]]
    service = MultiProcessingReadingService(workers, multiprocessing_context=context)
    with DataLoader2(IterableWrapper(range(4)).sharding_filter().map(Held()), reading_service=service) as graph:
        assert [*graph] == [1, 2, 3, 4]
    print("done")


if __name__ == "__main__":
    main()
