"""Graphs for storms of kills. Imports torchpipe alone: while a process imports, it can be killed."""

from __future__ import annotations

import random
import time
from typing import Any

from torchpipe.iter import IterableWrapper

__all__ = ["GRAPHS", "dispatched", "filtered", "linger"]


def draw(item: int) -> tuple[int, float]:
    return item, random.random()


def linger(item: Any) -> Any:
    """Takes some time, as decoding does: kills fall into items then."""
    time.sleep(0.004)
    return item


def filtered(step: Any = draw) -> Any:
    source: Any = IterableWrapper(range(60))
    return source.shuffle(buffer_size=4).sharding_filter().map(draw).map(step).shuffle(buffer_size=3).batch(2)


def dispatched(step: Any = draw) -> Any:
    source: Any = IterableWrapper(range(60))
    dealt = source.map(step).shuffle(buffer_size=4).sharding_round_robin_dispatch()
    return dealt.map(draw).shuffle(buffer_size=3).batch(2)


GRAPHS = {"sharding_filter": filtered, "dispatcher": dispatched}
