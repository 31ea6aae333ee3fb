"""``in_memory_cache``: a form of ``cache``."""

from __future__ import annotations

from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def test_made_once() -> None:
    made: list[int] = []
    node = IterableWrapper(range(5)).map(lambda item: made.append(item) or [item]).in_memory_cache()
    loader = DataLoader2(node)
    assert [list(loader) for _ in range(3)] == [[[0], [1], [2], [3], [4]]] * 3
    assert made == [0, 1, 2, 3, 4]
    assert len(node) == 5


def test_a_bound_in_megabytes() -> None:
    made: list[int] = []
    node = IterableWrapper(range(60)).map(lambda item: made.append(item) or bytes(100_000)).in_memory_cache(size=4)
    assert len(list(node)) == len(list(node)) == 60
    assert 60 < len(made) < 120  # some were kept, in chunks


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(5)).shuffle().in_memory_cache(1), pulls=lambda k: 5)
