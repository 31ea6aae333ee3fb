"""Functional forms that users registered with torch's decorator, or by torch's class method."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import IterDataPipe as TorchIterDataPipe
from torch.utils.data import functional_datapipe as torch_functional_datapipe

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, IterDataPipe, MapDataPipe
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper


@torch_functional_datapipe("of_torch_plus")
class Plus(IterDataPipe[int]):
    def __init__(self, datapipe: Any, number: int = 1) -> None:
        self.datapipe = datapipe
        self.number = number

    def __iter__(self) -> Any:
        return (item + self.number for item in self.datapipe)


@torch_functional_datapipe("of_torch_double")
class Double(MapDataPipe[int]):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __getitem__(self, index: Any) -> int:
        return int(self.datapipe[index] * 2)

    def __len__(self) -> int:
        return len(self.datapipe)


IterDataPipe.register_datapipe_as_function("by_method_plus", Plus)
TorchIterDataPipe.register_function("by_function_plus", Plus)


@pytest.mark.parametrize("form", ["of_torch_plus", "by_method_plus", "by_function_plus"])
def test_a_form_registered_with_torch(form: str) -> None:
    source: Any = IterableWrapper([1, 2, 3, 4]).sharding_filter()
    assert list(getattr(source, form)(3).map(str)) == ["4", "5", "6", "7"]
    with DataLoader2(getattr(source, form)(number=1), reading_service=MultiProcessingReadingService(2)) as loader:
        assert list(loader) == [2, 3, 4, 5]


def test_a_map_style_form_registered_with_torch() -> None:
    source: Any = SequenceWrapper([1, 2])
    assert list(source.of_torch_double()) == [2, 4]


def test_torchs_own_forms_stay_out() -> None:
    source: Any = IterableWrapper([1])
    for name in ("_dataframes_per_row", "of_nobody"):
        assert not hasattr(source, name)
