"""A row of features, run: what a ``DataLoader`` gives with them, and what the oracle gives.

The process around the loader is part of it: at the end its random states must be the oracle's, and everything else of
the process as before.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import queue
import random
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.data.datasets import Numbers
from tests.exact import exact
from tests.measured import measured
from tests.pairs.covering import Row
from tests.pairs.loader_features import FACTORS, loader_options, refusals_of
from tests.sources import wait_until
from torchpipe import DataLoader

__all__ = ["check", "expected_of", "got_of", "name_of", "unchanged_process"]

EPOCHS = 3

Batches = list[tuple[int, str]]
"""(epoch, what the batch is) for each batch."""


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Everything that a loader must leave as it is, but for the random states, which are part of a run's result."""

    def look() -> Any:
        return {
            "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
            "start method": multiprocessing.get_start_method(),
            "environment": dict(os.environ),
            "default dtype": torch.get_default_dtype(),
            "folder": os.getcwd(),
        }

    states = random.getstate(), np.random.get_state()
    before, threads = look(), threading.active_count()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    random.setstate(states[0]), np.random.set_state(states[1])
    wait_until(lambda: threading.active_count() <= threads)  # what was dropped may end in a thread
    after = look()
    assert after == before, {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def seed_all() -> None:
    """As a script begins, each time it is run."""
    torch.manual_seed(0), random.seed(0), np.random.seed(0)


class Run:
    """One process's part of a run: a script from its start, or from a state, to where it is stopped."""

    def __init__(self, row: Row, way: str | None, state: Any = None) -> None:
        seed_all()
        self.row, self.plain = row, way is None
        self.loader: Any = measured(DataLoader(**loader_options(row, way)), row["measure"] == "yes")
        self.validation: Any = DataLoader(Numbers(3)) if row["beside"] == "validation" else None
        self.noise: list[float] = []
        self.chance = random.Random(1)
        if state is not None:
            self.loader.load_state_dict(_kept(state, row["state"]))

    def batches(self) -> Iterator[tuple[int, str]]:
        """In the loop that docs show."""
        row, loader = self.row, self.loader
        while loader.epoch < EPOCHS:
            if row["loop"] == "set_epoch":
                loader.set_epoch(loader.epoch)
            stream = iter(loader)
            batches = _from_thread(stream, self) if row["happens"] == "thread" and not self.plain else stream
            for number, batch in enumerate(batches, 1):
                if row["beside"] == "training draws":
                    torch.nn.functional.dropout(torch.ones(2))
                if row["asks"] == "each batch":
                    loader.state_dict()
                yield stream.epoch, exact(batch)
                if row["happens"] == "resized" and not self.plain:
                    self.resize()
                if row["happens"] == "break" and number == int(row["at"]):
                    break
            del stream, batches  # as a `for` loop does: else the epoch is still at work
            self.validate()

    def resize(self) -> None:
        """As autotune does."""
        batches = self.loader._live._batches
        service = getattr(batches, "_service", None)
        workers = batches._workers if service is None else service._workers
        if workers is not None:
            workers.resize(self.chance.randint(1, workers.most), self.chance.choice([None, 1, 3]))

    def validate(self) -> None:
        if self.validation is not None:
            list(self.validation)

    def rest(self) -> Batches:
        found = list(self.batches())
        self.loader.shutdown()
        return found

    @staticmethod
    def at_end() -> list[float]:
        """What the process draws when all is over."""
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def _kept(state: Any, how: str) -> Any:
    """The state as a checkpoint holds it."""
    if how == "json":
        return json.loads(json.dumps(state))
    if how == "torch.save":
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)
    return state


@contextmanager
def group(row: Row) -> Iterator[None]:
    """A process group of this process alone, where the row has one."""
    if row["distributed"] == "no":
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _from_thread(loader: Any, run: Run) -> Iterator[Any]:
    """As a home-made prefetcher takes batches, while the main thread draws random numbers."""
    items: queue.Queue[Any] = queue.Queue(2)
    end = object()

    def take() -> None:
        try:
            for item in loader:
                items.put(item)
            items.put(end)
        except BaseException as error:  # raised in the main thread
            items.put(error)

    thread = threading.Thread(target=take)
    thread.start()
    while True:
        run.noise += [random.random(), float(np.random.rand())]
        item = items.get()
        if item is end or isinstance(item, BaseException):
            break
        yield item
    thread.join()
    if isinstance(item, BaseException):
        raise item


def _stop(row: Row, batches: list[tuple[int, str]]) -> int:
    """After how many batches the run is stopped, of those that there are in all."""
    first = sum(epoch == 0 for epoch, _ in batches)
    match row["at"]:
        case "last":
            return first
        case "later":
            return min(first + 2, len(batches))
        case at:
            return min(int(at), len(batches))


def expected_of(row: Row) -> tuple[Batches, list[float]]:
    """The oracle's batches, and what its process draws then."""
    run = Run(row, None)
    return run.rest(), run.at_end()


def got_of(row: Row, expected: Batches) -> tuple[Batches, list[float]]:
    """The same with all features of the row. Raises: what is refused."""
    stop, happens = _stop(row, expected), row["happens"]
    run = Run(row, row["way"])
    if happens in ("taken back here", "rewound"):
        return _taken_back(row, run, stop), run.at_end()
    if happens == "resume between epochs":
        run, found = _between(row, run)
    else:
        found, run = _stopped(row, run, stop, expected)
    if happens == "two resumes":
        left = max(1, (len(expected) - stop) // 2)
        more, run = _take(run, left)
        found += more
        state = run.loader.state_dict()
        run.loader.shutdown()
        run = Run(row, row["way"], state)
    if "resume" in happens:
        found += run.rest()
    if happens == "thread":
        reference = random.Random(0)
        drawn = run.noise[::2]
        assert drawn == [reference.random() for _ in drawn], "the main thread drew other numbers than it would have"
    return found, run.at_end()


def _taken_back(row: Row, run: Run, stop: int) -> Batches:
    """The loader goes on for a batch or so, and is then taken back to a state of its own."""
    found: Batches = []
    state = run.loader.state_dict()
    stream = run.batches()
    for item in stream:
        found.append(item)
        if len(found) == stop:
            if row["happens"] == "rewound":
                found = []
            else:
                state = run.loader.state_dict()
            break
    next(stream, None)
    del stream
    run.loader.load_state_dict(_kept(state, row["state"]))
    return found + run.rest()


def _take(run: Run, count: int) -> tuple[Batches, Run]:
    found: Batches = []
    if count:
        for epoch, batch in run.batches():
            found.append((epoch, batch))
            if len(found) == count:
                break
    return found, run


def _stopped(row: Row, run: Run, stop: int, expected: Batches) -> tuple[Batches, Run]:
    """Kills and stops: what was found, and the run that goes on (all is found if nothing stopped it)."""
    found: Batches = []
    stream = run.batches()
    for epoch, batch in stream:
        found.append((epoch, batch))
        if len(found) == stop:
            if "kill" in row["happens"]:
                os.kill(run.loader.worker_pids()[-1], signal.SIGKILL)
            if "resume" in row["happens"]:
                if row["happens"] == "kill and resume":
                    found += [item for item in [next(stream, None)] if item is not None]
                state = run.loader.state_dict()
                run.loader.shutdown()
                run = Run(row, row["then"], state)
                return found, run
    run.loader.shutdown()
    return found, run


def _between(row: Row, run: Run) -> tuple[Run, Batches]:
    """A run that is stopped after its first epoch, when nothing is under way."""
    found: Batches = []
    for batch in run.loader:
        if row["beside"] == "training draws":
            torch.nn.functional.dropout(torch.ones(2))
        found.append((0, exact(batch)))
    run.validate()
    state = run.loader.state_dict()
    run.loader.shutdown()
    return Run(row, row["then"], state), found


_LOADED = ("resume", "two resumes", "resume between epochs", "kill and resume", "taken back here", "rewound")


def name_of(row: Row) -> str:
    """What differs from the plainest."""
    return "; ".join(f"{name}={level}" for name, level in row.items() if level != FACTORS[name][0]) or "plain"


def check(row: Row) -> None:
    """Raises: AssertionError, or whatever it was, if the row is neither exact nor refused as the registry says."""
    refusals = refusals_of(row)
    with unchanged_process(), group(row):
        if refusals:
            with pytest.raises(tuple({refusal.error for refusal in refusals})) as raised:
                got_of(row, expected_of(row)[0])
            assert any(
                raised.errisinstance(refusal.error) and re.search(refusal.text, str(raised.value))
                for refusal in refusals
            ), f"{raised.value!r} is none of {[refusal.text for refusal in refusals]}"
            return
        batches, drawn = expected_of(row)
        found, drawn_then = got_of(row, batches)
    if row["in_order"] == "no":
        batches, found = sorted(batches), sorted(found)
    assert found == batches
    if row["happens"] in _LOADED and "yes" in (row["generator"], row["distributed"]):
        drawn, drawn_then = drawn[:2], drawn_then[:2]  # torch's default generator is nothing to such a loader
    if row["happens"] == "thread":
        drawn, drawn_then = drawn[2:], drawn_then[2:]  # the main thread drew from the others meanwhile
    assert drawn_then == drawn
