"""Who hosts which shards: decided from speeds alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reading_services.engine.balance import apportion, moved

SPEEDS = st.dictionaries(st.integers(0, 9), st.floats(0.1, 100), min_size=1, max_size=6)


@given(st.integers(0, 60), SPEEDS)
def test_every_shard_is_hosted_and_nobody_takes_longer_than_needed(shards: int, speeds: dict[int, float]) -> None:
    counts = apportion(shards, speeds)
    assert sum(counts.values()) == shards
    assert set(counts) == set(speeds)
    slowest = max(count / speeds[number] for number, count in counts.items())
    for number, count in counts.items():  # one shard of whoever takes longest, moved to any other, brings nothing
        assert (count + 1) / speeds[number] >= slowest or count / speeds[number] == slowest


def test_a_place_of_a_third_of_the_speed_gets_a_third_of_the_shards() -> None:
    assert apportion(14, {0: 33.0, 1: 100.0, 2: 100.0}) == {0: 2, 1: 6, 2: 6}


@given(st.lists(st.integers(0, 4), max_size=30), SPEEDS)
def test_no_more_shards_move_than_must(places: list[int], speeds: dict[int, float]) -> None:
    hosts = dict(enumerate(places))
    counts = apportion(len(hosts), speeds)
    after = moved(hosts, counts)
    assert set(after) == set(hosts)
    assert {number: list(after.values()).count(number) for number in counts} == counts
    stay = sum(min(places.count(number), count) for number, count in counts.items())
    assert sum(hosts[shard] == after[shard] for shard in hosts) == stay
