"""``threadpool_map``: torchdata's arguments of ``parallel_map``. See also ``test_as_core.py``."""

from __future__ import annotations

import pytest

from torchpipe.iter import IterableWrapper


def test_a_column() -> None:
    node = IterableWrapper([(1, 2, "a"), (3, 4, "b")])
    assert list(node.threadpool_map(str, 0, scheduled_tasks=3, max_workers=2)) == [("1", 2, "a"), ("3", 4, "b")]


def test_the_argument_is_named_as_it_was_given() -> None:
    with pytest.raises(ValueError, match="max_workers must be at most 1024, got 2000"):
        IterableWrapper(range(3)).threadpool_map(str, max_workers=2000)
