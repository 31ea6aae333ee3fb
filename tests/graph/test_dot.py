"""``to_dot``: the text of a picture."""

from __future__ import annotations

from typing import Any

from torchpipe.graph import to_dot
from torchpipe.iter import IterableWrapper


def graph() -> Any:
    one, other = IterableWrapper([1]).fork(2)
    return one.map(lambda item: item).zip(other)


def test_the_text_of_a_picture() -> None:
    assert to_dot(graph()).splitlines()[2:] == [
        '  0 [label="IterableWrapper", fillcolor=lightblue]',
        '  1 [label="fork()"]',
        '  2 [label="Mapper(<lambda>)"]',
        '  3 [label="Zipper", fillcolor=darkolivegreen1]',
        "  0 -> 1",
        "  1 -> 2",
        "  2 -> 3",
        "  1 -> 3",
        "}",
    ]
    assert to_dot(graph(), debug=True).count("of fork()") == 2
