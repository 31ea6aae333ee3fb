"""Handwritten digits in WebDataset shards on S3, a server of this machine, and the pipeline that reads them.

Nothing is downloaded. With real buckets, only the URL differs.
"""

from __future__ import annotations

import io
import logging
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image

from examples.digits.data import read_digits
from torchpipe.iter import WebDatasetReader

__all__ = ["TESTED", "s3_with_shards", "test_images", "train_graph"]

BATCH_SIZE = 32
TESTED = 1_000  # of the 5,000, at their end
_BUCKET = "digits"


@contextmanager
def s3_with_shards(images: int, shards: int) -> Iterator[str]:
    """A server with so many images in so many shards, ``<number>.png`` and ``<number>.cls``; yields the shards' URLs.

    The processes that are started meanwhile find it by the variables of the environment, as they would find AWS.
    """
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "example", "AWS_SECRET_ACCESS_KEY": "example"}
    try:
        import s3fs

        bucket = s3fs.S3FileSystem()
        bucket.mkdir(_BUCKET)
        pixels, labels = read_digits()
        for shard in range(shards):
            numbers = range(shard, images, shards)
            bucket.pipe(f"{_BUCKET}/train-{shard:03}.tar", _shard(numbers, pixels, labels))
        yield f"s3://{_BUCKET}/train-{{000..{shards - 1:03}}}.tar"
    finally:
        server.stop()


def _shard(numbers: range, pixels: np.ndarray, labels: np.ndarray) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number in numbers:
            image = io.BytesIO()
            Image.fromarray(pixels[number]).save(image, "PNG")
            for ending, data in (("png", image.getvalue()), ("cls", str(labels[number]).encode())):
                member = tarfile.TarInfo(f"{number:05}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def train_graph(shards: str) -> Any:
    """Shards in random order, each read by one process alone; a buffer of encoded images; random shifts; batches."""
    samples = WebDatasetReader(shards, ["png", "cls"], images=None).shard_pieces()
    images = samples.shuffle(buffer_size=500).random_map(_decoded)
    return images.batch(BATCH_SIZE).collate()


def _decoded(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    pixels = np.asarray(Image.open(io.BytesIO(sample["png"])))
    shifted = np.roll(pixels, rng.integers(-1, 2, 2), axis=(0, 1))
    return {"image": _normal(shifted), "label": sample["cls"], "id": int(sample["__key__"])}


def test_images() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = read_digits()
    return torch.stack([_normal(image) for image in pixels[-TESTED:]]), torch.from_numpy(labels[-TESTED:])


def _normal(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.astype(np.float32) / 255 - 0.5).unsqueeze(0)
