"""L8 through ``DataLoader``: a state is data; what was done to it is found, or makes another position of it."""

from __future__ import annotations

import io
import json
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from tests.data.datasets import Augmented, EagerSampler, Lines, StatefulNumbers, StatefulSampler, seeded
from tests.exact import exact
from tests.state.forging import opened_deep, part, places, replaced, sealed_deep
from tests.state.fuzzing import Saved, flat_mutation, forgery, noise
from torchpipe import DataLoader
from torchpipe.errors import OpaqueStateWarning, StateError, UnsafeStateError
from torchpipe.state import as_text, from_text

LENGTH = 14
_EXTRA_MEMORY = 1 << 30


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "sequential": lambda: DataLoader(Augmented(LENGTH), 3),
    "shuffled": lambda: DataLoader(Augmented(LENGTH), 3, shuffle=True),
    "with generator": lambda: DataLoader(Augmented(LENGTH), 3, shuffle=True, generator=_generator()),
    "any sampler": lambda: DataLoader(Augmented(LENGTH), 3, sampler=EagerSampler(LENGTH, 20, "torch random numpy")),
    "stateful sampler": lambda: DataLoader(Augmented(LENGTH), 3, sampler=StatefulSampler(LENGTH)),
    "stateful dataset": lambda: DataLoader(StatefulNumbers(LENGTH), 3),
    "rollover": lambda: DataLoader(Augmented(LENGTH), 4, shuffle=True, generator=_generator(), last_batch="rollover"),
    "distributed": lambda: DataLoader(
        Augmented(LENGTH), 3, sampler=torch.utils.data.DistributedSampler(Augmented(LENGTH), num_replicas=2, rank=0)
    ),
    "iterable": lambda: DataLoader(Lines(LENGTH), 3),
}


@pytest.fixture(autouse=True)
def limited_memory() -> Iterator[None]:
    """What asks for much more memory than there is in any honest state fails at once."""
    present = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (present + _EXTRA_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def stream_of(name: str, state: Any) -> list[str]:
    """What follows ``state``, two epochs at most. Raises: what loading or iterating raises."""
    with seeded(5), LOADERS[name]() as loader:
        loader.load_state_dict(state)
        return [exact(batch) for _ in range(2) for batch in islice(loader, 30)]


@pytest.fixture(scope="module")
def saved() -> list[Saved]:
    found = []
    for name, make in LOADERS.items():
        for stop in (0, 2, 4, 9):
            with seeded(), make() as loader:
                left = stop
                while left:
                    for _ in loader:
                        if not (left := left - 1):
                            break
                state = loader.state_dict()
            state["payload"] = from_text(state["payload"])  # bytes are as good, and easier to forge
            found.append(Saved(name, None, state, stream_of(name, state)))
    return found


def outcome(item: Saved, state: Any) -> list[str] | None:
    """The stream, or None for a StateError. Anything else is raised."""
    try:
        return stream_of(item.name, state)
    except StateError:
        return None


def test_L8_torch_reads_a_state_back_as_weights(saved: list[Saved]) -> None:
    for item in saved:
        file = io.BytesIO()
        torch.save(item.state, file)
        file.seek(0)
        assert stream_of(item.name, torch.load(file, weights_only=True)) == item.expected


def test_L8_json_holds_a_state(saved: list[Saved]) -> None:
    for item in saved:
        state = json.loads(json.dumps(item.state | {"payload": as_text(item.state["payload"])}))
        assert stream_of(item.name, state) == item.expected
        for damaged in (state["payload"][:-1], state["payload"] + "A", "\N{SNOWMAN}" + state["payload"], ""):
            with pytest.raises(StateError):
                stream_of(item.name, state | {"payload": damaged})


@pytest.mark.parametrize("seed", range(2))
def test_L8_damage_is_found_or_does_no_harm(saved: list[Saved], seed: int) -> None:
    chance, refused = random.Random(seed), 0
    for number in range(600):
        item, other = chance.choice(saved), chance.choice(saved)
        got = outcome(item, (noise if number % 2 else flat_mutation)(chance, item, other))
        refused += got is None
        assert got in (None, item.expected), f"{item.name}, mutation {number}"
    assert refused > 400


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_L8_forgeries_are_refused_or_are_other_positions(saved: list[Saved], seed: int, tmp_path: Path) -> None:
    chance, fuse = random.Random(100 + seed), tmp_path / "exploded"
    kinds: Counter[str] = Counter()
    for number in range(500):
        item, other = chance.choice(saved), chance.choice(saved)
        state = forgery(chance, item, other, fuse)
        try:
            got = outcome(item, state)
        except IndexError:  # the dataset's own: attributes of a sampler are part of a state, its length among them
            got = []
        except Exception as error:
            error.add_note(f"{item.name}, forgery {number} of {seed}")
            raise
        kinds["refused" if got is None else "same" if got == item.expected else "other"] += 1
        assert not fuse.exists(), f"{item.name}, forgery {number} of {seed}"
    assert min(kinds["refused"], kinds["same"]) > 10, kinds


HOSTILE = [None, True, -1, 1.5, 2**40, 2**62, 2**63, "x", b"x", [], {}, [None], [2**62], [[1]], [{"x": 1}], b"x" * 5056]


@pytest.mark.nightly
def test_L8_hostile_values_in_every_place(saved: list[Saved]) -> None:
    """Of an order's state, above all: counts, lists of batches, states of generators, epochs, what is left over."""
    tried = Counter[str]()
    for item in saved[2::4]:  # in mid-epoch
        content = opened_deep(item.state["payload"])
        for path in places(content):
            if path[:1] in (("identity",), ()) or len(path) > 5:
                continue
            for value in HOSTILE:
                state = item.state | {"payload": sealed_deep(replaced(content, path, lambda _, value=value: value))}
                try:
                    tried["refused" if outcome(item, state) is None else "accepted"] += 1
                except Exception as error:
                    error.add_note(f"{item.name}: {value!r:.50} at {path}")
                    raise
    assert tried["refused"] > tried["accepted"]


def test_L8_hostile_values_in_what_workers_have_of_a_state() -> None:
    """Of cursors, what each makes again, what is left over: found when it is loaded, before a process starts."""
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    loaders: tuple[DataLoader[Any], ...] = (
        DataLoader(StatefulNumbers(LENGTH), 3, **options),
        DataLoader(Lines(LENGTH), 3, **options),
        DataLoader(Augmented(LENGTH), 4, shuffle=True, last_batch="rollover", **options),
    )
    for loader in loaders:
        with loader:
            for _ in islice(loader, 4):
                pass
            state = loader.state_dict()
            content = opened_deep(from_text(state["payload"]))
            if "lanes" in (content["batches"] or {}):  # as of a worker that took no snapshot with its last batch
                entry = ("batches", "again", 1)
                content = replaced(content, entry, lambda _: [[msgpack.ExtType(1, b""), 1, [3, 4, 5]]])
                content = replaced(content, ("batches", "lanes", 1, "cursor", 2), lambda _: 1)
                loader.load_state_dict(state | {"payload": sealed_deep(content)})
            for path in places(content):
                if len(path) < 2 or path[0] not in ("batches", "standing", "order") or len(path) > 6:
                    continue
                for value in HOSTILE:
                    forged = replaced(content, path, lambda _, value=value: value)
                    try:
                        loader.load_state_dict(state | {"payload": sealed_deep(forged)})
                    except StateError:
                        continue
                    structure = path[1] in ("again", "lanes", "shards", "counts", "carried") and len(path) < 4
                    assert not structure or value in ([], part(content, path)), (path, value)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("count", [100, 2**31, 2**40, 2**61])
def test_L8_more_batches_than_there_are_were_not_delivered(saved: list[Saved], name: str, count: int) -> None:
    item = next(item for item in saved if item.name == name and item.state["delivered"] == 2)
    content = opened_deep(item.state["payload"])
    payload = sealed_deep(content | {"numbers": content["numbers"] | {"delivered": count}})
    with pytest.raises(StateError):
        stream_of(name, item.state | {"delivered": count, "payload": payload})


@dataclass
class Opaque:
    """Only pickle can rebuild it."""

    fuse: Path

    def __deepcopy__(self, memo: Any) -> Opaque:
        return self

    def __reduce__(self) -> Any:
        return Path.touch, (self.fuse,)


class OpaqueSampler(StatefulSampler):
    fuse: Path

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"opaque": Opaque(self.fuse)}


def test_L8_a_pickle_in_a_samplers_state_is_not_run_unless_allowed(tmp_path: Path) -> None:
    def make() -> DataLoader[Any]:
        sampler = OpaqueSampler(LENGTH)
        sampler.fuse = tmp_path / "exploded"
        return DataLoader(Augmented(LENGTH), 3, sampler=sampler)

    loader = make()
    next(iter(loader))
    with pytest.warns(OpaqueStateWarning) as warned:
        state = loader.state_dict()
    assert [item.filename for item in warned] == [__file__]
    with pytest.raises(UnsafeStateError):
        make().load_state_dict(state)
    assert not (tmp_path / "exploded").exists()
    make().load_state_dict(state, allow_pickle=True)
    assert (tmp_path / "exploded").exists()


def test_L8_a_refused_state_changes_nothing(saved: list[Saved]) -> None:
    def run(name: str, disturb: Callable[[DataLoader[Any]], None]) -> list[str]:
        with seeded(), LOADERS[name]() as loader:
            iterator = iter(loader)
            found = [exact(next(iterator))]
            disturb(loader)
            found += [exact(batch) for batch in iterator]
            disturb(loader)
            return found + [exact(batch) for batch in loader]

    for item in saved[1::4]:
        content = opened_deep(item.state["payload"])
        path = ("order", "start", "now") if "start" in (content["order"] or {}) else ("numbers",)
        assert part(content, path) is not None
        forged = item.state | {"payload": sealed_deep(replaced(content, path, lambda _: 2**40))}

        def refuse(loader: DataLoader[Any], forged: Any = forged) -> None:
            with pytest.raises(StateError):
                loader.load_state_dict(forged)

        assert run(item.name, refuse) == run(item.name, lambda _: None), item.name
