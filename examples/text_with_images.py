"""Text with images: tokens and patches in one pack, images decoded behind it (docs/conversations.md)."""

import io
from itertools import zip_longest

import numpy as np
import torch
from PIL import Image

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

PATCH, IMAGE = 8, 1  # pixels of a patch's side, and the token that stands for a patch


def a_png(width, height):  # a path to one does as well
    file = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).save(file, "png")
    return file.getvalue()


RECORDS = [
    {
        "id": n,
        "text": "what? <image> and <image> " * (n % 3),
        "images": [a_png(8 + 8 * ((n + k) % 5), 16) for k in range(n % 3 * 2)],
    }
    for n in range(60)
]


def patches_of(image):
    width, height = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image).size  # reads the header alone
    return (width // PATCH) * (height // PATCH)


def encode(record):
    tokens, counts = [], [patches_of(image) for image in record["images"]]
    for text, count in zip_longest(record["text"].split("<image>"), counts, fillvalue=0):
        tokens += [*(text or "").encode(), *[IMAGE] * count]
    patches = np.zeros(sum(counts), np.uint8)
    return {"tokens": [*tokens, 2], "patches": patches, "images": record["images"], "id": record["id"]}


def decode(image):
    pixels = np.asarray(Image.open(io.BytesIO(image) if isinstance(image, bytes) else image), np.float32) / 255
    rows, columns = (size // PATCH for size in pixels.shape)
    return pixels.reshape(rows, PATCH, columns, PATCH).swapaxes(1, 2).reshape(rows * columns, -1)


def decoded(pack):  # behind pack: the open packs of a checkpoint hold images as they came
    pixels = [decode(image) for images in pack["images"] for image in images]
    names = {"tokens": "tokens", "tokens_segment_ids": "segment_ids", "tokens_positions": "positions"}
    return {new: pack[old] for old, new in names.items()} | {"pixels": pixels, "ids": pack["id"]}


def as_batch(packs):
    names = ("tokens", "segment_ids", "positions")
    batch = {name: torch.stack([torch.as_tensor(pack[name]) for pack in packs]) for name in names}
    images = [image for pack in packs for image in pack["pixels"]]
    offsets = torch.tensor([0, *map(len, images)]).cumsum(0)
    pixels = torch.from_numpy(np.concatenate([np.empty((0, PATCH * PATCH), np.float32), *images]))
    return batch | {"pixels": pixels, "offsets": offsets, "ids": [pack["ids"] for pack in packs]}


def make_loader(workers):
    graph = IterableWrapper(RECORDS).shuffle().sharding_filter().map(encode)
    graph = graph.pack({"tokens": 160, "patches": 64}, strategy="best_fit", keep=["images", "id"])
    graph = graph.parallel_map(decoded, num_threads=2).batch(2).collate(as_batch)
    return DataLoader2(graph, reading_service=MultiProcessingReadingService(workers, num_shards=2))


if __name__ == "__main__":
    project, embed = torch.nn.Linear(PATCH * PATCH, 32), torch.nn.Embedding(256, 32)
    with make_loader(2) as loader:
        loader.seed(1)
        for batch in loader:
            vectors = embed(batch["tokens"].long())
            vectors = vectors.masked_scatter((batch["tokens"] == IMAGE)[..., None], project(batch["pixels"]))
        print(tuple(vectors.shape), batch["offsets"].tolist())
