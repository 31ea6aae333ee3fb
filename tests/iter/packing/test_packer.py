"""``pack``: every token once, whole samples where they are to stay whole, exact between any two packs."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node

LENGTHS = st.lists(st.integers(0, 13), max_size=12)
FITS = ("first_fit", "best_fit")


def samples(lengths: list[int]) -> list[np.ndarray[Any, Any]]:
    """Samples of these lengths; no token occurs twice, and none is 0, the padding."""
    ends = np.cumsum([0, *lengths]) + 1
    return [np.arange(begin, begin + length) for begin, length in zip(ends, lengths)]


def segments(pack: dict[str, Any], name: str = "tokens", before: str = "") -> list[list[Any]]:
    """The segments of a pack, after a check of what must hold of every pack."""
    tokens, ids, positions = (np.asarray(pack[key]) for key in (name, f"{before}segment_ids", f"{before}positions"))
    assert len(tokens) == len(ids) == len(positions)
    assert ids.dtype == positions.dtype == np.int32
    used = int((ids > 0).sum())
    assert (ids[:used] > 0).all()
    assert not ids[used:].any()
    assert not positions[used:].any()
    assert not tokens[used:].any()
    found = [tokens[ids == number].tolist() for number in range(1, ids.max(initial=0) + 1)]
    assert [value for segment in found for value in segment] == tokens[:used].tolist()  # in a row, numbered from 1
    for number, segment in enumerate(found, 1):
        assert positions[ids == number].tolist() == list(range(len(segment)))
    return found


@given(LENGTHS, st.integers(1, 10))
def test_concat_has_every_token_once_and_in_order(lengths: list[int], length: int) -> None:
    packs = list(IterableWrapper(samples(lengths)).pack(length))
    assert all(len(pack["tokens"]) == length for pack in packs)
    found = [token for pack in packs for segment in segments(pack) for token in segment]
    assert found == list(range(1, sum(lengths) + 1))
    assert all((pack["segment_ids"] > 0).all() for pack in packs[:-1])  # only the last one is padded
    full = list(IterableWrapper(samples(lengths)).pack(length, drop_last=True))
    assert len(full) == sum(lengths) // length


@given(LENGTHS, st.sampled_from(FITS), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 3)))
def test_fits_keep_samples_whole(lengths: list[int], strategy: Any, bins: int, most: int | None) -> None:
    packs = list(IterableWrapper(samples(lengths)).pack(8, strategy=strategy, bins=bins, max_sequences_per_bin=most))
    found = [segment for pack in packs for segment in segments(pack)]
    assert all(len(segments(pack)) <= (most or 8) for pack in packs)
    expected = [part.tolist() for whole in samples(lengths) for part in (whole[:8], whole[8:]) if len(part)]
    assert sorted(found) == sorted(expected)


@given(LENGTHS, st.sampled_from(FITS))
def test_enough_bins_give_the_classic_algorithms(lengths: list[int], strategy: Any) -> None:
    rooms: list[int] = []
    for size in (part for length in lengths for part in (min(length, 8), max(0, length - 8)) if part):
        fitting = [number for number, room in enumerate(rooms) if room >= size]
        if fitting and strategy == "first_fit":
            rooms[fitting[0]] -= size
        elif fitting:
            rooms[min(fitting, key=rooms.__getitem__)] -= size
        else:
            rooms.append(8 - size)
    packs = list(IterableWrapper(samples(lengths)).pack(8, strategy=strategy, bins=1000))
    assert sorted(8 - np.asarray(pack["segment_ids"]).astype(bool).sum() for pack in packs) == sorted(rooms)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (np.array, {}),
        (torch.tensor, {"drop_last": True}),
        (list, {"strategy": "first_fit", "bins": 2}),
        (torch.tensor, {"strategy": "best_fit", "bins": 3, "max_sequences_per_bin": 2}),
        (list, {"strategy": "best_fit", "overflow": "drop"}),
        (np.array, {"strategy": "first_fit", "bins": 1, "overflow": "truncate"}),
        (list, {"strategy": "best_fit", "window": 4}),
        (torch.tensor, {"strategy": "best_fit", "window": 20, "max_sequences_per_bin": 2, "overflow": "drop"}),
    ],
    ids=["concat", "drop_last", "first_fit", "most", "drop", "truncate", "window", "one_window"],
)
def test_L2_exact_resume(kind: Any, options: Any) -> None:
    items = [kind(whole.tolist()) for whole in samples([3, 0, 9, 1, 1, 4, 2, 20, 5, 1, 3])]
    check_node(lambda: CountingSource(items).pack(6, **options), pulls=lambda k: len(items))


@given(LENGTHS, st.integers(1, 20), st.one_of(st.none(), st.integers(1, 3)))
def test_a_window_is_divided_longest_first(lengths: list[int], window: int, most: int | None) -> None:
    packs = list(
        IterableWrapper(samples(lengths)).pack(8, strategy="best_fit", window=window, max_sequences_per_bin=most)
    )
    found = [[np.asarray(segment) for segment in segments(pack)] for pack in packs]
    parts = [part.tolist() for whole in samples(lengths) for part in (whole[:8], whole[8:]) if len(part)]
    expected: list[list[list[int]]] = []
    for begin in range(0, len(parts), window):
        made: list[list[list[int]]] = []
        for part in sorted(parts[begin : begin + window], key=len, reverse=True):
            fits = [pack for pack in made if sum(map(len, pack)) + len(part) <= 8 and len(pack) != most]
            if not fits:
                made.append([])
            (min(fits, key=lambda pack: 8 - sum(map(len, pack))) if fits else made[-1]).append(part)
        expected += sorted(sorted(pack) for pack in made)  # no two tokens are the same: in the order of the samples
    assert [[segment.tolist() for segment in pack] for pack in found] == expected


def test_a_window_fills_packs_of_long_documents() -> None:
    sizes = np.minimum(np.random.default_rng(0).lognormal(np.log(1200), 0.8, 4000), 4096).astype(int)
    packs = IterableWrapper([np.zeros(size, np.uint8) for size in sizes]).pack(4096, strategy="best_fit", window=1000)
    assert sizes.sum() / 4096 / sum(1 for _ in packs) > 0.995


def test_a_window_keeps_samples_as_they_came() -> None:
    shared = np.zeros(3, np.int64)

    def reused(number: int) -> np.ndarray[Any, Any]:
        shared[:] = number
        return shared

    (pack,) = IterableWrapper(range(1, 4)).map(reused).pack(9, strategy="best_fit", window=3)
    assert pack["tokens"].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "first_fit"}, {"bins": 2}, {"drop_last": True}, {"length": {"tokens": 4}}]
)
def test_what_goes_with_no_window_is_refused(options: dict[str, Any]) -> None:
    given_options: dict[str, Any] = {"length": 4, "strategy": "best_fit", "window": 3, **options}
    if not options:
        given_options["strategy"] = "concat"
    with pytest.raises(ValueError, match="window= is for strategy='best_fit'"):
        IterableWrapper([[1]]).pack(**given_options)


@pytest.mark.parametrize(
    "damage",
    [{"packs": [1, 1]}, {"packs": [3]}, {"packs": [0, 2]}, {"sizes": [[1], [4]]}, {"packs": "2"}, {"kept": [[]]}],
)
def test_a_damaged_window_is_refused(damage: dict[str, Any]) -> None:
    def node() -> Any:
        return IterableWrapper([[1, 2, 3, 4], [5, 6], [7, 8]]).pack(4, strategy="best_fit", window=3)

    stream = iterate(node())
    next(stream)
    state = stream.state_dict()
    own = next(part for part in _dicts(state) if "planned" in part)
    assert own["planned"]["packs"] == [2]
    if damage == {"packs": [1, 1]}:
        own["planned"]["data"][0] = own["planned"]["data"][0][:3]
    own["planned"].update(damage)
    again = iterate(node())
    with pytest.raises(StateError):
        again.load_state_dict(state)


def _dicts(value: Any) -> Any:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(part)


@given(LENGTHS, st.integers(1, 10))
def test_no_more_is_pulled_than_a_pack_needs(lengths: list[int], length: int) -> None:
    node = CountingSource(samples(lengths))
    taken = 0
    for pack in node.pack(length):
        taken += sum(map(len, segments(pack)))
        if taken < sum(lengths):
            assert node.pulls.total == next(n for n in range(len(lengths) + 1) if sum(lengths[:n]) >= taken)


def test_all_fields_of_a_sample_go_together() -> None:
    items = [
        {"input_ids": [1, 2, 3], "labels": torch.tensor([-100, 2, 3]), "weight": np.array([0.0, 1, 1]), "of": "a"},
        {"input_ids": [4, 5], "labels": torch.tensor([4, 5]), "weight": np.array([1.0, 1]), "of": "b"},
    ]
    one, two = IterableWrapper(items).pack(4, pad_value={"labels": -100}, keep=["of"])
    assert one["input_ids"].tolist() == [1, 2, 3, 4]
    assert one["labels"].tolist() == [-100, 2, 3, 4]
    assert one["segment_ids"].tolist() == [1, 1, 1, 2]
    assert one["positions"].tolist() == [0, 1, 2, 0]
    assert (one["of"], two["of"]) == (["a", "b"], ["b"])
    assert two["labels"].tolist() == [5, -100, -100, -100]
    assert two["weight"].tolist() == [1.0, 0, 0, 0]
    assert isinstance(two["weight"], np.ndarray)
    assert isinstance(two["input_ids"], torch.Tensor)
    assert two["input_ids"].dtype == torch.int64
    check_node(lambda: CountingSource(items).pack(4, keep=["of"]), pulls=lambda k: 2)
    check_node(lambda: CountingSource(items).pack(3, strategy="best_fit", keep="of"), pulls=lambda k: 2)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=10), st.sampled_from(FITS), st.integers(1, 3))
def test_ragged_fields_have_lengths_of_their_own(sizes: list[tuple[int, int]], strategy: Any, bins: int) -> None:
    inputs, targets = (samples([pair[which] for pair in sizes]) for which in (0, 1))
    items = [{"inputs": one, "targets": other, "more": "x"} for one, other in zip(inputs, targets)]
    lengths = {"inputs": 6, "targets": 3}
    found = []
    for pack in IterableWrapper(items).pack(lengths, strategy=strategy, bins=bins):
        assert set(pack) == {f"{name}{what}" for name in lengths for what in ("", "_segment_ids", "_positions")}
        for name, length in lengths.items():
            assert pack[name].shape == (length,)
        count = max(int(pack[f"{name}_segment_ids"].max()) for name in lengths)
        for number in range(1, count + 1):
            pair = [pack[name][pack[f"{name}_segment_ids"] == number].tolist() for name in lengths]
            found.append(tuple(pair))
    whole = [(one.tolist(), other.tolist()) for one, other in zip(inputs, targets) if len(one) or len(other)]
    assert sorted(found) == sorted(whole)


def test_L2_exact_resume_of_ragged_fields() -> None:
    items = [{"a": list(range(n % 5)), "b": torch.ones(n % 3, 2)} for n in range(9)]
    check_node(
        lambda: CountingSource(items).pack({"a": 6, "b": 4}, strategy="best_fit", bins=2), pulls=lambda k: len(items)
    )


def test_bytes_are_tokens_and_entries_may_have_dimensions() -> None:
    (pack,) = IterableWrapper([b"ab", b"", b"c"]).pack(4)
    assert pack["tokens"].tolist() == [97, 98, 99, 0]
    assert pack["tokens"].dtype == torch.uint8
    (pack,) = IterableWrapper([{"patches": torch.ones(2, 3)}, {"patches": torch.ones(1, 3)}]).pack(4)
    assert pack["patches"].shape == (4, 3)
    assert pack["patches"].sum() == 9


def test_overflow_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    items = samples([2, 9, 3, 8, 1])
    with caplog.at_level(logging.WARNING, "torchpipe"):
        iterator = iterate(IterableWrapper(items).pack(4, strategy="first_fit", overflow="drop"))
        kept = [token for pack in iterator for segment in segments(pack) for token in segment]
    assert sorted(kept) == [1, 2, 12, 13, 14, 23]
    assert iterator.state_dict()["dropped"] == 2
    assert [record.message for record in caplog.records] == [
        "pack: sample 1 has 9 entries, more than length=4, and was dropped; the state counts further ones"
    ]
    cut = list(IterableWrapper(items).pack(4, overflow="truncate"))
    assert [len(segment) for pack in cut for segment in segments(pack)] == [2, 2, 2, 2, 1, 3, 1, 1]
    with pytest.raises(
        ValueError, match="sample 1 of pack.. has 9 entries, more than length=4: choose another overflow"
    ):
        list(IterableWrapper(items).pack(4, overflow="raise"))
    with pytest.raises(ValueError, match=r"\(5, 1\) entries"):
        list(IterableWrapper([{"a": [1] * 5, "b": [1]}]).pack({"a": 4, "b": 4}, strategy="best_fit"))


@pytest.mark.parametrize(
    ("items", "options", "kind", "message"),
    [
        (["text"], {}, TypeError, "an item is 'text' of type str: tokenize it first"),
        ([3], {}, TypeError, "an item is 3 of type int"),
        ([["a"]], {}, TypeError, "dtype <U1"),
        ([{"a": [1], "url": "x"}], {}, TypeError, "field 'url' is 'x' of type str: tokenize it or name it in keep"),
        ([{"a": [1], "n": 7}], {}, TypeError, "field 'n' is 7 of type int: remove it or name it in keep"),
        ([{"a": [1], "b": [1, 2]}], {}, ValueError, "'a' has 1 entries and 'b' has 2"),
        ([{"a": [1]}, {"b": [1]}], {}, KeyError, "no field 'a', only 'b'"),
        ([{"a": [1]}, {"a": [1], "b": [1]}], {}, ValueError, r"fields \['b'\], which those before had not"),
        ([{"a": [1]}, [1]], {}, TypeError, "dict with a field 'a', got list"),
        ([{"a": [1], "positions": [0]}], {}, ValueError, "rename or remove 'positions'"),
        ([{"a": [1]}], {"pad_value": {"labels": 1}}, ValueError, r"pad_value names \['labels'\]"),
        ([{"a": [1]}], {"keep": ["of"]}, KeyError, "no field 'of', only 'a'"),
        ([[1], torch.ones(2)], {}, TypeError, r"float32 \(tensor\), those before had int64 \(tensor\)"),
        (
            [np.ones(2), torch.ones(2).double()],
            {},
            TypeError,
            r"float64 \(tensor\), those before had float64 \(array\)",
        ),
        ([torch.ones(2, 3), torch.ones(2, 4)], {}, TypeError, r"of shape \(4,\)"),
    ],
)
def test_wrong_items_are_errors_that_name_field_and_sample(items: Any, options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        list(IterableWrapper(items).pack(4, **options))
    assert caught.value.__notes__[0].startswith(f"pack: at sample {len(items) - 1}")


FORGED = [
    lambda own: own["data"].__setitem__(0, own["data"][0].astype(np.int32)),
    lambda own: own["data"].__setitem__(0, np.ones((2, 2), int)),
    lambda own: own["data"].append(own["data"][0]),
    lambda own: own["kept"].append([]),
    lambda own: own.pop("data"),
]
FORGED_BINS = [
    lambda own: own["data"].__setitem__(0, own["data"][0][:-1]),
    lambda own: own.update(sizes=[[1 << 40]]),
    lambda own: own.update(sizes=[[-1]]),
    lambda own: own.update(sizes=[[0]]),
    lambda own: own.update(sizes=[[]]),
]


def state_after_one(node: Any) -> dict[str, Any]:
    iterator = iterate(node)
    next(iterator)
    return decode(encode(iterator.state_dict()))


@pytest.mark.parametrize("forge", [*FORGED, *FORGED_BINS])
def test_L8_forged_bins_are_refused(forge: Any) -> None:
    node = IterableWrapper(samples([3, 2, 9, 4, 4])).pack(6, strategy="best_fit", bins=2)
    state = state_after_one(node)
    forge(state["open"][0])
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state)


@pytest.mark.parametrize("forge", [*FORGED, lambda own: own["data"].__setitem__(0, own["data"][0][:0])])
def test_L8_a_forged_rest_of_a_sample_is_refused(forge: Any) -> None:
    node = IterableWrapper(samples([9, 3])).pack(6)
    state = state_after_one(node)
    forge(state["rest"])
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state)


def test_L8_other_data_than_the_states_is_told() -> None:
    state = state_after_one(IterableWrapper(samples([3, 2, 1, 4])).pack(6))
    iterator = iterate(IterableWrapper([b"abc"] * 9).pack(6))
    iterator.load_state_dict(state)
    with pytest.raises(TypeError) as caught:
        list(iterator)
    assert any("is it the same data" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("bad", ["text", np.ones(3), [[1], [2]]])
def test_L2_a_resume_leaves_out_the_wrong_samples_that_the_whole_pass_leaves_out(bad: Any) -> None:
    good = samples([6, 6, 3, 5])
    data = [bad, good[0], bad, bad, *good[1:], bad]
    check_node(lambda: IterableWrapper(data).pack(6).on_error("skip"), epochs=[0])


def test_L5_the_state_is_bounded_by_the_bins() -> None:
    iterator = iterate(IterableWrapper([list(range(n % 30)) for n in range(5000)]).pack(64, strategy="best_fit"))
    sizes = []
    for _ in range(20):
        iterator.drop(50)
        sizes.append(len(encode(iterator.state_dict())))
    assert max(sizes) < 10 * 64 * 8 + 2000
