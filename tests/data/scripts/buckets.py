"""A script with a batch sampler of its own: sentences of like length together, in random order.

    python buckets.py FOLDER CHECKPOINT EPOCHS WORKERS

Prints a line for each batch. Goes on from CHECKPOINT if that exists.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self) -> None:
        draw = random.Random(3)
        self.sentences = [[draw.randrange(100) for _ in range(draw.randrange(3, 12))] for _ in range(90)]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int):
        return index, torch.tensor(self.sentences[index])


class BucketBatchSampler:
    def __init__(self, lengths: list[int], batch_size: int) -> None:
        self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        batches = [self.order[at : at + self.batch_size] for at in range(0, len(self.order), self.batch_size)]
        for place in torch.randperm(len(batches)).tolist():
            yield batches[place]

    def __len__(self) -> int:
        return (len(self.order) + self.batch_size - 1) // self.batch_size


def collate(samples):
    numbers, tokens = zip(*samples)
    return list(numbers), pad_sequence(list(tokens), batch_first=True)


def main() -> None:
    checkpoint, epochs, workers = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(7)
    dataset = Sentences()
    sampler = BucketBatchSampler([len(sentence) for sentence in dataset.sentences], 8)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers, collate_fn=collate)
    first = step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        loader.load_state_dict(saved["loader"])
        torch.set_rng_state(saved["random"])
        first, step = loader.epoch, saved["step"]
    for epoch in range(first, epochs):
        for numbers, tokens in loader:
            step += 1
            print(epoch, numbers, tuple(tokens.shape), int(tokens.sum()), flush=True)
            if hasattr(loader, "state_dict") and step % 5 == 0:
                state = {"loader": loader.state_dict(), "random": torch.get_rng_state(), "step": step}
                torch.save(state, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)


if __name__ == "__main__":
    main()
