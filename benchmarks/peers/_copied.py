"""The loops that people write to get batches to a device: each is copied when its turn comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["copied"]


def copied(batches: Iterable[dict[str, Any]], device: str, *, non_blocking: bool) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield {key: tensor.to(device, non_blocking=non_blocking) for key, tensor in batch.items()}
