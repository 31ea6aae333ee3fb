"""Cursors and the policy that says when a snapshot is due."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import Cursor, SnapshotPolicy, decode, encode
from torchpipe.state.codec import from_text


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans())))
def test_a_cursor_counts_from_its_newest_snapshot(steps: list[tuple[int, bool]]) -> None:
    cursor, position, snapshot_at = Cursor(), 0, 0
    for items, snapshot in steps:
        position += items
        cursor = cursor.after(items, str(position).encode() if snapshot else None)
        snapshot_at = position if snapshot else snapshot_at
    assert int(cursor.snapshot or b"0") == snapshot_at
    assert snapshot_at + cursor.skip == position


def test_an_older_cursor_says_one_thing_more_which_is_left_aside() -> None:
    assert decode(from_text("VFBTAtZCp6IAAAABkJXHAAzAAwNN")) == Cursor(None, 3, 3)


def test_a_cursor_is_a_state() -> None:
    cursor = Cursor(encode({"position": 2}), 3, 5)
    assert Cursor.from_state(decode(encode(cursor.to_state()))) == cursor
    assert Cursor.from_state({"position": 1}) is None
    assert Cursor.from_state({"cursor": [encode({"position": 2}), 3, 5]}) is None  # the type says it, not the name
    assert Cursor.from_state(None) is None


@given(st.integers(0, 20), st.integers(0, 20))
def test_L2_any_iterator_loads_a_cursor(at: int, skip: int) -> None:
    node = IterableWrapper(range(20)).shuffle(buffer_size=5)
    expected = list(iterate(node))
    iterator = iterate(node)
    iterator.drop(at)
    resumed = iterate(node, seed=99)  # the key travels with the snapshot
    resumed_at_start = iterate(node)
    if at + skip > 20:
        with pytest.raises(StateError, match=f"ended after {20 - at} of {skip} items"):
            resumed.load_state_dict(Cursor(encode(iterator.state_dict()), skip).to_state())
        return
    resumed.load_state_dict(Cursor(encode(iterator.state_dict()), skip).to_state())
    assert list(resumed) == expected[at + skip :]
    resumed_at_start.load_state_dict(Cursor(None, skip).to_state())
    assert list(resumed_at_start) == expected[skip:]


def test_every_n_items() -> None:
    policy = SnapshotPolicy(every=3)
    due = []
    for _ in range(9):
        due.append(policy.due())
        if due[-1]:
            policy.begin()
            policy.end()
    assert due == [False, False, True] * 3
    assert SnapshotPolicy(every=3).due(5)


def test_by_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    policy = SnapshotPolicy(share=0.01)
    assert policy.due()  # the first at once: its cost sets the pace
    policy.begin()
    now += 0.5
    policy.end()
    assert not policy.due()
    now += 49.9
    assert not policy.due()
    now += 0.2
    assert policy.due()


@pytest.mark.parametrize("arguments", [{"share": 0.0}, {"share": 1.5}, {"every": 0}])
def test_wrong_policies_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SnapshotPolicy(**arguments)
