"""``lines_to_paragraphs``."""

from __future__ import annotations

from typing import Any

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node

LINES = [("a", "1"), ("a", "2"), ("a", ""), ("a", ""), ("a", "3"), ("b", "4"), ("c", ""), ("c", "5"), ("d", "")]


def test_paragraphs() -> None:
    source = IterableWrapper(LINES)
    assert list(source.lines_to_paragraphs()) == [("a", "1\n2"), ("a", "3"), ("b", "4"), ("c", "5")]
    assert list(source.lines_to_paragraphs(tuple)) == [("a", ("1", "2")), ("a", ("3",)), ("b", ("4",)), ("c", ("5",))]
    assert list(IterableWrapper(LINES[:2]).lines_to_paragraphs()) == [("a", "1\n2")]


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(LINES).lines_to_paragraphs(), pulls=lambda k: len(LINES))


def test_wrong_items_are_errors() -> None:
    items: Any = IterableWrapper(["a"])
    with pytest.raises(TypeError, match="pairs"):
        list(items.lines_to_paragraphs())
