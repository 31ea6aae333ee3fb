"""P4: JPEG files of 500 x 375: read, decode, resize to 224 x 224, batch 32.

Runs in the measured process.
"""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.stream import WrongData, measure_stream
from benchmarks.workloads import _photos

__all__ = ["BATCH", "PEERS", "TITLE", "UNIT", "check", "job", "run"]

TITLE = "P4 JPEG files, decoded in the workers, batch 32"
UNIT = "samples_per_s"
PEERS = [
    "torchpipe", "in_process", "torch", "stateful", "nodes", "spdl", "spdl_arena", "grain", "mprs09", "webdataset",
]  # fmt: skip
BATCH = 32
SHAPE = (3, 224, 224)


def decode_array(content: bytes, index: int) -> dict[str, Any]:
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGB").resize(SHAPE[:0:-1], Image.Resampling.BILINEAR)
    return {"image": np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)), "index": index}


def decode(content: bytes, index: int) -> dict[str, Any]:
    sample = decode_array(content, index)
    return {"image": torch.from_numpy(sample["image"]), "index": index}


@functools.cache
def _paths() -> list[str]:
    return [str(path) for path in _photos.paths()]


def _content(index: int) -> bytes:
    with open(_paths()[index % _photos.COUNT], "rb") as file:
        return file.read()


def make(index: int) -> dict[str, Any]:
    return decode(_content(index), index % _photos.COUNT)


def make_array(index: int) -> dict[str, Any]:
    return decode_array(_content(index), index % _photos.COUNT)


def collate_arrays(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "image": np.stack([sample["image"] for sample in samples]),
        "index": np.array([sample["index"] for sample in samples], dtype=np.int64),
    }


@functools.cache
def _expected(index: int) -> Any:
    return decode_array(_content(index), index)["image"]


def check(batch: Any) -> Iterable[int]:
    images, numbers = np.asarray(batch["image"]), batch["index"].tolist()
    if images.shape != (BATCH, *SHAPE) or images.dtype != np.uint8:
        raise WrongData(f"expected uint8 of {(BATCH, *SHAPE)}, got {images.dtype} of {images.shape}")
    for number, image in zip(numbers, images):
        if not np.array_equal(image, _expected(number)):
            raise WrongData(f"the image of file {number} differs from the one decoded here")
    return numbers


def ids(count: int) -> Counter[int]:
    return Counter(index % _photos.COUNT for index in range(count))


def job(peer: ModuleType) -> Job:
    """The job; a peer that moves only numpy arrays well gets arrays, the others torch tensors."""
    _paths()
    arrays = getattr(peer, "NUMPY_ONLY", False)
    return Job(
        count=_photos.COUNT * 10_000,
        make=make_array if arrays else make,
        batch_size=BATCH,
        collate=collate_arrays if arrays else None,
        item_bytes=BATCH * (int(np.prod(SHAPE)) + 8),
        tars=_photos.tars(),
        decode=decode,
    )


def run(peer: ModuleType, seconds: float, *, workers: int = 2, least_s: float = 2.0) -> dict[str, Any]:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise Unsupported("Pillow is not in this environment") from None
    wanted = replace(job(peer), workers=workers)
    checked = wanted.whole(_photos.COUNT)
    return measure_stream(peer, wanted, max(seconds, least_s), check=check, check_count=checked, ids=ids)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p4"])
