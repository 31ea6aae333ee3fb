"""``to_iter_datapipe``: map-style nodes in order."""

from __future__ import annotations

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import MapToIterConverter
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node


def test_L2_exact_resume() -> None:
    check_node(lambda: SequenceWrapper(range(5)).map(lambda item: item + 1).to_iter_datapipe())
    check_node(lambda: SequenceWrapper({"a": 1, "b": 2}).to_iter_datapipe(["b", "a", "b"]))
    check_node(lambda: SequenceWrapper(range(9)).to_iter_datapipe().shuffle().sharding_filter())


def test_indices() -> None:
    node = SequenceWrapper("abc")
    assert list(node.to_iter_datapipe()) == ["a", "b", "c"]
    assert list(node.to_iter_datapipe([2, 0])) == ["c", "a"]
    assert list(node.to_iter_datapipe([])) == []  # not: all of them
    assert len(node.to_iter_datapipe()) == 3
    assert len(node.to_iter_datapipe([1])) == 1


def test_torchs_map_style_nodes() -> None:
    from torch.utils.data.datapipes.map import SequenceWrapper as TorchWrapper

    check_node(lambda: MapToIterConverter(TorchWrapper(range(4))))


def test_data_that_became_shorter_is_an_error() -> None:
    iterator = iterate(SequenceWrapper(range(5)).to_iter_datapipe())
    iterator.drop(5)
    with pytest.raises(StateError, match="there are only 4 to read"):
        iterate(SequenceWrapper(range(4)).to_iter_datapipe()).load_state_dict(iterator.state_dict())
