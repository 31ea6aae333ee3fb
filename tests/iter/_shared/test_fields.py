"""Records of one batch that lack or add a field: errors that name the field and the sample, never a field that goes."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from types import MappingProxyType
from typing import Any

import pytest
import torch

from torchpipe import DataLoader
from torchpipe.iter import IterableWrapper


def within(kind: Any, samples: Any) -> Any:
    return IterableWrapper([[kind({"inner": sample}) for sample in samples]], deepcopy=False).collate()


FORMS: dict[str, Any] = {
    "pad_batch": lambda samples: IterableWrapper([samples]).pad_batch(),
    "collate": lambda samples: IterableWrapper([samples]).collate(),
    "DataLoader": lambda samples: DataLoader(samples, batch_size=9),
    "nested": lambda samples: IterableWrapper([[{"inner": sample} for sample in samples]]).collate(),
    "in another kind of dict": lambda samples: within(OrderedDict, samples),
    "in a dict of a user's": lambda samples: within(UserDict, samples),
    "in one that cannot change": lambda samples: within(MappingProxyType, samples),
    "in a list": lambda samples: IterableWrapper([[[UserDict(sample)] for sample in samples]]).collate(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_field_that_a_later_sample_adds_or_lacks_is_an_error(form: str) -> None:
    with pytest.raises(KeyError, match="sample 1 of 3 has the field 'mask', which sample 0 has not"):
        list(FORMS[form]([{"a": [1]}, {"a": [2], "mask": [0]}, {"a": [3], "mask": [0]}]))
    with pytest.raises(KeyError, match="sample 2 of 3 lacks the field 'mask', which sample 0 has"):
        list(FORMS[form]([{"a": [1], "mask": [0]}, {"mask": [0], "a": [2]}, {"a": [3]}]))


def test_a_table_with_names_says_which_row_lacks_one() -> None:
    with pytest.raises(KeyError, match="row 1 of this table has no column 'b', only 'a'"):
        list(IterableWrapper([{"a": 1, "b": 2}, {"a": 3}]).dataframe(columns=["a", "b"]))


def test_fields_in_another_order_are_the_same_fields() -> None:
    (batch,) = IterableWrapper([[{"a": 1, "b": 2}, {"b": 4, "a": 3}]]).collate()
    assert {name: value.tolist() for name, value in batch.items()} == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize("form", ["pack", "pad_batch"])
def test_padding_that_fits_no_field_is_an_error(form: str) -> None:
    sample = {"ids": [1, 2], "mask": torch.tensor([True, False])}

    def padded(**options: Any) -> Any:
        graph = IterableWrapper([sample])
        return list(graph.pack(4, **options) if form == "pack" else graph.batch(1).pad_batch(**options, length=4))

    with pytest.raises(ValueError, match="pad_value names \\['label'\\], and the fields are .*misspelt"):
        padded(pad_value={"label": -100})
    with pytest.raises(ValueError, match="fields of several kinds: 'ids' \\(int64\\), 'mask' \\(bool\\)"):
        padded(pad_value=-100)
    for wrong in (float("nan"), 0.5, 1 << 70, 1j):
        with pytest.raises(ValueError, match="field 'ids' of type int64 cannot hold pad_value="):
            padded(pad_value={"ids": wrong})
    with pytest.raises(ValueError, match="field 'mask' of type bool cannot hold pad_value=2"):
        padded(pad_value={"mask": 2})
    with pytest.raises(TypeError, match="pad_value of field 'ids' must be a number, got 'x'"):
        padded(pad_value={"ids": "x"})
    (made,) = padded(pad_value={"ids": torch.tensor(-100)})
    assert made["ids"].reshape(-1).tolist() == [1, 2, -100, -100]
    assert made["mask"].reshape(-1).tolist() == [True, False, False, False]


def test_what_numpy_has_no_type_for_names_the_field() -> None:
    sample = {"embedding": torch.ones(3, dtype=torch.bfloat16)}
    with pytest.raises(TypeError, match=r"field 'embedding' is a tensor of torch.bfloat16: make it float32"):
        list(IterableWrapper([sample]).pack(4))
    with pytest.raises(TypeError, match="field 'embedding' is a tensor of torch.bfloat16"):
        list(IterableWrapper([[sample]]).pad_batch())
    with pytest.raises(TypeError, match="field 'ids' holds sequences of several lengths"):
        list(IterableWrapper([{"ids": [[1], [2, 3]]}]).pack(4))


def test_lengths_do_not_take_the_place_of_a_field() -> None:
    with pytest.raises(ValueError, match="adds the field 'a_lengths'"):
        list(IterableWrapper([[{"a": [1], "a_lengths": 7}]]).pad_batch())


def test_zip_strict_says_which_input_has_ended() -> None:
    numbers = IterableWrapper(range(3))
    assert list(numbers.zip(IterableWrapper("abc"), strict=True)) == [(0, "a"), (1, "b"), (2, "c")]
    assert list(numbers.zip(IterableWrapper("ab"))) == [(0, "a"), (1, "b")]
    for others, message in (("ab", "input 1 has ended, and input 0"), ("abcd", "input 0 has ended, and input 1")):
        stream = iter(numbers.zip(IterableWrapper(others), strict=True))
        with pytest.raises(ValueError, match=message):
            list(stream)
