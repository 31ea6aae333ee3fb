"""The merge of shards, fed with chunks of any size: whose turn it is, where it ends, and what its cursors say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tries import tries
from torchpipe.errors import RankError
from torchpipe.execution.epoch import EpochStart, Part, Uneven
from torchpipe.execution.merge import MergeIterator, MergeSet, ShardProvider
from torchpipe.execution.merge_variants import RoundsMerge
from torchpipe.execution.shard import Chunk
from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context
from torchpipe.state import Cursor, decode, encode
from torchpipe.state.cursor import Rotation


class Chunks(ShardProvider):
    """Shard s has the items (s, 0), (s, 1) ... (s, lengths[s] - 1), in chunks of ``sizes``, some with a snapshot."""

    def __init__(self, lengths: list[int], sizes: list[int], cursors: Mapping[int, Cursor]) -> None:
        self._lengths = lengths
        self._sizes = sizes
        self._at = {}
        for lane, cursor in cursors.items():
            start = 0 if cursor.snapshot is None else decode(cursor.snapshot)["at"]
            assert start + cursor.skip == cursor.count, "the cursor does not lead to its count"
            self._at[lane] = cursor.count
        self._pulls = 0

    def pull(self, lane: int) -> Chunk:
        self._pulls += 1
        size = self._sizes[self._pulls % len(self._sizes)]
        first = self._at[lane]
        last = min(first + size, self._lengths[lane])
        self._at[lane] = last
        snapshot = encode({"at": last}) if self._pulls % 3 and last > first else None
        return Chunk([(lane, index) for index in range(first, last)], snapshot, ended=last < first + size)

    def close(self) -> None:
        return


def merged(
    lengths: list[int], sizes: list[int], part: Part, rounds: Uneven | None, state: dict[str, Any] | None = None
) -> MergeIterator:
    node = IterableWrapper([])
    start = EpochStart(seed=0, epoch=0, num_shards=len(lengths), part=part, rounds=rounds)
    merges = MergeSet(lambda cursors: Chunks(lengths, sizes, cursors))
    kind = MergeIterator if rounds in (None, Uneven.PAD) else RoundsMerge
    iterator = kind(node, Context.for_graph(node, seed=0), start, merges)
    if state is not None:
        iterator.load_state_dict(state)
    return iterator


def check(state: dict[str, Any], counts: list[int]) -> None:
    """Does every cursor lead to where its shard stands?"""
    rotation = Rotation.from_state(state, len(counts))
    assert rotation.counts == counts
    for cursor in rotation.cursors:
        start = 0 if cursor.snapshot is None else decode(cursor.snapshot)["at"]
        assert start + cursor.skip == cursor.count


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=7)


@given(LENGTHS, SIZES, st.sampled_from([None, Uneven.DROP, Uneven.PAD]), st.data())
@settings(max_examples=tries(150))
def test_positions_are_exact_after_every_item(
    lengths: list[int], sizes: list[int], rounds: Uneven | None, data: st.DataObject
) -> None:
    ranks = data.draw(st.sampled_from([ranks for ranks in range(1, len(lengths) + 1) if len(lengths) % ranks == 0]))
    part = Part(data.draw(st.integers(0, ranks - 1)), ranks)
    hosted = part.shards(len(lengths))
    own = [lengths[shard] for shard in hosted]
    most = min(own) if rounds is Uneven.DROP else max(own)
    expected = [(shard, index) for index in range(most) for shard in hosted if index < lengths[shard]]
    iterator = merged(lengths, sizes, part, rounds)
    if rounds is Uneven.DROP and not most and any(own):
        with pytest.raises(RankError, match="has no item at all"):
            next(iterator)
        return
    counts = [0] * len(hosted)
    states = [iterator.state_dict()]
    later = [iterator.state_later()]
    for item in expected:
        assert next(iterator) == item
        counts[hosted.index(item[0])] += 1
        check(iterator.state_dict(), counts)
        states.append(iterator.state_dict())
        later.append(iterator.state_later())
    assert next(iterator, None) is None
    total = sum(own)
    assert (getattr(iterator, "left_over", None) is None) == (rounds is not Uneven.DROP or total == len(expected))
    if (left := getattr(iterator, "left_over", None)) is not None:
        assert left.items <= total - len(expected)
        assert not left.exact or left.items == total - len(expected)
        assert any(length > most + 1 for length in own) or not left.notable
        assert left.notable or left.items <= len(own)
        assert iterator.ended_first == [shard for shard in hosted if lengths[shard] == most]
    for place, (state, state_then) in enumerate(zip(states, later, strict=True)):
        assert state_then() == state, "a state has changed since"
        if rounds is Uneven.PAD and place:
            before = Rotation.from_state(state, len(own)).before(1).to_state()
            assert list(merged(lengths, sizes[::-1], part, rounds, before).items()) == expected[place - 1 :]
            assert all(cursor.skip for cursor in Rotation.from_state(state, len(own)).cursors if cursor.count)
        assert list(merged(lengths, sizes[::-1], part, rounds, state).items()) == expected[place:]


@given(LENGTHS, SIZES, st.sampled_from([None, Uneven.DROP]), st.data())
@settings(max_examples=tries(150))
def test_shards_at_any_positions_go_on_in_the_order_of_rounds(
    lengths: list[int], sizes: list[int], rounds: Uneven | None, data: st.DataObject
) -> None:
    """Those that are behind come first; where another rank is ahead, the last items of all rounds are left."""
    counts = [data.draw(st.integers(0, length)) for length in lengths]
    live = [shard for shard, length in enumerate(lengths) if counts[shard] < length or data.draw(st.booleans())]
    lag = data.draw(st.integers(0, 5)) if rounds is Uneven.DROP else 0
    cursors = [Cursor(None, count, count) for count in counts]
    state = Rotation.after(cursors, live, lag).to_state()
    most = min(lengths) if rounds is Uneven.DROP else max(lengths)
    left = [
        (shard, index)
        for index in range(most)
        for shard, length in enumerate(lengths)
        if counts[shard] <= index < length
    ]
    expected = left[: max(0, len(left) - lag)]
    iterator = merged(lengths, sizes, Part(), rounds, state)
    if rounds is Uneven.DROP and not most and any(lengths) and live:
        with pytest.raises(RankError, match="has no item at all"):
            next(iterator)
        return
    seen = list(counts)
    for place, (shard, index) in enumerate(expected):
        assert next(iterator) == (shard, index)
        seen[shard] += 1
        later = iterator.state_dict()
        check(later, seen)
        rest = merged(lengths, sizes[::-1], Part(), rounds, later)
        assert list(rest.items()) == expected[place + 1 :]
    assert next(iterator, None) is None


@given(st.lists(st.integers(0, 20), min_size=1, max_size=24), st.data())
def test_what_is_dealt_comes_together_again(counts: list[int], data: st.DataObject) -> None:
    live = [shard for shard in range(len(counts)) if data.draw(st.booleans())]
    whole = Rotation.after([Cursor(None, count, count) for count in counts], live)
    for ranks in (ranks for ranks in range(1, len(counts) + 1) if len(counts) % ranks == 0):
        parts = whole.for_ranks(ranks)
        assert Rotation.joined(parts) == whole
        given_out = [sum(part.counts) for part in parts]
        assert [part.items_behind for part in parts] == [max(given_out) - mine for mine in given_out]
        assert all(Rotation.from_state(part.to_state(), len(counts) // ranks) == part for part in parts)
