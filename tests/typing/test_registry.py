"""Users add functional forms of their own while the program runs; what would shadow or break is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torchpipe.iter import IterableWrapper, IterDataPipe, Mapper, functional_datapipe
from torchpipe.map import MapDataPipe, SequenceWrapper
from torchpipe.node import functional


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test adds are gone after it."""
    copies = {kind: dict(known) for kind, known in functional._registries.items()}
    monkeypatch.setattr(functional, "_registries", copies)


class Doubled(IterDataPipe[Any]):
    """Every item twice."""

    def __init__(self, datapipe: IterDataPipe[Any], times: int = 2) -> None:
        self.datapipe = datapipe
        self.times = times

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield from [item] * self.times


class Reversed(MapDataPipe[Any]):
    def __init__(self, datapipe: MapDataPipe[Any]) -> None:
        self.datapipe = datapipe

    def __getitem__(self, index: int) -> Any:
        return self.datapipe[len(self) - 1 - index]

    def __len__(self) -> int:
        return len(self.datapipe)


def test_a_form_can_be_used_at_once_on_every_node() -> None:
    assert functional_datapipe("doubled")(Doubled) is Doubled
    assert list(IterableWrapper([1, 2]).doubled().map(str)) == ["1", "1", "2", "2"]
    assert list(IterableWrapper([1, 2]).map(str).doubled(times=1)) == ["1", "2"]
    assert IterableWrapper([1]).doubled.__doc__ == "Every item twice."


def test_a_form_belongs_to_one_kind_of_node() -> None:
    functional_datapipe("backwards")(Reversed)
    assert SequenceWrapper([1, 2, 3]).backwards()[0] == 3
    with pytest.raises(AttributeError, match="IterableWrapper has no attribute or functional form 'backwards'"):
        IterableWrapper([1]).backwards()
    functional_datapipe("as_doubled", on="map")(Doubled)
    assert isinstance(SequenceWrapper([1]).as_doubled(), Doubled)


def test_a_name_that_is_taken_is_refused_and_stays() -> None:
    with pytest.raises(ValueError, match=r"dp\.map is one of torchpipe's own forms, which are not replaced"):
        functional_datapipe("map")(Doubled)
    assert functional.lookup("iter", "map", None) is not None
    assert isinstance(IterableWrapper([1]).map(str), Mapper)


def test_two_modules_do_not_share_a_form() -> None:
    functional_datapipe("doubled_once")(Doubled)
    theirs = type("Doubled", (Doubled,), {"__qualname__": Doubled.__qualname__, "__module__": "team_b"})
    with pytest.raises(ValueError, match=r"'doubled_once' is taken by .*: give that of team_b\.Doubled another name"):
        functional_datapipe("doubled_once")(theirs)
    assert type(IterableWrapper([1]).doubled_once()) is Doubled


def test_a_class_that_is_defined_again_takes_its_own_name() -> None:
    """A notebook cell that is run twice."""
    functional_datapipe("doubled")(Doubled)
    again = type("Doubled", (Doubled,), {"__qualname__": Doubled.__qualname__, "__module__": __name__})
    functional_datapipe("doubled")(again)
    assert isinstance(IterableWrapper([1]).doubled(), again)
