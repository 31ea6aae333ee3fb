"""``map_batches`` and ``async_map_batches``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def ranks(items: list[Any]) -> list[Any]:
    return [(item, place) for place, item in enumerate(items)]


def lazy_ranks(items: list[Any]) -> Any:
    return (pair for pair in ranks(items))


async def later(item: int) -> int:
    await asyncio.sleep(0.002 if item % 3 else 0)
    return item * 10


async def together(one: int, other: int) -> int:
    await asyncio.sleep(0)
    return one + other


@pytest.mark.parametrize("fn", [ranks, lazy_ranks])
def test_L2_exact_resume(fn: Any) -> None:
    check_node(lambda: CountingSource(range(11)).map_batches(fn, 4), pulls=lambda k: k + 3)


@pytest.mark.parametrize("flatten", [True, False])
def test_L2_exact_resume_of_coroutines(flatten: bool) -> None:
    check_node(
        lambda: CountingSource(range(7)).async_map_batches(later, 3, flatten=flatten), pulls=lambda k: 3 * k, epochs=[0]
    )


def test_what_is_handed_out() -> None:
    source = IterableWrapper([(1, 2, 3), (4, 5, 6), (7, 8, 9)])
    assert list(source.map_batches(sum_columns, 2, input_col=[0, 2])) == [4, 10, 16]
    assert list(source.map_batches(sorted, 2, input_col=1)) == [2, 5, 8]
    assert list(source.map_batches(lambda batch: {len(batch): 1}, 2)) == [2, 1]
    assert list(source.async_map_batches(later, 2, input_col=0)) == [(10, 2, 3), (40, 5, 6), (70, 8, 9)]
    assert list(source.async_map_batches(together, 2, [0, 1], -1, flatten=False)) == [
        [(1, 2, 3, 3), (4, 5, 6, 9)],
        [(7, 8, 9, 15)],
    ]
    assert len(source.async_map_batches(later, 2, input_col=0)) == 3
    assert len(source.async_map_batches(later, 2, input_col=0, flatten=False)) == 2


def sum_columns(rows: list[Any]) -> list[int]:
    return [sum(row) for row in rows]


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_run_at_a_time(most: int) -> None:
    running: list[int] = [0, 0]

    async def note(item: int) -> int:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.001)
        running[0] -= 1
        return item

    assert list(IterableWrapper(range(9)).async_map_batches(note, 9, max_concurrency=most)) == list(range(9))
    assert running == [0, most]


def test_L7_an_exception_of_a_coroutine_arrives() -> None:
    async def fail(item: int) -> int:
        if item == 2:
            raise KeyError(item)
        await asyncio.sleep(60)
        return item

    with pytest.raises(KeyError, match="2"):  # at once: the others are cancelled
        list(IterableWrapper(range(4)).async_map_batches(fail, 4))


def test_L6_the_event_loop_is_closed() -> None:
    loops = []

    async def note(item: int) -> int:
        loops.append(asyncio.get_running_loop())
        return item

    iterator = iterate(IterableWrapper(range(4)).async_map_batches(note, 2))
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    assert len(set(loops)) == 1
    assert not loops[0].is_closed()
    iterator.close()
    assert loops[0].is_closed()


def test_a_function_that_gives_nothing_iterable_is_an_error() -> None:
    with pytest.raises(TypeError, match="something iterable, len returned 1"):
        list(IterableWrapper([1]).map_batches(len, 1))  # type: ignore[arg-type]
