"""A script with an iterable dataset: files of lines, divided among the workers as torch's documentation does it.

    python lines.py FOLDER CHECKPOINT EPOCHS WORKERS

Prints a line for each batch. Goes on from CHECKPOINT if that exists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, folder: str) -> None:
        self.files = sorted(Path(folder).glob("*.txt"))

    def __iter__(self) -> Iterator[str]:
        info = get_worker_info()
        mine = self.files if info is None else self.files[info.id :: info.num_workers]
        for file in mine:
            with file.open() as lines:
                for line in lines:
                    yield line.strip()


def main() -> None:
    folder, checkpoint, epochs, workers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(7)
    loader = DataLoader(Lines(folder), batch_size=5, num_workers=workers, collate_fn=" ".join)
    first = step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        loader.load_state_dict(saved["loader"])
        first, step = loader.epoch, saved["step"]
    for epoch in range(first, epochs):
        for text in loader:
            step += 1
            print(epoch, text, flush=True)
            if hasattr(loader, "state_dict") and step % 5 == 0:
                torch.save({"loader": loader.state_dict(), "step": step}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)


if __name__ == "__main__":
    main()
