"""What one rank does in the tests of ``DistributedReadingService``: ``python -m tests.services.rank_script ...``.

Joins a gloo group through a file, plays the named scenarios one after the other, and writes what came of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data.datapipes.iter import IterableWrapper as TorchIterableWrapper

from reading_services import DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
from torchpipe import DataLoader, DataLoader2, ReadingServiceInterface
from torchpipe.errors import StateMismatchError
from torchpipe.iter import IterableWrapper
from torchpipe.testing.services import sample_graph

TIMEOUT_S = 60.0
SHORT_S = 2.0


def _noisy(number: int) -> tuple[int, float]:
    return number, random.random()


def random_graph(length: int = 48) -> Any:
    return IterableWrapper(range(length)).shuffle().sharding_filter().map(_noisy).shuffle(buffer_size=3)


def uneven_graph() -> Any:
    """All even numbers below 22, and the odd ones below 12: no two ranks have as many."""
    return IterableWrapper(range(22)).sharding_filter().filter(lambda n: n % 2 == 0 or n < 12).map(lambda n: n)


def _service(workers: int | None, **options: Any) -> ReadingServiceInterface:
    distributed = DistributedReadingService(TIMEOUT_S, **options)
    if workers is None:
        return distributed
    return SequentialReadingService(distributed, MultiProcessingReadingService(workers, "fork"))


def _loader(graph: Any, workers: int | None = None, seed: int | None = 5, **options: Any) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=_service(workers, **options))
    if seed is not None:
        loader.seed(seed)
    return loader


def _text(items: Any) -> list[str]:
    return [repr(item) for item in items]


def alone() -> Any:
    with _loader(random_graph()) as loader:
        return {"epochs": [_text(loader) for _ in range(2)], "length": len(loader), "plan": loader.explain()}


def with_workers() -> Any:
    with _loader(random_graph(), workers=2, agree_every=3) as loader:
        return [_text(loader) for _ in range(2)]


def shared_seed() -> Any:
    with _loader(random_graph(), seed=None) as loader:
        if dist.get_rank() == 0:
            loader.seed(11)
        items = _text(loader)
        return [items, loader.state_dict()["seed"]]


def resume() -> Any:
    """Uneven, with workers: the whole epoch, and, from states on the way, what is still to come."""
    results: dict[str, Any] = {}
    for uneven in ("drop", "pad"):
        states, items = [], []
        with _loader(sample_graph(41), workers=2, agree_every=2, uneven=uneven) as loader:
            states.append(loader.state_dict())
            for item in loader:
                items.append(repr(item))
                states.append(loader.state_dict())
        rests = {}
        for count in sorted({0, 1, len(items) // 2, len(items) - 1}):
            for workers in (2, None):
                service = _service(workers, agree_every=2, uneven=uneven)
                with DataLoader2.from_state(states[count], sample_graph(41), service) as loader:
                    rests[f"{count} {workers}"] = _text(loader) == items[count:]
        results[uneven] = {"items": items, "rests": rests}
    return results


def uneven() -> Any:
    results: dict[str, Any] = {}
    for policy in ("drop", "pad", "raise"):
        for every in (1, 4):
            got: list[Any] = []
            with _loader(uneven_graph(), uneven=policy, agree_every=every) as loader:
                try:
                    got.extend(loader)
                except Exception as error:
                    got.append(type(error).__name__)
            results[f"{policy} {every}"] = got
    return results


def different_positions() -> Any:
    with _loader(random_graph()) as loader:
        stream = iter(loader)
        early = loader.state_dict()
        for _ in range(3):
            next(stream)
        late = loader.state_dict()
        loader.load_state_dict(early if dist.get_rank() else late)
        try:
            iter(loader)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _without(rank_does: Callable[[], None], workers: int | None) -> Any:
    """The others go on after rank 0 has stopped to; how long do they wait, and for what?"""
    service: ReadingServiceInterface = DistributedReadingService(SHORT_S)
    if workers is not None:
        service = SequentialReadingService(service, MultiProcessingReadingService(workers, "fork"))
    loader: DataLoader2[Any] = DataLoader2(random_graph(3000), reading_service=service)
    count = 0
    began = time.monotonic()
    try:
        for _ in loader:
            count += 1
            began = time.monotonic()
            if count == 7 and dist.get_rank() == 0:
                rank_does()
                return None
        return "ended"
    except Exception as error:
        return {"count": count, "error": f"{type(error).__name__}: {error}", "waited_s": time.monotonic() - began}
    finally:
        loader.shutdown()


def a_rank_stops() -> Any:
    return _without(lambda: None, None)


def a_rank_is_killed() -> Any:
    return _without(lambda: os.kill(os.getpid(), signal.SIGKILL), 2)


def graphs_of_torch() -> Any:
    """Through ``DataLoader``: what each epoch gives, with and without workers, and what follows a state."""
    graph = TorchIterableWrapper(range(24)).shuffle()
    found: dict[str, Any] = {}
    for workers in (0, 2):
        torch.manual_seed(dist.get_rank())  # the order is the first rank's all the same
        with DataLoader(graph.sharding_filter(), 2, shuffle=True, num_workers=workers) as loader:
            epochs = [[number for batch in loader for number in batch.tolist()] for _ in range(2)]
            stream = iter(loader)
            next(stream)
            state = loader.state_dict()
            rest = _text(stream)
            loader.load_state_dict(state)
            found[str(workers)] = [epochs, rest == _text(loader)]
    states: list[Any] = [None, None]
    dist.all_gather_object(states, state)
    with DataLoader(graph.sharding_filter(), 2, shuffle=True, num_workers=2) as loader:
        loader.load_state_dict(states[1 - dist.get_rank()])
        try:
            next(iter(loader))
        except StateMismatchError as error:
            found["other"] = str(error)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found["undivided"] = sorted(int(batch) for batch in DataLoader(graph, None))
    found["warned"] = [str(item.message) for item in warned]
    return found


def left_behind() -> Any:
    """What stays after shutdown: threads of Python, and of the process beyond those of the default group."""
    with _loader(random_graph(12)) as loader:
        list(loader)
    before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with _loader(random_graph(12), workers=2) as loader:
            list(loader)
    deadline = time.monotonic() + 5
    while True:
        after = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        if after <= before or time.monotonic() > deadline:
            return [before, after, [thread.name for thread in threading.enumerate()]]
        threading.Event().wait(0.05)


def main(folder: Path, rank: int, world_size: int, scenarios: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    for name in scenarios:
        result = globals()[name]()
        (folder / f"{name}.{rank}.json").write_text(json.dumps(result))
    if "a_rank_is_killed" not in scenarios:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
