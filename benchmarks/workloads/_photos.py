"""JPEG files for P4: crops of real photographs that scikit-image carries, written once into ``.bench/photos``.

Runs in the runner's or the measured process; whoever comes first writes them.
"""

from __future__ import annotations

import importlib.util
import io
import os
import tarfile
import tempfile
from pathlib import Path

from benchmarks.harness.environments import ROOT
from benchmarks.harness.job import Unsupported

__all__ = ["COUNT", "paths", "tars"]

COUNT = 256
SIZE = (500, 375)  # width and height, as ImageNet's photographs often have
_PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "motorcycle_left", "motorcycle_right")
_TARS = 8
_FOLDER = ROOT / ".bench" / "photos"


def paths() -> list[Path]:
    """The files 0 .. COUNT - 1, made if they are not there. Raises: Unsupported without scikit-image."""
    found = [_FOLDER / f"{number:04}.jpg" for number in range(COUNT)]
    if not (_FOLDER / "complete").exists():
        _make(found)
    return found


def tars() -> tuple[str, ...]:
    """The same files in tar shards."""
    files = paths()
    return tuple(str(_FOLDER / f"{shard}.tar") for shard in range(_TARS)) if files else ()


def _make(files: list[Path]) -> None:
    carrier = importlib.util.find_spec("skimage")
    if carrier is None or carrier.origin is None:
        raise Unsupported("the photographs are cut from those in scikit-image, which is not here; `make bench` has it")
    import numpy as np
    from PIL import Image

    _FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(carrier.origin).parent / "data"
    photos = [Image.open(next(folder.glob(f"{name}.*g"))).convert("RGB") for name in _PHOTOS]
    draw = np.random.default_rng(0)
    contents = []
    for file in files:
        photo = photos[int(draw.integers(len(photos)))]
        scale = float(draw.uniform(0.6, 1.0))
        width = min(photo.width, photo.height * SIZE[0] / SIZE[1]) * scale
        height = width * SIZE[1] / SIZE[0]
        left, top = draw.uniform(0, photo.width - width), draw.uniform(0, photo.height - height)
        crop = photo.resize(SIZE, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        buffer = io.BytesIO()
        crop.save(buffer, "JPEG", quality=90)
        contents.append(buffer.getvalue())
        _write(file, buffer.getvalue())
    for shard in range(_TARS):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for number in range(shard, len(files), _TARS):
                entry = tarfile.TarInfo(f"{number:04}.jpg")
                entry.size = len(contents[number])
                tar.addfile(entry, io.BytesIO(contents[number]))
        _write(_FOLDER / f"{shard}.tar", buffer.getvalue())
    _write(_FOLDER / "complete", b"")


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(name, path)
