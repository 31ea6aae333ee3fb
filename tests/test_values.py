"""What objects of users keep: taken down as data wherever it is, and put back whole, into the present objects."""

from __future__ import annotations

import io
import itertools
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.keeping import LEAVES, Box, Frozen, Pair, draw, make, specs
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.state import decode, encode
from torchpipe.values import Looked, check, put

PASSES = 4


def goes_on(spec: Any) -> None:
    """In another one, taken back to there, and back to the start."""
    expected = [draw(kept) for kept in [make(spec)] for _ in range(PASSES)]
    for stop in range(PASSES):
        used, other = make(spec), make(spec)
        looked, there = Looked([used]), Looked([other])
        assert looked.now() == []
        start = looked.now()
        assert [draw(used) for _ in range(stop)] == expected[:stop]
        assert looked.lost() == []
        saved = decode(encode(looked.now()), allow_pickle=False)  # it is plain data
        check(there, saved)
        put(there, saved)
        assert [draw(other) for _ in range(PASSES - stop)] == expected[stop:]
        draw(used)
        put(looked, saved)
        assert [draw(used) for _ in range(PASSES - stop)] == expected[stop:], "taken back"
        for one, kept in ((looked, used), (there, other)):
            put(one, start)
            assert [draw(kept) for _ in range(PASSES)] == expected, "taken back to its start"


@pytest.mark.parametrize("name", LEAVES)
def test_L2_what_is_kept_goes_on_in_another_one_and_back_to_its_start(name: str) -> None:
    goes_on(name)


@settings(max_examples=60, deadline=None)
@given(specs())
def test_L2_in_any_nesting_and_however_it_is_shared(spec: Any) -> None:
    goes_on(spec)


def test_L2_what_others_share_with_the_owner_stays_shared() -> None:
    used, fresh = make("two names"), make("two names")
    looked, there = Looked([used]), Looked([fresh])
    draw(used)
    before, saved = fresh.x, looked.now()
    put(there, saved)
    assert fresh.x is before is fresh.y.x
    assert fresh.x.tolist() == [1, 0]


def test_what_has_not_changed_is_in_no_state() -> None:
    owner = Box("", rows=list(range(100_000)), array=np.zeros(100_000), few={"a": [1]})
    looked = Looked([owner])
    assert looked.now() == []
    owner.few["a"].append(2)
    assert len(encode(looked.now())) < 1000
    owner.rows[50_000] = -1
    assert len(encode(looked.now())) > 100_000
    owner.rows[50_000] = 50_000
    assert len(encode(looked.now())) < 1000


def test_L7_what_cannot_be_taken_down_is_named() -> None:
    owner = Box("", numbers=(n for n in range(3)), lock=threading.Lock(), file=io.StringIO(), inner=None, x=len, n=0)
    looked = Looked([owner])
    assert looked.lost() == [(0, "Box.numbers (generator)")], "it may have moved"
    owner.inner, owner.x, owner.n = {"opened": [map(len, [])]}, lambda: 3, 1
    found = [text for _, text in looked.lost()]
    assert found == ["Box.numbers (generator)", "Box.x (function)", "Box.inner['opened'][0] (map)"]
    other = Box("", numbers=(n for n in range(3)), lock=threading.Lock(), file=io.StringIO(), inner=None, x=len, n=0)
    saved = decode(encode(looked.now()), allow_pickle=False)
    there = Looked([other])
    check(there, saved)
    put(there, saved)
    assert (other.inner, other.x, other.n) == (None, len, 1), "as they were; the rest goes on"


class Removes:
    """Would be a trap, were it made by a state."""

    made: list[Any] = []

    def __init__(self, path: str) -> None:
        self.made.append(path)

    def __reduce__(self) -> Any:
        return Removes, ("path",)


def test_L8_a_state_names_only_what_the_owner_holds() -> None:
    def saved() -> tuple[Any, Looked]:
        owner = Box("", x=Pair(0), y=Frozen(1), act=Removes)
        looked = Looked([owner])
        owner.x, owner.y = Pair(1), Frozen(2)
        return looked.now(), Looked([Box("", x=Pair(0), y=Frozen(1), act=Removes)])

    whole, there = saved()
    check(there, whole)
    for place, row in enumerate(whole["objects"]):
        steps, kind, what, fixed, parts, links = row
        if what == "object":
            for forged in (
                [steps, "subprocess:Popen", what, fixed, parts, links],
                [None, "tests.test_values:Removes", what, ["call", 1, "none", [], 0, 0], [None, "x"], links[:1]],
                [steps, kind, what, ["call", *fixed[1:]], parts, links],
                [steps, kind, what, [*fixed[:1], 7, *fixed[2:]], parts, links],
                [steps, kind, "code", "os:system", [], []],
            ):
                other = [*whole["objects"]]
                other[place] = forged
                with pytest.raises((StateError, StateMismatchError)):
                    check(there, {"objects": other})
        for forged in ([("owner", 9)], "x", 3):
            with pytest.raises(StateError):
                check(there, {"objects": [[forged, *row[1:]]]})
    assert Removes.made == []
    for damaged in (
        None,
        3,
        {"objects": 3},
        {"objects": [3]},
        {"objects": [[None, "builtins:list", "list", None, [object()], []]]},
    ):
        with pytest.raises(StateError):
            check(there, damaged)


@pytest.mark.parametrize("name", ["__class__", "__dict__", "a b", "method", 3])
def test_L8_a_state_sets_no_attribute_that_is_none(name: Any) -> None:
    class Own:
        def __init__(self) -> None:
            self.count = 0

        def method(self) -> None: ...

    owner = Own()
    looked = Looked([owner])
    owner.count = 1
    saved = looked.now()
    saved["objects"][0][3][3] = [name]
    with pytest.raises(StateError, match="no place for it"):
        check(Looked([Own()]), saved)


def test_L3_states_from_before_are_read() -> None:
    owner = Box("", count=0, rows=[1, 2], rng=random.Random(0), gone=1, inner=Frozen(0))
    looked = Looked([owner])
    version, words, gauss = random.Random(5).getstate()
    kept = [
        [["count"], "value", 3],
        [["rows"], "value", [3, 4, 5]],
        [["rng"], "random.Random", [version, list(words), gauss]],
        [["gone"], "gone", None],
        [["new"], "value", {"a": 1}],
    ]
    there, saved = owner.rows, {"older": [kept]}
    check(looked, saved)
    put(looked, saved)
    assert (owner.count, owner.rows, owner.new, hasattr(owner, "gone")) == (3, [3, 4, 5], {"a": 1}, False)
    assert owner.rows is there
    assert owner.rng.random() == random.Random(5).random()
    for forged in ([["__class__"], "value", 3], [["other", "x"], "value", 1], [["count"], "code", 1], [[], "value", 1]):
        with pytest.raises(StateError):
            check(looked, {"older": [[forged]]})


def test_L2_a_look_takes_nothing() -> None:
    stream, numbers = (n for n in range(3)), itertools.count()
    owner = Box("", stream=stream, numbers=numbers, rng=torch.Generator())
    before = owner.rng.get_state()
    looked = Looked([owner])
    looked.now(), looked.lost()
    assert (next(stream), next(numbers)) == (0, 0)
    assert torch.equal(owner.rng.get_state(), before)
