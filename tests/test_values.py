"""What objects of users keep: taken down as data wherever it is, and put back whole, into the present objects."""

from __future__ import annotations

import io
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.keeping import LEAVES, Box, Frozen, OwnList, Pair, Plain, draw, make, specs
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.state import decode, encode
from torchpipe.values import ObjectTracker, check, kept_of, put
from torchpipe.values.large_data import sample_of

PASSES = 4


def goes_on(spec: Any, look: Callable[[Any], ObjectTracker] = lambda owner: ObjectTracker([owner])) -> None:
    """In another one, taken back to there, and back to the start."""
    expected = [draw(kept) for kept in [make(spec)] for _ in range(PASSES)]
    for stop in range(PASSES):
        used, other = make(spec), make(spec)
        tracker, there = look(used), look(other)
        assert tracker.now() == []
        start = tracker.now()
        assert [draw(used) for _ in range(stop)] == expected[:stop]
        assert tracker.lost() == []
        saved = decode(encode(tracker.now()), allow_pickle=False)  # it is plain data
        check(there, saved)
        put(there, saved)
        assert [draw(other) for _ in range(PASSES - stop)] == expected[stop:]
        draw(used)
        put(tracker, saved)
        assert [draw(used) for _ in range(PASSES - stop)] == expected[stop:], "taken back"
        for one, kept in ((tracker, used), (there, other)):
            put(one, start)
            assert [draw(kept) for _ in range(PASSES)] == expected, "taken back to its start"


LOOKS = pytest.mark.parametrize("look", [lambda owner: ObjectTracker([owner]), kept_of], ids=["whole", "but for data"])


@LOOKS
@pytest.mark.parametrize("name", LEAVES)
def test_L2_what_is_kept_goes_on_in_another_one_and_back_to_its_start(name: str, look: Any) -> None:
    goes_on(name, look)


@settings(max_examples=40, deadline=None)
@given(specs())
def test_L2_in_any_nesting_and_however_it_is_shared(spec: Any) -> None:
    goes_on(spec)
    goes_on(spec, kept_of)


def test_L2_what_others_share_with_the_owner_stays_shared() -> None:
    used, fresh = make("two names"), make("two names")
    tracker, there = ObjectTracker([used]), ObjectTracker([fresh])
    draw(used)
    before, saved = fresh.x, tracker.now()
    put(there, saved)
    assert fresh.x is before is fresh.y.x
    assert fresh.x.tolist() == [1, 0]


def test_what_has_not_changed_is_in_no_state() -> None:
    owner = Box("", rows=list(range(100_000)), array=np.zeros(100_000), few={"a": [1]})
    tracker = ObjectTracker([owner])
    assert tracker.now() == []
    owner.few["a"].append(2)
    assert len(encode(tracker.now())) < 1000
    owner.rows[50_000] = -1
    assert len(encode(tracker.now())) > 100_000
    owner.rows[50_000] = 50_000
    assert len(encode(tracker.now())) < 1000


# -- data ---------------------------------------------------------------------------------------------------------

DATA: dict[str, Callable[[], Any]] = {
    "a list": lambda: list(range(200_000)),
    "a list of a class": lambda: OwnList(range(200_000)),
    "a tuple": lambda: tuple(range(200_000)),
    "text": lambda: "ab" * (1 << 20),
    "an array": lambda: np.arange(1 << 18),
    "a strided tensor": lambda: torch.arange(1 << 19)[::2],
    "a dict of arrays": lambda: {"x": np.arange(1 << 18)},
    "records": lambda: [{"row": row, "text": f"row {row}"} for row in range(40_000)],
    "records of a class": lambda: [Plain(row, [row]) for row in range(40_000)],
    "records with arrays": lambda: [Plain(np.full(20_000, row)) for row in range(100)],
    "lists of lists": lambda: [[row, row] for row in range(80_000)],
}


@pytest.mark.parametrize("name", DATA)
def test_L2_data_are_read_by_their_owner_and_put_back_by_nobody(name: str) -> None:
    """Many read their data when they are first needed: nothing was there before, and nothing is in a state."""
    used, fresh, bare, at_once = Box("", rows=None, n=0), Box("", rows=None, n=0), Box("", n=0), Box("", n=0)
    at_once.rows = DATA[name]()
    tracker, others = kept_of(used), [kept_of(owner) for owner in (fresh, bare, at_once)]
    assert others[2].now() == []
    used.rows, used.n = DATA[name](), 1
    assert tracker.lost() == []
    saved = decode(encode(tracker.now()), allow_pickle=False)
    assert len(encode(saved)) < 1000
    for there in (*others, tracker):
        check(there, saved)
        put(there, saved)
        assert there.owners[0].n == 1
    assert fresh.rows is None, "to be read"
    assert not hasattr(bare, "rows")
    assert at_once.rows is not None
    assert used.rows is not None


@pytest.mark.parametrize("name", ["a list", "a list of a class", "an array", "a dict of arrays", "records"])
def test_L7_data_that_have_changed_are_refused_by_name(name: str) -> None:
    used, fresh = Box("", rows=DATA[name]()), Box("", rows=DATA[name]())
    tracker, there = kept_of(used), kept_of(fresh)
    rows = used.rows["x"] if isinstance(used.rows, dict) else used.rows
    rows[:] = rows[::-1].copy()
    saved = tracker.now()
    with pytest.raises(StateError, match=r"Box.rows has other data .* 1,000 kB .*state_dict"):
        put(there, saved)
    put(tracker, saved)
    with pytest.raises(StateError, match=r"Box.rows has other data"):
        put(tracker, [])


def test_L7_what_stands_beside_data_is_kept_or_refused() -> None:
    def made() -> Any:
        stages = [Plain(np.zeros(1 << 18), random.Random(1)), Plain(random.Random(2))]
        return Box("", stages=stages, few={"rows": np.zeros(1 << 18), "n": 0}, view=np.zeros(1 << 18)[:2])

    def step(box: Any) -> Any:
        box.view += 1
        return box.stages[0].rest.random(), box.stages[1].count.random(), box.view.tolist()

    expected = [step(box) for box in [made()] for _ in range(4)]
    used, fresh = made(), made()
    tracker, there = kept_of(used), kept_of(fresh)
    assert [step(used), step(used)] == expected[:2]
    saved = decode(encode(tracker.now()), allow_pickle=False)
    put(there, saved)
    assert [step(fresh), step(fresh)] == expected[2:], "objects in a short list are followed, whatever they hold"
    used.few["n"] = 1
    with pytest.raises(StateError, match=r"Box.few has other data"):
        put(kept_of(made()), tracker.now())


def test_L7_what_is_too_far_away_is_told() -> None:
    chain: Any = None
    for _ in range(25_000):
        chain = Plain(chain)
    tracker = kept_of(Box("", chain=chain, n=0))
    tracker.owners[0].n = 1
    assert len(tracker.now()["objects"]) < 9
    assert "what is further away than the nearest 20,000 objects" in tracker.lost()[0][1]


def test_L7_data_of_an_object_that_is_new_are_told() -> None:
    owner = Box("", inner=None)
    tracker = kept_of(owner)
    owner.inner = Box("", rows=list(range(200_000)))
    assert [text for _, text in tracker.lost()] == ["Box.inner.rows (list)"]
    assert decode(encode(tracker.now()), allow_pickle=False) == tracker.now()
    other = Box("", inner=None)
    put(kept_of(other), tracker.now())
    assert other.inner is None, "as it was"


# -- what is told, and refused ------------------------------------------------------------------------------------


def test_L7_what_cannot_be_taken_down_is_named() -> None:
    owner = Box("", numbers=(n for n in range(3)), lock=threading.Lock(), file=io.StringIO(), inner=None, x=len, n=0)
    tracker = ObjectTracker([owner])
    assert tracker.lost() == [(0, "Box.numbers (generator)")], "it may have moved"
    owner.inner, owner.x, owner.n = {"opened": [map(len, [])]}, lambda: 3, 1
    found = [text for _, text in tracker.lost()]
    assert found == ["Box.numbers (generator)", "Box.x (function)", "Box.inner['opened'][0] (map)"]
    other = Box("", numbers=(n for n in range(3)), lock=threading.Lock(), file=io.StringIO(), inner=None, x=len, n=0)
    saved = decode(encode(tracker.now()), allow_pickle=False)
    there = ObjectTracker([other])
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
    def saved() -> tuple[Any, ObjectTracker]:
        owner = Box("", x=Pair(0), y=Frozen(1), act=Removes)
        tracker = ObjectTracker([owner])
        owner.x, owner.y = Pair(1), Frozen(2)
        return tracker.now(), ObjectTracker([Box("", x=Pair(0), y=Frozen(1), act=Removes)])

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
    tracker = ObjectTracker([owner])
    owner.count = 1
    saved = tracker.now()
    saved["objects"][0][3][3] = [name]
    with pytest.raises(StateError, match="no place for it"):
        check(ObjectTracker([Own()]), saved)


def test_L3_states_from_before_are_read() -> None:
    owner = Box("", count=0, rows=[1, 2], rng=random.Random(0), gone=1, inner=Frozen(0))
    tracker = ObjectTracker([owner])
    version, words, gauss = random.Random(5).getstate()
    kept = [
        [["count"], "value", 3],
        [["rows"], "value", [3, 4, 5]],
        [["rng"], "random.Random", [version, list(words), gauss]],
        [["gone"], "gone", None],
        [["new"], "value", {"a": 1}],
    ]
    there, saved = owner.rows, {"older": [kept]}
    check(tracker, saved)
    put(tracker, saved)
    assert (owner.count, owner.rows, owner.new, hasattr(owner, "gone")) == (3, [3, 4, 5], {"a": 1}, False)
    assert owner.rows is there
    assert owner.rng.random() == random.Random(5).random()
    read = kept_of(Box("", count=0, rows=list(range(200_000))))
    put(read, [kept[0], [["rows"], "data", sample_of(read.owners[0].rows)]])
    assert read.owners[0].count == 3
    with pytest.raises(StateError, match="other data"):
        put(read, [kept[0], [["rows"], "data", 3]])
    for forged in ([["__class__"], "value", 3], [["other", "x"], "value", 1], [["count"], "code", 1], [[], "value", 1]):
        with pytest.raises(StateError):
            check(tracker, {"older": [[forged]]})


@pytest.mark.parametrize(
    "values",
    [
        list(range(10_000, 0, -1)),
        [(-1) ** n * n << 40 for n in range(10_000)],
        [-(1 << 63), (1 << 63) - 1] * 5_000,
        [1 << 63] * 10_000,
        [0.1 * n for n in range(10_000)],
        [True, 2, 3.0, None] * 2_500,
        [[], *range(10_000)],
    ],
    ids=["int32", "int64", "ends of int64", "above", "floats", "mixed", "with a list"],
)
def test_L2_long_lists_come_back_with_their_types(values: list[Any]) -> None:
    owner, other = Box("", a=0), Box("", a=0)
    tracker, there = ObjectTracker([owner]), ObjectTracker([other])
    owner.a = values
    saved = decode(encode(tracker.now()))
    put(there, saved)
    assert list(map(type, other.a)) == list(map(type, values))
    assert other.a == values


def test_L2_a_look_takes_nothing() -> None:
    stream, numbers = (n for n in range(3)), itertools.count()
    owner = Box("", stream=stream, numbers=numbers, rng=torch.Generator())
    before = owner.rng.get_state()
    tracker = ObjectTracker([owner])
    tracker.now(), tracker.lost()
    assert (next(stream), next(numbers)) == (0, 0)
    assert torch.equal(owner.rng.get_state(), before)
