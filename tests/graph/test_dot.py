"""``to_dot``, and the helpers of ``torchpipe.utils``."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch

from torchpipe.formats.storage.streams import wrap_stream
from torchpipe.graph import to_dot
from torchpipe.iter import IterableWrapper
from torchpipe.utils import StreamWrapper, janitor, pin_memory_fn, to_graph


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


def test_a_picture_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ModuleNotFoundError, match="pip install graphviz"):
        to_graph(graph())


def test_streams_are_closed_wherever_they_are() -> None:
    streams = [wrap_stream(io.BytesIO(), name=name) for name in "abc"]
    janitor([streams[0], {"x": (streams[1], 3)}])
    assert [stream.closed for stream in streams] == [True, True, False]
    janitor(streams[2])
    assert type(streams[2]) is StreamWrapper
    assert streams[2].closed


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_plain_data_need_no_pinning() -> None:
    assert pin_memory_fn({"x": ["text", b"bytes"]}) == {"x": ["text", b"bytes"]}
