"""A script of a user's, with its classes in ``__main__``: random histories of a run, and what each of them gives.

``python users_script.py first last [method]``: the histories of these numbers, under a start method or in process. A
run is left and resumed again and again, and its last event before that is any: an item, an error in its place, a
repetition of a state, a skip, an interrupt. Each item of each epoch comes once, in its place, whatever happened. The
collector is switched off, so that what is dropped has to end by itself. Prints what went wrong.
"""

from __future__ import annotations

import gc
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from reading_services import MultiProcessingReadingService
from tests import leaks
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import IteratorInvalidated
from torchpipe.iter import IterableWrapper

EPOCHS = 3
ERROR = "an error"


class Interrupt(KeyboardInterrupt):
    """What the handler raises."""


@dataclass
class Record:
    number: int


class Bad(ValueError):
    """Of one record."""


class Records(Dataset[Record]):
    """Some cannot be read."""

    def __init__(self, length: int, bad: frozenset[int] = frozenset()) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Record:
        if index in self.bad:
            raise Bad(index)
        return Record(index)


class Drawn(Sampler[int]):
    """Draws from a generator of its own, and counts its passes."""

    def __init__(self, length: int) -> None:
        self.length, self.random, self.passes = length, random.Random(1), 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        drawn = self.random.sample(range(self.length), self.length)
        return iter([(number + self.passes) % self.length for number in drawn])

    def __len__(self) -> int:
        return self.length


class Passing(IterableDataset[Record]):
    """Each pass is another one; it draws for each record."""

    def __init__(self, length: int) -> None:
        self.length, self.passes, self.random = length, 0, random.Random(2)

    def __iter__(self) -> Iterator[Record]:
        self.passes += 1
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield Record(1000 * self.passes + number + 10_000 * self.random.randrange(9))


class Telling(Passing):
    """Says in a state where it stands."""

    at, left = 0, -1

    def __iter__(self) -> Iterator[Record]:
        info = get_worker_info()
        if self.left < 0:
            self.left = self.length if info is None else self.length // info.num_workers
        while self.left:
            self.left -= 1
            self.at += 1
            yield Record(self.at)
        self.left = -1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.left = state["at"], state["left"]


def numbers(batch: list[Record]) -> list[int]:
    return [record.number for record in batch]


def recorded(number: int) -> Record:
    return Record(number)


def plain(item: Any) -> Any:
    return item.number if isinstance(item, Record) else item


def make(draw: random.Random, method: str | None) -> Callable[[], Any]:
    """A function that makes a loader of some kind, again and again."""
    length, size = draw.randint(2, 8), draw.randint(1, 3)
    bad = frozenset(draw.sample(range(length), draw.choice((0, 0, 1, 2))))
    options: dict[str, Any] = {"collate_fn": numbers}
    if method is not None:
        options |= {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": draw.random() < 0.6}
    if draw.random() < 0.3:
        options["device"] = "cpu"
    kind = draw.choice(("shuffled", "drawn", "passing", "telling", "graph"))
    if kind == "shuffled":
        return lambda: DataLoader(Records(length, bad), size, shuffle=True, **options)
    if kind == "drawn":
        return lambda: DataLoader(Records(length, bad), size, sampler=Drawn(length), **options)
    if kind == "passing":
        return lambda: DataLoader(Passing(length), size, **options)
    if kind == "telling":
        return lambda: DataLoader(Telling(length), size, **options)

    def graph() -> Any:
        node = IterableWrapper(range(length)).shuffle().sharding_filter().map(recorded)
        service = MultiProcessingReadingService(
            0 if method is None else 2, num_shards=2, multiprocessing_context=method, device=options.get("device")
        )
        loader: Any = DataLoader2(node, reading_service=service)
        loader.seed(7)
        return loader

    return graph


def expected_of(loader: Any) -> list[list[Any]]:
    """What each epoch gives."""
    found: list[list[Any]] = []
    with loader:
        while loader.epoch < EPOCHS:
            found.append([])
            stream = iter(loader)
            while (item := take(stream)) is not None:
                found[-1].append(item)
    return found


def take(stream: Any) -> Any:
    try:
        return plain(next(stream))
    except StopIteration:
        return None
    except Bad:
        return ERROR


class History:
    """One run, with all that happens to it. ``place``: how many items of the epoch are past."""

    def __init__(self, number: int, method: str | None) -> None:
        import torch

        self.draw = random.Random(number)
        self.make = make(self.draw, method)
        torch.manual_seed(5)
        self.expected = expected_of(self.make())
        torch.manual_seed(5)
        self.armed = False
        self.events: list[Any] = []
        signal.signal(signal.SIGALRM, self.strike)

    def strike(self, *_: Any) -> None:
        if self.armed:
            self.armed = False
            raise Interrupt

    def run(self) -> None:
        before = leaks.Footprint.take()
        loader = self.make()
        place, stream = 0, None
        while (epoch := loader.epoch) < EPOCHS:
            if stream is None:
                stream = iter(loader)
            event = self.draw.choice(("take", "take", "take", "skip", "interrupt", "resume", "again", "drop"))
            self.events.append((epoch, place, event))
            expected = self.expected[epoch]
            rest = expected[place:]
            if event == "skip":
                count = self.draw.randint(1, 3)
                if rest and ERROR not in expected[max(0, place - 1) : place + count]:
                    assert loader.skip(count) == min(count, len(rest))
                    place += min(count, len(rest))
                continue
            if event in ("take", "interrupt"):
                most, struck = (1, False) if event == "take" else (3, True)
                found, outcome = self.taken(stream, most, struck=struck)
                assert found == rest[: len(found)], (found, rest)
                place += len(found)
                assert outcome != "ended" or place == len(expected), (place, expected)
                moved = loader.epoch != epoch  # it has ended, or an interrupt has ended the iterator
                if moved and outcome == "ended" and self.draw.random() < 0.7:
                    place, stream = 0, None
                    continue
                if not moved and outcome == "goes on" and self.draw.random() < 0.7:
                    continue
            state, stream = loader.state_dict(), None
            if state["epoch"] != epoch:
                assert (place, state["delivered"]) == (len(expected), 0)
                place = 0
            elif state["delivered"] != place:  # an error comes again, unless one behind it was wanted
                assert (state["delivered"], expected[place - 1]) == (place - 1, ERROR), place
                place -= 1
            if event == "drop":
                loader = None
                assert leaks.wait_nothing_left(before) == [], "left behind"
            loader = self.resumed(loader, state)
            if event == "again":
                for _ in range(self.draw.randint(1, 2)):
                    iter(loader)
                state = loader.state_dict()  # of the repetition
                loader = self.resumed(loader, state)
        loader = stream = None
        assert leaks.wait_nothing_left(before) == [], "left behind"

    def resumed(self, loader: Any, state: Any) -> Any:
        """Another loader, or this one, that has loaded the state."""
        if loader is None or self.draw.random() < 0.6:
            if loader is not None:
                loader.shutdown()
            loader = self.make()
        loader.load_state_dict(state)
        return loader

    def taken(self, stream: Any, most: int, *, struck: bool) -> tuple[list[Any], str]:
        """Some items, and what has become of the iterator. ``struck``: an interrupt comes, sooner or later."""
        found: list[Any] = []
        delay, outcome = self.draw.choice((2e-5, 1e-4, 5e-4, 2e-3)), "ended"
        try:
            if struck:
                self.armed = True
                signal.setitimer(signal.ITIMER_REAL, delay)
            for item in stream:
                found.append(item)
                if len(found) == most:
                    outcome = "goes on"
                    break
        except Interrupt as error:
            outcome = "struck" if self.draw.random() < 0.5 else "goes on"
            if isinstance(error.__context__, Bad):  # which was on its way
                found.append(ERROR)
        except Bad:
            found.append(ERROR)
            outcome = "goes on"
        except IteratorInvalidated:  # by an interrupt before
            outcome = "struck"
        self.armed = False
        return list(map(plain, found)), outcome


def main() -> None:
    gc.collect()
    gc.disable()
    warnings.simplefilter("ignore")
    first, last, *methods = sys.argv[1:]
    for number in range(int(first), int(last)):
        history = None
        try:
            history = History(number, methods[0] if methods else None)
            history.run()
        except (Exception, KeyboardInterrupt):
            events = [] if history is None else history.events[-6:]
            expected = None if history is None else history.expected
            print(f"history {number} {methods}: {traceback.format_exc(limit=-2)} {events} of {expected}")
    print("done")


if __name__ == "__main__":
    main()
