"""``routed_decode``."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from PIL import Image

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def files() -> list[tuple[str, bytes]]:
    picture = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 0)).save(picture, "png")
    return [("a.png", picture.getvalue()), ("b.json", b'{"x": 1}'), ("c.txt", b"text"), ("d.other", b"rest")]


def opened(pair: Any) -> Any:
    return pair[0], io.BytesIO(pair[1])


def upper(key: str, data: bytes) -> Any:
    return data.upper() if key == "other" else None


def test_decoded() -> None:
    decoded = dict(IterableWrapper(files()).map(opened).routed_decode())
    assert torch.equal(decoded["a.png"], torch.tensor([1.0, 0, 0])[:, None, None].expand(3, 2, 3))
    assert (decoded["b.json"], decoded["c.txt"], decoded["d.other"]) == ({"x": 1}, "text", b"rest")
    node = IterableWrapper(files()).map(opened).routed_decode(upper)
    assert dict(node)["d.other"] == b"REST"
    node.add_handler(lambda key, data: "first")  # type: ignore[attr-defined]
    assert set(dict(node).values()) == {"first"}
    assert len(node) == 4


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(files()).map(opened).routed_decode())


def test_L7_errors_name_the_path() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        list(IterableWrapper([("b.json", io.BytesIO(b"{"))], deepcopy=False).routed_decode())
    assert caught.value.__notes__ == ["while decoding b.json"]
    with pytest.raises(TypeError, match="routed_decode needs"):
        list(IterableWrapper(["a"]).routed_decode())  # type: ignore[misc]
