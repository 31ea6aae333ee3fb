"""What users' functions return: numbers of numpy's and torch's are made plain, so that what is saved loads."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from torchpipe import DataLoader2, IterDataPipe
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper

TEXTS = ["aa", "b", "cccc", "ddd", "e", "ffff", "gg", "h", "iii", "jj", "k", "llllll"]
KINDS: list[Any] = [np.int64, np.int8, np.uint16, np.float32, np.float64, np.array, torch.tensor, float]


def source() -> IterDataPipe[Any]:
    return IterableWrapper(TEXTS)


SIZED: dict[str, Callable[[Callable[[Any], Any]], IterDataPipe[Any]]] = {
    "mix": lambda of: source().mix(source(), weights=of_list(of, [2, 1]), by=lambda item: of(len(item))),
    "dynamic_batch": lambda of: source().dynamic_batch(of_int(of, 6), lambda item: of(len(item))),
    "bucket_by_length": lambda of: source().bucket_by_length([2, 4], 3, lambda item: of(len(item))),
    "sort": lambda of: source().sort(4, lambda item: of(len(item))),
    "groupby": lambda of: source().groupby(lambda item: of(len(item)), group_size=2, keep_key=True),
    "zip_with_iter": lambda of: IterableWrapper(range(9)).zip_with_iter(
        IterableWrapper(range(8, -1, -1)), lambda n: of(n), keep_key=True
    ),
    "zip_with_map": lambda of: IterableWrapper(range(9)).zip_with_map(
        SequenceWrapper({n: str(n) for n in range(9)}), lambda n: of(n), keep_key=True
    ),
    "filter": lambda of: source().filter(lambda item: truth(of, len(item) > 1)),
}


def of_int(of: Callable[[Any], Any], number: int) -> Any:
    made = of(number)
    return made if np.ndim(made) == 0 else number


def of_list(of: Callable[[Any], Any], numbers: list[int]) -> Any:
    return [of(number) for number in numbers]


def seeded(graph: IterDataPipe[Any]) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(graph)
    loader.seed(1)
    return loader


def truth(of: Any, answer: bool) -> Any:
    return {np.array: np.array(answer), torch.tensor: torch.tensor(answer)}.get(of, np.bool_(answer))


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("of", KINDS, ids=lambda of: of.__name__)
@pytest.mark.parametrize("form", SIZED)
def test_what_is_saved_after_a_number_of_any_kind_loads_and_goes_on(form: str, of: Any) -> None:
    graph = SIZED[form]
    expected = list(seeded(graph(int)))
    assert list(seeded(graph(of))) == expected
    for place in (1, len(expected) // 2, len(expected) - 1):
        loader = seeded(graph(of))
        stream = iter(loader)
        assert [next(stream) for _ in range(place)] == expected[:place]
        again = DataLoader2(graph(of))
        again.load_state_dict(saved(loader.state_dict()))
        assert list(again) == expected[place:]


@pytest.mark.parametrize("of", KINDS, ids=lambda of: of.__name__)
def test_branches_and_weights_may_be_numbers_of_any_kind(of: Any) -> None:
    whole = int if of in (np.float32, np.float64, float) else of
    even, odd = IterableWrapper(range(6)).demux(2, lambda n: whole(n % 2))
    assert list(even.zip(odd)) == [(0, 1), (2, 3), (4, 5)]
    plain = IterableWrapper([1] * 9).mix(IterableWrapper([2] * 9), weights=[2, 1])
    weighted = IterableWrapper([1] * 9).mix(IterableWrapper([2] * 9), weights=[of(2), of(1)])
    assert list(seeded(weighted)) == list(seeded(plain))


NAMED: dict[str, Callable[[Any], Any]] = {
    "map": lambda of: PARTS.map(str, of(1), of(0)),
    "map of dicts": lambda of: IterableWrapper([{0: "a", 1: "b"}]).map(str.upper, of(1), of(2)),
    "map several": lambda of: PARTS.map(lambda one, other: (one, other), [of(0), of(2)]),
    "filter": lambda of: PARTS.filter(bool, input_col=of(0)),
    "enumerate": lambda of: PARTS.enumerate(of(3)),
}
PARTS: IterDataPipe[Any] = IterableWrapper([("a", ["b", "c"], "d"), ("e", ["f"], "g")])


@pytest.mark.parametrize("of", [np.int64, np.uint8, np.array, torch.tensor], ids=lambda of: of.__name__)
@pytest.mark.parametrize("form", NAMED)
def test_places_and_columns_may_be_numbers_of_any_kind(form: str, of: Any) -> None:
    assert list(NAMED[form](of)) == list(NAMED[form](int))
    begun, again = DataLoader2(NAMED[form](of)), DataLoader2(NAMED[form](of))
    stream = iter(begun)
    next(stream)
    again.load_state_dict(saved(begun.state_dict()))
    assert list(again) == list(stream)


def test_what_is_kept_of_a_map_is_drawn_alike_for_each_kind_of_number() -> None:
    made = [SequenceWrapper(range(3)).map(lambda n: (n, np.random.random())).in_memory_cache() for _ in range(2)]
    assert made[0][np.int64(1)] == made[1][1] == made[1][torch.tensor(1)]


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "mix": lambda how_long: source().mix(source(), weights=[1, 1], by=how_long),
    "dynamic_batch": lambda how_long: source().dynamic_batch(6, how_long),
    "bucket_by_length": lambda how_long: source().bucket_by_length([2], 3, how_long),
}


@pytest.mark.parametrize("value", [True, np.bool_(True), torch.tensor(True), -1, float("nan"), np.float32("inf"), "3"])
@pytest.mark.parametrize("form", GRAPHS)
def test_what_is_no_size_is_an_error_that_names_function_and_value(form: str, value: Any) -> None:
    def how_long(item: Any) -> Any:
        return value

    with pytest.raises(ValueError, match=r"must be a number from 0 on, .*how_long returned "):
        list(GRAPHS[form](how_long))


def test_tensors_of_a_size_say_how_to_take_a_number_of_them() -> None:
    with pytest.raises(ValueError, match=r"and shape \(2,\): take one number of it"):
        list(source().dynamic_batch(6, lambda item: torch.ones(2)))


def test_a_key_that_is_nan_or_a_tensor_of_several_numbers_is_an_error() -> None:
    nan = float("nan")
    for value in (np.float32("nan"), complex(nan, 1), np.datetime64("NaT"), Decimal("NaN"), (np.float64("nan"), "x")):
        with pytest.raises(ValueError, match=r"(?i)gives .*na[nt]\W.*which equals no other key"):
            list(source().groupby(lambda item, value=value: value))
    for key in (torch.ones(2), (torch.ones(2), 1), ("x", (1, torch.ones(2)))):
        with pytest.raises(TypeError, match=r"gives a tensor of shape \(2,\).*: make it a tuple"):
            list(source().groupby(lambda item, key=key: key))
    with pytest.raises(ValueError, match="gives NaN for 'aa', which stands nowhere in an order"):
        list(source().sort(4, lambda item: float("nan")))


def test_tuples_of_tensors_are_keys_by_their_numbers() -> None:
    groups = list(source().groupby(lambda item: (torch.tensor(len(item)), "x"), keep_key=True, group_size=2))
    assert [(key, len(items)) for key, items in groups[:2]] == [((1, "x"), 2), ((4, "x"), 2)]


@pytest.mark.parametrize("of", [int, np.int64, np.uint8, np.array, torch.tensor])
def test_maps_are_read_by_the_key_that_a_number_is(of: Callable[[Any], Any]) -> None:
    read = []

    def draw(item: int) -> tuple[int, float]:
        read.append(item)
        return item, np.random.random()

    cached = SequenceWrapper(range(9)).map(draw).in_memory_cache()
    expected = SequenceWrapper(range(9)).map(draw).in_memory_cache()[3]
    assert [cached[of(3)], cached[3], cached[of(3)]] == [expected] * 3
    assert read == [3, 3]
    items = [{"id": of(number), "number": number} for number in range(4)]
    by_id = IterableWrapper(items).to_map_datapipe(lambda item: (item["id"], item["number"]))
    assert [by_id[2], by_id[of(3)]] == [2, 3]
    with pytest.raises(TypeError, match=r"a key is one value that others may equal, got a tensor of shape \(2,\)"):
        by_id[torch.ones(2)]
