"""A training script as people have it: images in folders by class, random augmentation, checkpoints after some steps.

    python images.py FOLDER CHECKPOINT EPOCHS WORKERS

Prints a line for each step: epoch, the samples' numbers, the loss. Goes on from CHECKPOINT if that exists.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ImageFolder(Dataset):
    def __init__(self, root: str) -> None:
        self.files = sorted(Path(root).rglob("*.png"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int):
        file = self.files[index]
        image = Image.open(file).convert("L")
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).float() / 255
        return pixels + 0.01 * torch.randn(pixels.shape), self.classes.index(file.parent.name), index


def main() -> None:
    folder, checkpoint, epochs, workers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(7)
    dataset = ImageFolder(folder)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers, generator=generator, drop_last=True)
    model = nn.Linear(64, len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        first, step = loader.epoch, saved["step"]
    for epoch in range(first, epochs):
        for pixels, labels, numbers in loader:
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(epoch, numbers.tolist(), f"{loss.item():.9f}", flush=True)
            if hasattr(loader, "state_dict") and step % 5 == 0:
                state = {"model": model.state_dict(), "loader": loader.state_dict(), "step": step}
                torch.save(state, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)


if __name__ == "__main__":
    main()
