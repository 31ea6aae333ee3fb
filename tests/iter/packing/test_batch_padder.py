"""``pad_batch``: ragged samples in tensors of one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.sampled_from([{}, {"multiple_of": 4}, {"length": [3, 8]}, {"length": 7}]),
    st.sampled_from(["left", "right"]),
    st.sampled_from([list, np.array, torch.tensor]),
)
def test_padding_is_undone_by_the_lengths(lengths: list[int], options: Any, side: Any, kind: Any) -> None:
    samples = [kind([10 * number + n for n in range(1, length + 1)]) for number, length in enumerate(lengths)]
    if kind is not list:
        samples = [kind(np.asarray(sample, np.int64)) for sample in samples]
    ((padded, sizes),) = IterableWrapper([samples]).pad_batch(-1, side=side, **options)
    assert padded.dtype == sizes.dtype == torch.int64
    assert sizes.tolist() == lengths
    expected = max(lengths)
    if "multiple_of" in options:
        expected = -(-expected // 4) * 4
    elif options:
        expected = 7 if options["length"] == 7 else 3 if expected <= 3 else 8
    assert padded.shape == (len(lengths), expected)
    for row, sample, length in zip(padded.tolist(), samples, lengths):
        rest = [-1] * (expected - length)
        assert row == ([*rest, *list(sample)] if side == "left" else [*list(sample), *rest])


def test_fields_that_are_no_sequences_are_collated() -> None:
    batch = [
        {"ids": [1, 2], "mel": torch.ones(3, 2), "label": 1, "name": "a", "words": ["x", "y"]},
        {"ids": [3], "mel": torch.ones(1, 2), "label": 0, "name": "b", "words": ["z", "z"]},
    ]
    (made,) = IterableWrapper([batch]).pad_batch({"ids": 9})
    assert made["ids"].tolist() == [[1, 2], [3, 9]]
    assert made["ids_lengths"].tolist() == [2, 1]
    assert made["mel"].shape == (2, 3, 2)
    assert made["mel"].dtype == torch.float32
    assert made["label"].tolist() == [1, 0]
    assert made["name"] == ["a", "b"]
    assert made["words"] == [("x", "z"), ("y", "z")]
    ((padded, _),) = IterableWrapper([[1.5], [2.5, 3.5]]).batch(2).pad_batch()
    assert padded.dtype == torch.float32


def test_L2_exact_resume() -> None:
    check_node(
        lambda: CountingSource([[1], [2, 3], [4, 5, 6], [7], []]).batch(2).pad_batch(),
        pulls=lambda k: 2 * k,
        epochs=[0],
    )


@pytest.mark.parametrize(
    ("batch", "options", "kind", "message"),
    [
        ([[1, 2, 3]], {"length": [1, 2]}, ValueError, "a sample of length 3, more than length=2"),
        ([], {}, TypeError, "needs lists of samples, got \\[\\]"),
        (torch.ones(2), {}, TypeError, "needs lists of samples, got tensor.*of type Tensor: put batch"),
        ([1, 2], {}, TypeError, "an item is 1 of type int"),
        ([torch.ones(2), torch.ones(2).long()], {}, TypeError, "cannot stack int64 of shape \\(2,\\) and float32"),
        ([torch.ones(2, 2), torch.ones(2, 3)], {}, TypeError, "only the first dimension may differ"),
        ([{"a": [1]}, {"b": [1]}], {}, KeyError, "sample 1 of 2 lacks the field 'a'"),
        ([{"a": [1]}, {"a": "x"}], {}, TypeError, "field 'a' is 'x' of type str"),
    ],
)
def test_wrong_batches_are_errors(batch: Any, options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        list(IterableWrapper([batch]).pad_batch(**options))
