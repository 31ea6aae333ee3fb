"""``prefetch`` changes nothing but the time: same stream, same states, in a thread or not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources import Script, feed_threads, start
from torchpipe.errors import ReplayWarning, StateError, UnsafeStateError
from torchpipe.iter.items import Mapper
from torchpipe.iter.running import Prefetcher
from torchpipe.iter.shuffling import Shuffler
from torchpipe.iter.sources import IterableWrapper
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.state import Cursor, decode, encode

EVERY = st.sampled_from([1, 3, None])


def square(value: int) -> int:
    return value * value


def graph(length: int, depths: list[int]) -> IterDataPipe[Any]:
    """A shuffle between stages that run ahead; depth 0 leaves a stage out."""
    node: IterDataPipe[Any] = IterableWrapper(range(length))
    steps: list[Any] = [
        lambda node: Mapper(node, square),
        lambda node: Shuffler(node, buffer_size=4),
        lambda node: node,
    ]
    for step, depth in zip(steps, depths):
        node = step(node)
        if depth:
            node = Prefetcher(node, depth)
    return node


def take(iterator: Any, count: int) -> list[Any]:
    return [item for _, item in zip(range(count), iterator)]


DEPTHS = st.lists(st.integers(0, 4), min_size=3, max_size=3)


@given(length=st.integers(0, 20), depths=DEPTHS, threads=st.booleans(), seed=st.integers(0, 3))
def test_L1_the_stream_does_not_depend_on_stages_or_threads(
    length: int, depths: list[int], threads: bool, seed: int
) -> None:
    expected = list(start(graph(length, [0, 0, 0]), seed=seed))
    with start(graph(length, depths), threads=threads, seed=seed) as iterator:
        assert list(iterator) == expected


@st.composite
def legs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """How a stream is run in parts: where each part stops, and with which stages, threads and snapshots."""
    return [
        {"count": draw(st.integers(0, 9)), "depths": draw(DEPTHS), "threads": draw(st.booleans()), "every": draw(EVERY)}
        for _ in range(draw(st.integers(1, 4)))
    ]


@given(length=st.integers(0, 20), parts=legs())
def test_L2_resume_is_exact_at_every_position_with_and_without_the_stage(
    length: int, parts: list[dict[str, Any]]
) -> None:
    expected = list(start(graph(length, [0, 0, 0])))
    received: list[Any] = []
    state = None
    for part in parts:
        node = graph(length, part["depths"])
        with start(node, threads=part["threads"], every=part["every"], state=state) as iterator:
            received += take(iterator, part["count"])
            state = decode(encode(iterator.state_dict()))
    with start(graph(length, [0, 0, 2]), state=state) as iterator:
        received += list(iterator)
    assert received == expected


@pytest.mark.parametrize("every", [1, 3, None])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_L2_every_position_in_turn(every: int | None, depth: int) -> None:
    expected = list(start(graph(12, [0, 0, 0])))
    with start(graph(12, [0, 0, depth]), every=every) as iterator:
        states = [iterator.state_dict()]
        for _ in expected:
            next(iterator)
            states.append(iterator.state_dict())
        assert list(iterator) == []
        states.append(iterator.state_dict())
    for done, state in enumerate(states):
        for again in (graph(12, [0, 0, depth]), graph(12, [0, 0, 0])):
            with start(again, every=every, state=state) as iterator:
                assert list(iterator) == expected[done:]


def test_L2_a_state_just_loaded_is_the_state() -> None:
    with start(graph(12, [0, 0, 2]), every=3) as iterator:
        take(iterator, 5)
        state = iterator.state_dict()
    with start(graph(12, [0, 0, 2]), state=state) as iterator:
        assert iterator.state_dict() == state
    with start(graph(12, [0, 0, 2]), threads=False, state=state) as inline:
        plain = inline.state_dict()
    with start(graph(12, [0, 0, 2]), state=plain) as iterator:
        saved = iterator.state_dict()
        plain.clear()  # the iterator keeps a copy
        assert list(start(graph(12, [0, 0, 0]), state=saved)) == list(iterator)


class Generated(IterDataPipe[int]):
    def __iter__(self) -> Any:
        yield from range(10)


def test_L2_over_a_generator_it_resumes_by_replay() -> None:
    with start(Prefetcher(Generated(), 3), every=2) as iterator:
        take(iterator, 5)
        state = iterator.state_dict()
    with pytest.warns(ReplayWarning), start(Prefetcher(Generated(), 3), state=state) as iterator:
        assert list(iterator) == [5, 6, 7, 8, 9]


def test_what_cannot_be_saved_leaves_the_older_cursor(caplog: pytest.LogCaptureFixture) -> None:
    source = Script(range(10), extra_state=feed_threads)  # threads cannot be pickled
    with start(Prefetcher(source, 2), every=1) as iterator:
        take(iterator, 6)
        state = iterator.state_dict()
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert "Prefetcher keeps an older snapshot" in caplog.text
    assert list(start(Script(range(10)), state=state)) == [6, 7, 8, 9]


def test_L8_pickles_in_a_state_load_only_when_allowed() -> None:
    source = Script(range(10), extra_state=lambda: ValueError("an object"))
    with start(Prefetcher(source, 2), every=1) as iterator:
        take(iterator, 3)
        state = iterator.state_dict()
    with pytest.raises(UnsafeStateError):
        start(Prefetcher(source, 2), state=state)
    with start(Prefetcher(source, 2), state=state, allow_pickle=True) as iterator:
        assert next(iterator) == 3


def test_a_state_is_refused_after_the_start() -> None:
    with start(Prefetcher(Script(range(3)))) as iterator:
        state = iterator.state_dict()
        next(iterator)
        with pytest.raises(StateError, match="already started"):
            iterator.load_state_dict(state)


def test_a_state_beyond_the_end_is_refused() -> None:
    with pytest.raises(StateError, match="has the data become shorter"):
        start(Prefetcher(Script(range(3)), 2), state=Cursor(None, 5).to_state())


def test_it_is_a_description() -> None:
    node = Prefetcher(IterableWrapper(range(5)))
    assert node.buffer_size == 10
    assert len(node) == 5
    with start(node) as first, start(pickle.loads(pickle.dumps(node))) as second:
        assert [*zip(first, second)] == [(value, value) for value in range(5)]
    assert list(IterableWrapper(range(5)).prefetch(2)) == list(range(5))
