"""The tar shards of P19s and P19r: 16,000 samples of 8 kB and a class, written once into ``.bench/samples``.

Runs in the measured process.
"""

from __future__ import annotations

import io
import os
import tarfile
from typing import Any

from benchmarks.harness.environments import ROOT
from benchmarks.harness.stream import WrongData

__all__ = ["BATCH", "SAMPLES", "check", "collate", "tars"]

BATCH = 64
SAMPLES = 16_000
_TARS = 8
_BYTES = 8_192
_FOLDER = ROOT / ".bench" / "samples"


def content(index: int) -> bytes:
    return index.to_bytes(8, "little") * (_BYTES // 8)


def tars() -> tuple[str, ...]:
    """The shards, made if they are not there."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    paths = [_FOLDER / f"{shard}.tar" for shard in range(_TARS)]
    for shard, path in enumerate(paths):
        if not path.exists():
            with tarfile.open(f"{path}.part", "w") as tar:
                for index in range(shard * SAMPLES // _TARS, (shard + 1) * SAMPLES // _TARS):
                    for ending, data in (("bin", content(index)), ("cls", str(index % 10).encode())):
                        entry = tarfile.TarInfo(f"{index:08}.{ending}")
                        entry.size = len(data)
                        tar.addfile(entry, io.BytesIO(data))
            os.replace(f"{path}.part", path)
    return tuple(map(str, paths))


def collate(samples: list[dict[str, Any]]) -> tuple[list[bytes], list[bytes]]:
    """What is in the files, as it is."""
    return [sample["bin"] for sample in samples], [sample["cls"] for sample in samples]


def check(batch: Any) -> list[int]:
    """The indices of a batch's samples. Raises: WrongData unless every byte is its sample's."""
    contents, classes = batch
    if len(contents) != BATCH or len(classes) != BATCH:
        raise WrongData(f"expected {BATCH} samples, got {len(contents)} and {len(classes)}")
    indices = [int.from_bytes(data[:8], "little") for data in contents]
    for index, data, label in zip(indices, contents, classes):
        if data != content(index) or label != str(index % 10).encode():
            raise WrongData(f"sample {index} holds other bytes than were written")
    return indices
