"""grain, one shard of several: TFRecord files divided among shards, records where there are fewer files than shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import grain
from grain import experimental

from benchmarks.peers._one_shard import BUFFER, share

__all__ = ["KINDS", "documents"]

KINDS = ("tfrecord",)


def documents(
    kind: str, files: tuple[str, ...], piece_bytes: int, epoch: int, shard: int, shards: int
) -> Iterator[dict[str, Any]]:
    own, first, step = share(files, shard, shards)
    sources: Any = grain.MapDataset.source(own).shuffle(seed=epoch).map(experimental.TFRecordIterDataset)
    records: Any = experimental.InterleaveIterDataset(sources, cycle_length=1)
    records = experimental.WindowShuffleIterDataset(records, window_size=BUFFER, seed=epoch)
    return (json.loads(record) for record in islice(records, first, None, step))
