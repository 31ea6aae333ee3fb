"""The graph of the demo: from tar shards on disk to batches, with random augmentation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchpipe import IterDataPipe
from torchpipe.iter import WebDatasetReader

__all__ = ["BATCH_SIZE", "Batch", "digits_graph"]

BATCH_SIZE = 50
Batch = dict[str, torch.Tensor]
Sample = tuple[int, int, np.ndarray]


def digits_graph(folder: Path) -> IterDataPipe[Batch]:
    """Batches with ``identity`` int64 [50], ``label`` int64 [50] and ``pixels`` float32 [50, 1, 28, 28] in 0..1.

    Each worker reads tar shards of its own; everything costly is behind that.
    """
    return (
        WebDatasetReader(str(folder / "*.tar"), ["png"], decode=False)
        .shard_pieces()
        .map(decode)
        .random_map(augment)
        .shuffle(buffer_size=400)
        .batch(BATCH_SIZE, drop_last=True)
        .collate(collate_fn=collate)
    )


def decode(sample: dict[str, Any]) -> Sample:
    """{"__key__": "identity_label", "png": bytes} -> (identity, label, uint8 [28, 28])."""
    from PIL import Image  # here, so that a machine without it is told how to install it

    identity, label = sample["__key__"].split("_")
    pixels = np.asarray(Image.open(io.BytesIO(sample["png"])).convert("L"))
    return int(identity), int(label), pixels


def augment(sample: Sample, generator: np.random.Generator) -> Sample:
    """Shift by up to 2 pixels, change the contrast, add noise; ``generator`` belongs to this sample alone."""
    identity, label, pixels = sample
    shifted = np.roll(pixels, generator.integers(-2, 3, size=2), axis=(0, 1))
    noisy = shifted * generator.uniform(0.7, 1.3) + generator.normal(0, 8, size=pixels.shape)
    return identity, label, np.clip(noisy, 0, 255).astype(np.uint8)


def collate(samples: list[Sample]) -> Batch:
    identities, labels, pixels = zip(*samples)
    return {
        "identity": torch.tensor(identities),
        "label": torch.tensor(labels),
        "pixels": torch.from_numpy(np.stack(pixels)).unsqueeze(1).float() / 255,
    }
