"""Ray workers with a resume, another number of workers, a kill, a thread and the next epoch, all at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.cluster_rig import augment, in_process, kill, ray_loader, texts
from torchpipe.iter import IterableWrapper

pytestmark = pytest.mark.nightly


def seldom_bad(item: int) -> Any:
    if item % 10 == 3:
        raise ValueError("bad")
    return augment(item)


def numbers() -> Any:
    return IterableWrapper(range(60)).sharding_filter()


KINDS: dict[str, Callable[[Path], Any]] = {
    "left out": lambda _: numbers().map(seldom_bad).on_error("skip"),
    "cached in a folder": lambda folder: numbers().map(lambda item: item * 2).cache(os.fspath(folder / "cache")),
    "cached": lambda _: numbers().map(lambda item: item * 2).cache(),
    "prefetched": lambda _: (
        IterableWrapper(range(60)).shuffle(buffer_size=9).sharding_filter().map(augment).prefetch(3)
    ),
    "on a device": lambda _: numbers().map(lambda item: torch.tensor([item])).batch(2).collate().to_device("cpu"),
    "several of one": lambda _: numbers().flatmap(lambda item: [item] * 3).shuffle(buffer_size=5),
    "dispatched": lambda _: (
        IterableWrapper(range(60)).sharding_round_robin_dispatch().map(augment).shuffle(buffer_size=7)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_a_kill_a_thread_and_the_next_epoch(kind: str, tmp_path: Path) -> None:
    oracle = in_process(KINDS[kind](tmp_path), 3)
    wanted = [texts(oracle) for _ in range(2)]
    with ray_loader(KINDS[kind](tmp_path), 2, 3) as loader:
        stream = iter(loader)
        got = texts([next(stream) for _ in range(5)])
        state = loader.state_dict()
    with ray_loader(KINDS[kind](tmp_path), 3, 3) as loader:
        loader.load_state_dict(state)
        stream = iter(loader)
        got += texts([next(stream)])
        kill(loader.reading_service.worker_pids()[-1])
        reader = threading.Thread(target=lambda: got.extend(texts(stream)))
        reader.start()
        reader.join()
        assert got == wanted[0]
        assert texts(loader) == wanted[1]
