"""``shard_expand``."""

from __future__ import annotations

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def test_names() -> None:
    names = ["ds-{08..11}.tar", "plain.tar", "{a,b}{0..1}"]
    assert list(IterableWrapper(names).shard_expand()) == [
        "ds-08.tar", "ds-09.tar", "ds-10.tar", "ds-11.tar", "plain.tar", "a0", "a1", "b0", "b1",
    ]  # fmt: skip
    check_node(lambda: CountingSource(names).shard_expand(), pulls=lambda k: 3)


def test_bad_names_are_refused() -> None:
    with pytest.raises(TypeError, match="names as text"):
        list(IterableWrapper([3]).shard_expand())  # type: ignore[misc]
    with pytest.raises(ValueError, match="more than"):
        list(IterableWrapper(["{0..9999999}"]).shard_expand())
