"""webdataset, one shard of several: tar files divided among shards, samples where there are fewer files than shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import webdataset

from benchmarks.peers._one_shard import BUFFER, share

__all__ = ["KINDS", "documents"]

KINDS = ("tar",)


def documents(
    kind: str, files: tuple[str, ...], piece_bytes: int, epoch: int, shard: int, shards: int
) -> Iterator[dict[str, Any]]:
    own, first, step = share(files, shard, shards)
    samples: Any = webdataset.WebDataset(own, shardshuffle=len(own) if len(own) > 1 else False, seed=epoch)
    samples = samples.shuffle(BUFFER)
    return (json.loads(sample["json"]) for sample in islice(samples, first, None, step))
