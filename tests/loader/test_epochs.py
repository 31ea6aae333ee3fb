"""The table of docs/resume.md as a model: any sequence of calls on any loader does what the table says.

The model knows a loader's form, its epoch, and the streams: a graph's are a function of its epoch, those of a
``DataLoader`` with ``generator=`` of where the generator stood, which the model finds with torch's own samplers.
"""

from __future__ import annotations

import copy
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.data.order.samplers import RolloverBatchSampler
from torchpipe.errors import IteratorInvalidated
from torchpipe.iter import IterableWrapper
from torchpipe.state import SnapshotPolicy

SAMPLES, SIZE, SEED = 7, 2, 5
END: Any = object()


@dataclass(frozen=True)
class Start:
    """What an epoch's order is drawn from: where the generator stands, and what was left over before."""

    generator: bytes = b""
    carried: tuple[int, ...] = ()
    seeded: bool = False  # persistent workers have their seed


@dataclass(frozen=True)
class Place:
    """``count`` items into an epoch. ``begun``: as a state of its midst, which may be one of 0 items."""

    epoch: int
    start: Start
    count: int = 0
    begun: bool = False


class Streams:
    """Of a graph: by the epoch."""

    def __init__(self, graph: Callable[[], Any], shards: int) -> None:
        self._loader: DataLoader2[Any] = DataLoader2(
            graph(), reading_service=InProcessReadingService(num_shards=shards)
        )
        self._loader.seed(SEED)
        self._known: dict[int, list[Any]] = {}

    def first(self) -> Start:
        return Start()

    def items(self, place: Place) -> list[Any]:
        if place.epoch not in self._known:
            self._loader.set_epoch(place.epoch)
            self._known[place.epoch] = [item for item in self._loader]  # noqa: C416 (list() would ask for the length)
        return self._known[place.epoch]

    def left(self, place: Place) -> Start:
        return place.start

    def ended(self, place: Place) -> Start:
        return place.start


class Orders:
    """Of a ``DataLoader`` with ``generator=``."""

    def __init__(self, *, rolls: bool = False, persists: bool = False) -> None:
        self._rolls, self._persists = rolls, persists

    def first(self) -> Start:
        return Start(torch.Generator().manual_seed(SEED).get_state().numpy().tobytes())

    def _run(self, start: Start, count: int, *, ends: bool = False) -> tuple[list[Any], Start]:
        generator = torch.Generator()
        generator.set_state(torch.frombuffer(bytearray(start.generator), dtype=torch.uint8))
        inner = RandomSampler(range(SAMPLES), generator=generator)
        sampler: Any = BatchSampler(inner, SIZE, False)
        if self._rolls:
            sampler = RolloverBatchSampler(inner, SIZE)
            sampler.carried = list(start.carried)
        stream = iter(sampler)
        if not (self._persists and start.seeded):
            torch.empty((), dtype=torch.int64).random_(generator=generator)
        batches = [next(stream) for _ in range(count)]
        if ends:
            batches += list(stream)
        if self._rolls:
            stream.settle(len(batches))
        carried = tuple(sampler.carried) if self._rolls else ()
        return batches, Start(generator.get_state().numpy().tobytes(), carried, self._persists)

    def items(self, place: Place) -> list[Any]:
        return self._run(place.start, 0, ends=True)[0]

    def left(self, place: Place) -> Start:
        return self._run(place.start, place.count)[1]

    def ended(self, place: Place) -> Start:
        return self._run(place.start, 0, ends=True)[1]


class Rows(IterableDataset[int]):
    """Divides itself."""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        return iter(range(SAMPLES) if info is None else range(info.id, SAMPLES, info.num_workers))


class Same:
    """Of an iterable dataset, each epoch is the same."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def first(self) -> Start:
        return Start()

    def items(self, place: Place) -> list[Any]:
        shards = [list(range(worker, SAMPLES, self._workers)) for worker in range(self._workers)]
        batches = [[shard[at : at + SIZE] for at in range(0, len(shard), SIZE)] for shard in shards]
        return [part[at] for at in range(SAMPLES) for part in batches if at < len(part)]

    def left(self, place: Place) -> Start:
        return place.start

    def ended(self, place: Place) -> Start:
        return place.start


class System:
    """A loader, as the model calls it."""

    drops = True  # an iterator can be let go of
    passes = False  # a state is one of its pass, as long as somebody has that
    ordered = True
    is_node = False  # ``reset()`` begins its passes
    is_dataset = False  # whose passes are each of its own
    copies = False
    looks = True  # a pass of which nothing was taken, or one item, may be no epoch
    seeds = False

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    @property
    def epoch(self) -> int:
        return int(self.loader.epoch)

    def begin(self) -> Any:
        return iter(self.loader)

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def close(self) -> None:
        self.loader.shutdown()

    def pids(self) -> list[int]:
        return []


class Graph(System):
    def pids(self) -> list[int]:
        service = self.loader.reading_service
        return service.worker_pids() if isinstance(service, MultiProcessingReadingService) else []


class MapStyle(System):
    copies = True

    def pids(self) -> list[int]:
        return list(self.loader.worker_pids()) if self.loader.worker_method == "multiprocessing" else []


class OutOfOrder(MapStyle):
    ordered = False


def sized() -> Any:
    return IterableWrapper(range(6)).shuffle().sharding_filter()


def unsized() -> Any:
    return IterableWrapper(range(9)).shuffle().sharding_filter().filter(lambda item: item < 6)


def wrong_length() -> Any:
    return sized().set_length(4)


def dispatched() -> Any:
    return IterableWrapper(range(6)).shuffle().sharding_round_robin_dispatch().map(lambda item: item)


def graph_system(kind: type[System], graph: Callable[[], Any], service: Callable[[], Any]) -> System:
    loader: DataLoader2[Any] = DataLoader2(graph(), reading_service=service())
    loader.seed(SEED)
    return kind(loader)


def map_system(kind: type[System] = MapStyle, **options: Any) -> System:
    own: dict[str, Any] = {"shuffle": True, "generator": torch.Generator().manual_seed(SEED)}
    return kind(DataLoader(list(range(SAMPLES)), SIZE, **own, **options))  # type: ignore[arg-type]


def iterable_system(**options: Any) -> System:
    return MapStyle(DataLoader(Rows(), SIZE, **options))


def in_process(**options: Any) -> Any:
    return InProcessReadingService(num_shards=2, policy=partial(SnapshotPolicy, every=2), **options)


def workers(number: int) -> Any:
    return MultiProcessingReadingService(number, "fork", num_shards=2)


FORK = {"multiprocessing_context": "fork"}
HERE: dict[str, tuple[Callable[[], Any], list[Callable[[], System]]]] = {
    "graph": (lambda: Streams(sized, 2), [partial(graph_system, Graph, sized, in_process)]),
    "graph without length, prefetching": (
        lambda: Streams(unsized, 2),
        [partial(graph_system, Graph, unsized, partial(in_process, prefetch_cnt=2))],
    ),
    "graph, a wrong length": (
        lambda: Streams(wrong_length, 2),
        [partial(graph_system, Graph, wrong_length, in_process)],
    ),
    "DataLoader": (Orders, [map_system]),
    "rollover": (partial(Orders, rolls=True), [partial(map_system, last_batch="rollover")]),
    "device": (Orders, [partial(map_system, device="cpu")]),
    "iterable": (lambda: Same(1), [iterable_system]),
}
ELSEWHERE: dict[str, tuple[Callable[[], Any], list[Callable[[], System]]]] = {
    "graph in workers": (
        lambda: Streams(unsized, 2),
        [partial(graph_system, Graph, unsized, partial(workers, number)) for number in (2, 1, 0)],
    ),
    "graph with a dispatcher": (
        lambda: Streams(dispatched, 2),
        [partial(graph_system, Graph, dispatched, partial(workers, number)) for number in (2, 1)],
    ),
    "workers": (
        Orders,
        [partial(map_system, num_workers=2, **FORK), map_system, partial(map_system, num_workers=3, **FORK)],
    ),
    "threads": (Orders, [partial(map_system, num_workers=2, worker_method="thread"), map_system]),
    "persistent": (
        partial(Orders, persists=True),
        [partial(map_system, num_workers=number, persistent_workers=True, **FORK) for number in (2, 1)],
    ),
    "out of order": (Orders, [partial(map_system, OutOfOrder, num_workers=2, in_order=False, **FORK)]),
    "iterable in workers": (lambda: Same(2), [partial(iterable_system, num_workers=2, **FORK)]),
    "device, rollover, workers": (
        partial(Orders, rolls=True),
        [partial(map_system, num_workers=2, device="cpu", last_batch="rollover", **FORK)],
    ),
}


def plain(item: Any) -> Any:
    return item.tolist() if isinstance(item, torch.Tensor) else item


class Machine(RuleBasedStateMachine):
    """``form``: fresh, loaded, live or parked. ``place``: of the epoch at work, else of the one that is next."""

    case: tuple[Callable[[], Any], list[Callable[[], System]]]

    @initialize()
    def begin(self) -> None:
        make_streams, self.made = type(self).case
        self.streams: Any = make_streams()
        self.system = self.made[0]()
        self.form = "fresh"
        self.place = Place(0, self.streams.first())
        self.following: int | None = None  # the epoch that set_epoch() has named meanwhile
        self.iterator: Any = None
        self.rest: list[Any] = []
        self.older: list[Any] = []  # iterators that were superseded, each with what its next step has to raise
        self.saved: list[tuple[Any, Place, list[Any]]] = []
        self.ended: Place | None = None  # of the pass whose iterator is still there
        self.used = False
        self.before: tuple[str, Place, list[Any]] = ("fresh", self.place, [])  # what the iterator began with
        self.had = 0  # items of it
        self.numbered = self.began_numbered = False  # somebody has asked for the epoch's number since one began
        self.noted: tuple[int, int] | None = None  # where a state was saved in mid-epoch

    def teardown(self) -> None:
        if hasattr(self, "system"):
            self.iterator, self.older = None, []
            self.system.close()

    # -- the model ------------------------------------------------------------------------------------------------

    @property
    def _was_look(self) -> bool:
        """Nothing was taken, or one item, of which no state is, by somebody who asks for no epoch's number, and had
        taken more before."""
        if self.following is not None or not self.system.looks:
            return False
        unsaved = self.noted != (self.place.epoch, self.place.count)
        return not self.had or (self.had == 1 and unsaved and not self.began_numbered)

    def _coming(self) -> tuple[str, Place, list[Any]]:
        """The form, the place and the items of what ``iter()`` begins."""
        form, place, rest = self.form, self.place, self.rest
        if form not in ("fresh", "loaded"):
            epoch = place.epoch + 1 if self.following is None else self.following
            if self._was_look and not self.had:  # what was drawn stays drawn
                return "loaded", place, rest
            if self._was_look:
                form, began, rest = self.before
                if form == "loaded":
                    return form, began, rest
                epoch = began.epoch
            form, place = "fresh", Place(epoch, self.streams.left(place))
        return form, place, rest if form == "loaded" else self.streams.items(place)

    def _next_place(self) -> Place:
        """Where ``iter()`` begins."""
        return self._coming()[1]

    def _leave(self) -> None:
        """The iterator is gone, or is told so."""
        if self.iterator is not None and self.system.drops:
            self.older.append((self.iterator, IteratorInvalidated if self.form == "live" else StopIteration))
        self.iterator = self.ended = None

    def _fresh(self, place: Place) -> None:
        self.form, self.place, self.following = "fresh", place, None

    # -- rules ----------------------------------------------------------------------------------------------------

    def _iter(self) -> None:
        form, place, rest = self._coming()
        looked = self.form in ("live", "parked") and self.had == 1  # the second in a row counts
        self._leave()
        self.iterator = self.system.begin()
        self.before, self.had, self.noted = (form, place, list(rest)), 0, None
        self.began_numbered, self.numbered = self.numbered or looked, False
        self.form, self.place, self.following, self.rest = "live", replace(place, begun=True), None, list(rest)
        self.used = True

    def _next(self, count: int) -> None:
        for _ in range(count):
            item = plain(next(self.iterator, END))
            if item is END:
                assert self.rest == []
                place = self.place
                epoch = place.epoch + 1 if self.following is None else self.following
                self._fresh(Place(epoch, self.streams.ended(place)))
                self.ended = place
                return
            if self.system.ordered:
                assert item == self.rest.pop(0)
            else:
                self.rest.remove(item)
            self.place = replace(self.place, count=self.place.count + 1)
            self.had += 1

    @rule(count=st.integers(0, 9), saves=st.booleans())
    def loop(self, count: int, saves: bool) -> None:
        """``iter()``, and so many items; 9 are more than there are."""
        self._iter()
        self._next(count)
        if saves:
            self.save()

    @precondition(lambda self: self.form == "live")
    @rule(count=st.integers(1, 9), saves=st.booleans())
    def go_on(self, count: int, saves: bool) -> None:
        self._next(count)
        if saves:
            self.save()

    @precondition(lambda self: self.iterator is not None)
    @rule(closes=st.booleans())
    def leave(self, closes: bool) -> None:
        """``break``, or ``shutdown()``; and a state of where that was."""
        if closes or not self.system.drops:
            self._close()
        else:
            self.iterator = self.ended = None
            self._park()
        self.save()

    def _park(self) -> None:
        if self.form == "live" and not self.had and self._was_look:
            self.form, self.place, self.rest = self._coming()
        elif self.form == "live":
            self.form = "parked"

    @precondition(lambda self: self.system.drops and self.system.looks)
    @rule(count=st.integers(1, 3))
    def glance(self, count: int) -> None:
        """``next(iter(loader))``, so often; the first time after somebody has asked for the epoch's number."""
        for _ in range(count):
            self._iter()
            self._next(1)
            self.iterator = self.ended = None
            self._park()

    def save(self) -> None:
        if (self.system.is_node or self.system.is_dataset) and not self.used and self.form == "fresh":
            return  # there is no pass yet
        state = self.system.state()
        place, rest = self.place, self.rest
        if self.ended is not None and self.system.passes:
            place, rest = self.ended, []
        elif self.form == "fresh":
            rest = self.streams.items(place)
        if self.system.is_dataset and self.form in ("fresh", "loaded") and self.ended is None:
            return  # of the last pass, which set_epoch() and restore() leave alone
        if self.form in ("live", "parked"):
            self.noted = self.place.epoch, self.place.count
        assert state["epoch"] == place.epoch
        assert state["delivered"] == place.count or not self.system.ordered
        self.saved.append((copy.deepcopy(state), place, list(rest)))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), named=st.sampled_from([None, None, "its own", "another"]), count=st.integers(0, 9))
    def load(self, data: st.DataObject, named: str | None, count: int) -> None:
        """Any state, the newest ones oftener; saved at once as well; then ``set_epoch``; then a loop."""
        state, place, rest = data.draw(st.sampled_from(self.saved[-3:]) | st.sampled_from(self.saved))
        self.system.load(state)
        if self.system.is_dataset:
            self.iterator = self.ended = None  # a pass of its own, which goes on
        else:
            self._leave()
        self._loaded(place, rest)
        self.look()
        self.save()
        if named is not None:
            self.set_epoch(place.epoch + (named == "another"))
        if count:
            self._iter()
            self._next(count)

    @precondition(lambda self: self.saved and len(self.made) > 1)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """Another loader goes on, with another number of workers."""
        state, place, rest = data.draw(st.sampled_from(self.saved))
        self.teardown()
        self.system = data.draw(st.sampled_from(self.made))()
        self.system.load(state)
        self._loaded(place, rest)

    def _loaded(self, place: Place, rest: list[Any]) -> None:
        self.form = "loaded" if place.begun else "fresh"
        self.place, self.rest, self.following = place, list(rest), None
        self.used = self.numbered = False

    @rule(epoch=st.integers(0, 3))
    def set_epoch(self, epoch: int) -> None:
        self.system.set_epoch(epoch)
        if self.form == "live":
            self.following = epoch
        elif self.form == "loaded" and epoch == self.place.epoch:
            return
        else:
            start = self.place.start if self.form == "fresh" else self.streams.left(self.place)
            self._fresh(Place(epoch, start))

    @precondition(lambda self: self.form != "live")
    @rule()
    def set_the_epoch_that_it_says(self) -> None:
        self.set_epoch(self.system.epoch)
        self.save()

    def _close(self) -> None:
        if self.system.is_dataset:
            return
        self.system.close()
        if self.form == "live":
            self._leave()
            self._park()
        if self.system.is_node:
            self.iterator = None

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        pids = self.system.pids()
        if pids:
            os.kill(data.draw(st.sampled_from(pids)), signal.SIGKILL)

    @invariant()
    def the_older_ones_are_told(self) -> None:
        while self.older:
            iterator, kind = self.older.pop()
            if not self.system.is_dataset:  # whose passes are each of its own
                with pytest.raises(kind):
                    next(iterator)

    @precondition(lambda self: self.system.copies)
    @rule()
    def copy(self) -> None:
        try:
            copied = copy.deepcopy(self.system.loader)
        except TypeError as error:
            assert self.used
            assert "cannot be pickled or copied" in str(error)
            return
        place = self._next_place()
        rest = self.rest if self.form == "loaded" else self.streams.items(place)
        assert copied.epoch == place.epoch
        found = [plain(item) for item in copied]
        copied.shutdown()
        assert found == list(rest) if self.system.ordered else sorted(found) == sorted(rest)

    @invariant()
    def look(self) -> None:
        expected = self.place.epoch if self.form == "live" else self._next_place().epoch
        if self.system.is_dataset and self.form == "live":
            expected = self.place.epoch + 1 if self.following is None else self.following  # of the next pass
        assert self.system.epoch == expected, self.form
        self.numbered = True


def play(case: tuple[Callable[[], Any], list[Callable[[], System]]], examples: int, steps: int) -> None:
    machine = type("Case", (Machine,), {"case": case})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps))


@pytest.mark.parametrize("name", HERE)
def test_L2_any_sequence_of_calls(name: str) -> None:
    play(HERE[name], 40, 15)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_L2_any_sequence_of_calls_with_workers(name: str) -> None:
    play(ELSEWHERE[name], 4, 8)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("delivered", [0, 1])
def test_L2_another_epoch_than_the_loaded_one_has_the_order_that_it_has_after_a_break(
    workers: int, delivered: int
) -> None:
    """Workers ask the sampler for more than was delivered."""

    def made() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(SEED)
        options: dict[str, Any] = FORK if workers else {}
        return DataLoader(list(range(SAMPLES)), SIZE, shuffle=True, generator=generator, num_workers=workers, **options)

    def left(loader: DataLoader[Any]) -> None:
        stream = iter(loader)
        for _ in range(delivered):
            next(stream)

    with made() as loader:
        left(loader)
        state = loader.state_dict()
        loader.set_epoch(1)
        expected = [plain(item) for item in loader]
    with made() as loader:
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert [plain(item) for item in loader] == expected
