"""``shuffled_flatmap``: mixed evenly, exact within whatever is open."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import GraphError, StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def pair(item: Any) -> Iterator[Any]:
    yield item, 0
    yield item, 1


def triple(item: Any) -> list[Any]:
    return [(item, number) for number in range(3)]


@pytest.mark.parametrize("buffer_size", [1, 3, 20])
@pytest.mark.parametrize("fn", [pair, triple])
def test_L2_exact_resume(buffer_size: int, fn: Any) -> None:
    check_node(
        lambda: CountingSource(range(7)).shuffled_flatmap(fn, buffer_size=buffer_size), pulls=lambda k: 7, num_shards=1
    )


def test_L2_exact_resume_in_files_and_nodes(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("".join(f"{name}{number}\n" for number in range(5)))
    paths = [str(tmp_path / name) for name in "abc"]
    check_node(lambda: CountingSource(paths).shuffled_flatmap(open, buffer_size=2), pulls=lambda k: 3, num_shards=1)
    check_node(
        lambda: IterableWrapper(range(3)).shuffled_flatmap(lambda item: IterableWrapper(range(item)).shuffle()),
        num_shards=1,
    )


def test_nothing_is_lost_and_the_order_differs() -> None:
    node = IterableWrapper(range(10)).shuffled_flatmap(triple, buffer_size=4)
    items = list(iterate(node, seed=1))
    assert Counter(items) == Counter((item, number) for item in range(10) for number in range(3))
    assert items == list(iterate(node, seed=1)) != list(iterate(node, seed=2))
    assert all([number for other, number in items if other == item] == [0, 1, 2] for item in range(10))
    firsts = Counter(next(iterate(node, epoch=epoch))[0] for epoch in range(2000))
    assert sorted(firsts) == [0, 1, 2, 3]
    assert all(400 < count < 600 for count in firsts.values())  # 500 each; five standard deviations


def test_columns_and_switching() -> None:
    rows = IterableWrapper([("ab", 1), ("cd", 2)])
    assert sorted(rows.shuffled_flatmap(input_col=0)) == ["a", "b", "c", "d"]
    assert sorted(map(repr, rows.shuffled_flatmap())) == ["'ab'", "'cd'", "1", "2"]
    node: Any = IterableWrapper(range(3)).shuffled_flatmap(pair)
    assert list(node.set_seed(5)) == list(node)
    state = iterate(node).state_dict()
    assert list(node.set_shuffle(False)) == [(item, number) for item in range(3) for number in range(2)]
    with pytest.raises(StateError, match="set_shuffle"):
        iterate(node).load_state_dict(state)


def test_wrong_functions_are_refused() -> None:
    source = IterableWrapper(range(3))

    def draws(item: Any) -> Iterator[Any]:
        yield random.random()

    with pytest.raises(GraphError, match=r"random_map\(\) behind shuffled_flatmap\(\)"):
        list(source.shuffled_flatmap(draws))
    with pytest.raises(TypeError, match="something iterable"):
        list(source.shuffled_flatmap(int))  # type: ignore[arg-type]
