"""The helpers of ``torchpipe.utils``."""

from __future__ import annotations

import io
import sys

import pytest
import torch

from torchpipe.formats.storage.streams import wrap_stream
from torchpipe.iter import IterableWrapper
from torchpipe.utils import StreamWrapper, janitor, pin_memory_fn, to_graph


def test_a_picture_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ModuleNotFoundError, match="pip install graphviz"):
        to_graph(IterableWrapper([1]).map(str))


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
