"""L2 after an exception: what a node of the main section did not let through is not counted, and comes again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.executors import make_loader, make_service, pids
from tests.tries import tries
from torchpipe import IterDataPipe
from torchpipe.iter import IterableWrapper

LENGTH = 23


class Fuse:
    """Hands its argument on; raises ``error`` instead at call number ``at``, and never again in this process."""

    def __init__(self, at: int | None, error: type[BaseException] = ValueError) -> None:
        self.error = error
        calls: list[int] = []
        self._made = lambda: calls  # a function goes by reference into the copy that a pass works on
        self._at = at

    def __call__(self, value: Any) -> Any:
        calls = self._made()
        calls.append(len(calls))
        if calls[-1] == self._at:
            raise self.error("planted")
        return value


def twice(value: Any) -> list[Any]:
    return [value, [value]]


def not_third(value: Any) -> bool:
    return bool(value % 3)


BEFORE = {
    "nothing": lambda graph: graph,
    "filter": lambda graph: graph.filter(not_third),
    "shuffle": lambda graph: graph.shuffle(buffer_size=4),
    "shuffle and filter": lambda graph: graph.shuffle(buffer_size=3).filter(not_third),
}
BEHIND = {
    "nothing": lambda graph: graph,
    "batch": lambda graph: graph.batch(3),
    "shuffle": lambda graph: graph.shuffle(buffer_size=5),
    "flatmap": lambda graph: graph.flatmap(twice),
    "prefetch": lambda graph: graph.prefetch(2),
}


def graph_of(before: str, after: str, fuse: Fuse, depth: int = 2) -> IterDataPipe[Any]:
    graph: Any = IterableWrapper(range(LENGTH)).sharding_filter().to_device("cpu", depth)
    return BEHIND[after](BEFORE[before](graph).map(fuse))  # type: ignore[no-any-return]


def run_into(fuse: Fuse, graph: IterDataPipe[Any], service: Any, state: Any = None) -> tuple[list[Any], Any, int]:
    """What is delivered until the planted exception, or to the end; the state then; the calls so far."""
    received = []
    with make_loader(graph, service) as loader:
        if state is not None:
            loader.load_state_dict(state)
        try:
            for item in loader:  # iter(loader) already calls the fuse, where a restore drops items
                received.append(item)
        except fuse.error as error:
            assert "planted" in str(error)
            assert loader.state_dict()["delivered"] == (0 if state is None else state["delivered"]) + len(received)
        return received, loader.state_dict(), len(fuse._made())


@given(
    before=st.sampled_from(sorted(BEFORE)),
    after=st.sampled_from(sorted(BEHIND)),
    depth=st.integers(0, 3),
    at=st.lists(st.integers(0, LENGTH), min_size=1, max_size=3),
    kind=st.sampled_from([ValueError, KeyboardInterrupt, SystemExit]),
    every=st.sampled_from([1, 3, None]),
    num_shards=st.integers(1, 3),
)
@settings(max_examples=tries(80))
def test_L2_an_item_that_raised_behind_the_device_stage_comes_again(
    before: str,
    after: str,
    depth: int,
    at: list[int],
    kind: type[BaseException],
    every: int | None,
    num_shards: int,
) -> None:
    expected = run_into(Fuse(None), graph_of(before, after, Fuse(None)), make_service(None, num_shards))[0]
    received: list[Any] = []
    state = None
    for position in [*at, None]:  # one exception after the other, each in the run that goes on from the last
        if len(received) == len(expected):
            break  # the state is behind the epoch's last item: the next run would be the next epoch
        fuse = Fuse(position, kind)
        service = make_service(None, num_shards, every=every)
        part, state, _ = run_into(fuse, graph_of(before, after, fuse, depth), service, state)
        received += part
    assert received == expected


@pytest.mark.parametrize("after", ["nothing", "batch", "shuffle"])
@pytest.mark.parametrize("at", [0, 1, 10, LENGTH - 1])
def test_L2_an_item_that_raised_behind_the_device_stage_comes_again_with_workers(after: str, at: int) -> None:
    expected = run_into(Fuse(None), graph_of("nothing", after, Fuse(None)), make_service(None, 2))[0]
    fuse = Fuse(at)
    service = make_service(2, 2, every=2)
    received, state, _ = run_into(fuse, graph_of("nothing", after, fuse), service)
    assert len(received) < len(expected)
    rest, _, _ = run_into(fuse, graph_of("nothing", after, fuse), make_service(2, 2), state)
    assert received + rest == expected


def test_L2_what_the_loader_counts_and_the_position_agree_after_ctrl_c() -> None:
    """The same loader goes on from its own state, as docs/guarantees.md says."""
    fuse = Fuse(7, KeyboardInterrupt)
    with make_loader(graph_of("nothing", "nothing", fuse), make_service(2, 2)) as loader:
        iterator = iter(loader)
        received = [next(iterator) for _ in range(7)]
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert loader.state_dict()["delivered"] == 7
        assert len(pids(loader)) == 2
        loader.load_state_dict(loader.state_dict())
        received += list(loader)
    assert received == list(range(LENGTH))


@pytest.mark.parametrize("every", [1, 3, 7])
def test_L5_behind_an_exception_no_more_is_dropped_than_since_the_last_snapshot(every: int) -> None:
    for before, dropped in (("nothing", 0), ("shuffle", 20 % every)):  # where a shuffle stands costs too much to note
        fuse = Fuse(20)
        graph = graph_of(before, "nothing", fuse)
        _, state, _ = run_into(fuse, graph, make_service(None, 1, every=every))
        reached = len(fuse._made())
        rest, _, calls = run_into(fuse, graph, make_service(None, 1, every=every), state)
        assert len(rest) == 3
        assert before == "shuffle" or rest == [20, 21, 22]
        assert calls - reached - len(rest) == dropped
