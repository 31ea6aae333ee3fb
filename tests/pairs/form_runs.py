"""A chain of forms, run: what it gives in process, and what it gives stopped, resumed, in workers, and with one killed.

All runs of a chain are made in one folder, the current one, which has the files that chains read.
"""

from __future__ import annotations

import os
import queue
import random
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from reading_services import MultiProcessingReadingService
from tests.exact import exact
from tests.laws.executors import pids
from tests.pairs.form_chains import Chain, build, name_of
from tests.pairs.form_material import WRITTEN_BY_CHAINS
from tests.pairs.form_rules import limit_of, may_be_refused, refusal_of
from tests.pairs.forms import FORMS
from tests.pairs.loader_runs import seed_all, unchanged_process
from torchpipe import DataLoader2, InProcessReadingService, MapDataPipe, iterate
from torchpipe.state import SnapshotPolicy

__all__ = ["check", "check_in_workers", "check_model", "model_of"]

EPOCHS = 2
_NEVER = 1 << 40
_MOST_ITEMS = 5000  # of a run that does not end

Items = list[tuple[int, str]]
"""(epoch, what the item is) for each item."""


def num_shards_of(chain: Chain) -> int:
    return 2 if any("shards" in FORMS[key].traits for key, _ in chain) else 1


def in_process(chain: Chain, every: int) -> Any:
    return InProcessReadingService(num_shards=num_shards_of(chain), policy=partial(SnapshotPolicy, every=every))


def in_workers(chain: Chain, every: int) -> Any:
    count = num_shards_of(chain)
    return MultiProcessingReadingService(count, "fork", num_shards=count, policy=partial(SnapshotPolicy, every=every))


class Run:
    """One process's part of a run: from its start, or from a state, to where it is stopped."""

    def __init__(self, chain: Chain, service: Any, state: Any = None) -> None:
        self.drawn = 0
        seed_all()
        self.loader: Any = DataLoader2(build(chain), reading_service=service)
        try:
            self.loader.seed(5)
            if state is not None:
                self.loader.load_state_dict(state, allow_pickle=True)
        except BaseException:
            self.loader.shutdown()
            raise

    def items(self) -> Iterator[tuple[int, str]]:
        """In the loop that docs show, which draws random numbers of its own, as trainings do."""
        loader = self.loader
        while loader.epoch < EPOCHS:
            stream = iter(loader)
            for item in stream:
                self.draw()
                yield stream.epoch, exact(item)
            del stream

    def draw(self) -> None:
        self.drawn += 1
        random.random(), np.random.rand(), torch.rand(())

    def take(self, count: int | None = None) -> Items:
        return list(islice(self.items(), _MOST_ITEMS if count is None else count))

    def take_in_a_thread(self) -> Items:
        """As a home-made prefetcher takes them, while the main thread draws."""
        items: queue.Queue[Any] = queue.Queue(2)

        def run() -> None:
            try:
                for item in islice(self.items(), _MOST_ITEMS):
                    items.put(item)
                items.put(None)
            except BaseException as error:  # raised in the main thread
                items.put(error)

        self.draw = lambda: None  # type: ignore[method-assign]
        thread = threading.Thread(target=run)
        thread.start()
        found: Items = []
        while isinstance(item := items.get(), tuple):
            found.append(item)
            Run.draw(self)
        thread.join()
        if item is not None:
            raise item
        return found

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.loader.shutdown()
        if kind is None:
            self.check_states()

    def check_states(self) -> None:
        """The process draws what it would draw without a loader."""
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        seed_all()
        for _ in range(self.drawn):
            Run.draw(self)
        expected = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        assert drawn == expected, "the loader has changed the random states of the process"


def whole(chain: Chain, service: Any) -> Items:
    with Run(chain, service) as run:
        return run.take()


def points_of(expected: Items, chance: random.Random, *, thorough: bool) -> list[int]:
    """Where a run is stopped: within an epoch; ``thorough``, at the start, within the first, at its end, and later."""
    first = sum(epoch == 0 for epoch, _ in expected)
    within = chance.randrange(1, first) if first > 1 else 0
    later = chance.randrange(first, len(expected)) if len(expected) > first else first
    if thorough:
        return [0, within, first, later]
    return sorted({chance.choice([within, within, later]), *chance.choice([(), (), (0,), (first,)])})


def resumed(chain: Chain, points: list[int], service: Callable[[], Any]) -> Items:
    """A run that is stopped at each of the points, and taken up by another process."""
    found: Items = []
    state: Any = None
    for point in [*points, None]:
        with Run(chain, service(), state) as run:
            found += run.take(None if point is None else point - len(found))
            state = run.loader.state_dict()
    return found


def killed(chain: Chain, expected: Items, chance: random.Random) -> Items:
    """In workers, of which one is killed; then in process; then in other workers, whose items a thread takes."""
    first, second = sorted(chance.choices(range(len(expected) + 1), k=2))
    strike = chance.randint(0, first)
    every = partial(chance.choice, [1, 2, 5])
    found: Items = []
    with Run(chain, in_workers(chain, every())) as run:
        for count, item in enumerate(islice(run.items(), first), 1):
            found.append(item)
            if count == strike and (running := pids(run.loader)):
                os.kill(chance.choice(running), signal.SIGKILL)
        state = run.loader.state_dict()
    with Run(chain, in_process(chain, every()), state) as run:
        found += run.take(second - first)
        state = run.loader.state_dict()
    with Run(chain, in_workers(chain, every()), state) as run:
        return found + run.take_in_a_thread()


def check(chain: Chain, *, thorough: bool = False, workers: bool = False) -> str:
    """Returns "exact", or why it is refused or not exact. Raises: AssertionError, or whatever error is no refusal."""
    if (limit := limit_of(chain)) is not None:
        return f"not exact: {limit.what}"
    chance = random.Random(zlib.crc32(name_of(chain).encode()))
    certain = refusal_of(chain)
    with unchanged_process():
        for name in WRITTEN_BY_CHAINS:  # whoever comes first makes it
            shutil.rmtree(name, ignore_errors=True)
        try:
            expected = whole(chain, in_process(chain, _NEVER))
        except Exception as error:
            if (refusal := may_be_refused(chain, error)) is None:
                raise
            return f"refused: {refusal.what}"
        assert certain is None, f"it is said to be refused: {certain.what}"
        assert len(expected) < _MOST_ITEMS, "it does not end, or is too long for a test"
        points = points_of(expected, chance, thorough=thorough)
        try:
            found = resumed(chain, points, lambda: in_process(chain, chance.choice([1, 2, 5])))
            _compare(found, expected, f"resumed at {points}")
            if workers:
                _compare(killed(chain, expected, chance), expected, "in workers")
        except Exception as error:
            if (refusal := may_be_refused(chain, error)) is None:
                raise
            return f"refused: {refusal.what}"
    return "exact"


check_in_workers = partial(check, workers=True)


def _compare(found: Items, expected: Items, what: str) -> None:
    if found != expected:
        place = next((i for i, (one, other) in enumerate(zip(found, expected)) if one != other), None)
        shown = (
            f"{len(found)} items instead of {len(expected)}"
            if place is None
            else f"item {place} is {found[place]!r:.200} instead of {expected[place]!r:.200}"
        )
        raise AssertionError(f"{what}: {shown}")


# --- plain Python


def model_of(chain: Chain) -> tuple[int, list[str], bool] | None:
    """(after how many of the steps, what plain Python makes there, is the order known?), as far as there are models."""
    ordered, end = True, 0
    if chain[0][1] in FORMS[chain[0][0]].draws:  # no two passes are alike
        return None
    for place, (key, _) in enumerate(chain[1:], 1):
        model = FORMS[key].model
        if model is None or (model.order == "matters" and not ordered):
            break
        ordered = ordered and model.order != "lost"
        end = place
    if not end:
        return None
    source = build(chain[:1])
    items = [*(source if isinstance(source, MapDataPipe) else iterate(source))]  # with the seed of the pass it is for
    for key, number in chain[1 : end + 1]:
        model = FORMS[key].model
        assert model is not None
        items = model.does(items, number)
    made = [exact(item) for item in items]
    return end + 1, made if ordered else sorted(made), ordered


def check_model(chain: Chain) -> bool:
    """Does the chain's beginning give what plain Python makes of its source? False if there is no telling."""
    if limit_of(chain) is not None or refusal_of(chain) is not None:
        return False
    with unchanged_process():
        seed_all()
        modelled = model_of(chain)
        if modelled is None:
            return False
        steps, expected, ordered = modelled
        with iterate(build(chain[:steps])) as stream:
            found = [exact(item) for item in stream]
        assert (found if ordered else sorted(found)) == expected, (
            f"after {name_of(chain[:steps])}: not as in plain Python"
        )
    return True
