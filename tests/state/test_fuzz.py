"""10,000 changes to real states: each gives a StateError or a stream, and nothing else ever.

Where the checksum was not made right again, the stream must be the same. Where a forger has made it right, a state may
describe another position; it must not crash, hang, run anything, take memory, or fail with an error of another kind.
"""

from __future__ import annotations

import random
import resource
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.laws.executors import make_service
from tests.rings import added_by_rings
from tests.state import fuzz_nodes
from tests.state.fuzz_graphs import AHEAD, GRAPHS
from tests.state.fuzzing import Saved, flat_mutation, forgery, noise, stream_of
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.state import inspect

RINGS = [*added_by_rings("fuzz_graphs")]
NODE_GRAPHS = fuzz_nodes.NODE_GRAPHS | {name: make for ring in RINGS for name, make in ring.GRAPHS.items()}
RAISES = fuzz_nodes.RAISES | {name: errors for ring in RINGS for name, errors in ring.RAISES.items()}
_EXTRA_MEMORY = 1 << 30  # a state may take so much, and far less than what a forger could ask for


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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Saved]:
    """Real states of every graph: of the start, the middle and the end, from this process and from workers."""
    found: list[Saved] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in GRAPHS.items():
            graph = make()
            options: dict[str, Any] = {"main_prefetch_cnt": AHEAD[name]} if name in AHEAD else {}
            found += states_of(name, graph, make_service(None, 2, every=2), (0, 3, 5))
            found += states_of(name, graph, make_service(2, 2, every=2, **options), (4,))
        for name, make_node in NODE_GRAPHS.items():
            graph = make_node(tmp_path_factory.mktemp("node"))
            found += states_of(name, graph, make_service(None, 2, every=2), (0, 3, 5))
    for item in found:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the replays are meant
            item.expected = stream_of(item, item.state)
    return found


def states_of(name: str, graph: Any, service: Any, steps: tuple[int, ...]) -> list[Saved]:
    """Where it stands after each of ``steps`` items more."""
    found = []
    with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(3)
        iterator = iter(loader)
        for step in steps:
            for _ in range(step):
                next(iterator)
            found.append(Saved(name, graph, loader.state_dict(), []))
    return found


def outcome(item: Saved, state: Any) -> list[str] | None:
    """The stream, or None for a StateError. Anything else is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return stream_of(item, state)
        except StateError:
            return None


@pytest.mark.parametrize("part", range(5))
def test_damage_is_found_or_does_no_harm(saved: list[Saved], part: int) -> None:
    chance = random.Random(part)
    refused = 0
    for number in range(1000):
        item, other = chance.choice(saved), chance.choice(saved)
        state = (noise if number % 2 else flat_mutation)(chance, item, other)
        got = outcome(item, state)
        refused += got is None
        assert got in (None, item.expected), f"{item.name}, mutation {number} of part {part}"
    assert refused > 800  # some mutations change nothing


@pytest.mark.parametrize("part", range(5))
def test_forgeries_are_refused_or_are_other_positions(saved: list[Saved], part: int, tmp_path: Path) -> None:
    chance = random.Random(100 + part)
    fuse = tmp_path / "exploded"
    kinds: Counter[str] = Counter()
    for number in range(1000):
        item, other = chance.choice(saved), chance.choice(saved)
        state = forgery(chance, item, other, fuse)
        try:
            got = outcome(item, state)
            try:
                inspect(state)
            except StateError:
                pass
        except Exception as error:
            if isinstance(error, RAISES.get(item.name, ())):
                continue
            error.add_note(f"{item.name}, forgery {number} of part {part}")
            raise
        kinds["refused" if got is None else "same" if got == item.expected else "other"] += 1
        assert not fuse.exists(), f"{item.name}, forgery {number} of part {part}"
    assert min(kinds.values()) > 10, kinds  # the mutations are neither all too coarse nor all without effect
