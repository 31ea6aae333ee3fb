"""Ranks with uneven numbers of items, played by threads: every policy, every position, every size of block."""

from __future__ import annotations

from typing import Any

import pytest

from reading_services.ranks.agreement import RankReport, StreamOfRank, Then, Verdict, decide
from tests.services.ranks import Table, TogetherRank, on_all_ranks
from torchpipe import DataLoader2
from torchpipe.errors import RankError
from torchpipe.execution.epoch import Uneven
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper


def _item(number: int) -> dict[str, int]:
    return {"n": number}


def _graph(lengths: tuple[int, ...], fail_at: int | None = None) -> Any:
    """Rank r has ``lengths[r]`` items: r, r + world, r + 2 world ..."""
    world = len(lengths)

    def keep(number: int) -> bool:
        if number == fail_at:
            raise ZeroDivisionError(f"item {number}")
        return number // world < lengths[number % world]

    return IterableWrapper(range(world * max(lengths))).sharding_filter().filter(keep).map(_item)


def _expected(lengths: tuple[int, ...], uneven: str, rank: int) -> list[int]:
    own = [rank + index * len(lengths) for index in range(lengths[rank])]
    if uneven == "pad":
        return own + own[-1:] * (max(lengths) - len(own))
    return own[: min(lengths)]


def _loader(graph: Any, rank: int, table: Table, uneven: str, every: int) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=TogetherRank(rank, table, uneven, every))
    loader.seed(3)
    return loader


def _numbers(items: Any) -> list[int]:
    numbers = []
    for item in items:
        numbers.append(item["n"])
        item["n"] = -1  # what the user does with an item must not show in what is repeated
    return numbers


@pytest.mark.parametrize("uneven", ["drop", "pad"])
@pytest.mark.parametrize("every", [1, 2, 3, 10])
@pytest.mark.parametrize("lengths", [(4, 4), (3, 5), (6, 1), (4, 3, 8)])
def test_ranks_end_together_and_resume_exactly(lengths: tuple[int, ...], every: int, uneven: str) -> None:
    graph = _graph(lengths)

    def play(rank: int, table: Table) -> list[list[int]]:
        got, states = [], []
        with _loader(graph, rank, table, uneven, every) as loader:
            stream = iter(loader)
            while True:
                states.append(loader.state_dict())
                try:
                    got += _numbers([next(stream)])
                except StopIteration:
                    break
            streams = [got, _numbers(loader)]
        for state in states:
            with _loader(graph, rank, table, uneven, every) as loader:
                loader.load_state_dict(state)
                stream = iter(loader)
                resumed = loader.state_dict()
                assert resumed == state
                streams.append(_numbers(stream))
        return streams

    for rank, streams in enumerate(on_all_ranks(len(lengths), play)):
        assert not isinstance(streams, Exception), repr(streams)
        expected = _expected(lengths, uneven, rank)
        assert streams[0] == streams[1] == expected
        for count, resumed in enumerate(streams[2:]):
            assert resumed == expected[count:], f"resumed after {count}"


@pytest.mark.parametrize("items", [4, 5, 7, 9])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("resumed", [1, 2, 4])
def test_a_rank_repeats_its_last_item_after_a_resume_on_other_ranks_too(items: int, ranks: int, resumed: int) -> None:
    graph = IterableWrapper(range(items)).sharding_filter().map(_item)

    def play(rank: int, table: Table, state: Any = None) -> tuple[list[int], list[Any]]:
        service = TogetherRank(rank, table, "pad", 2, 4)
        with DataLoader2(graph, reading_service=service) as loader:
            loader.seed(3)
            got, states = [], []
            if state is not None:
                loader.load_state_dict(state)
            for item in loader:
                got += _numbers([item])
                states.append(loader.state_dict("all"))
            return got, states

    def own(rank: int) -> list[int]:
        return [number for number in range(items) if number % 4 % resumed == rank]

    states = on_all_ranks(ranks, play)[0][1]
    for steps, state in enumerate(states[:-1], 1):
        rests = on_all_ranks(resumed, lambda rank, table, state=state: play(rank, table, state)[0])  # type: ignore[misc]
        left = [[number for number in own(rank) if number >= steps * ranks] for rank in range(resumed)]
        most = max(map(len, left))
        assert rests == [rest + own(rank)[-1:] * (most - len(rest)) for rank, rest in enumerate(left)], steps


@pytest.mark.parametrize("every", [1, 3])
def test_uneven_numbers_can_be_refused(every: int) -> None:
    def play(rank: int, table: Table, lengths: tuple[int, ...]) -> list[int]:
        got = []
        with _loader(_graph(lengths), rank, table, "raise", every) as loader:
            try:
                for item in loader:
                    got.append(item["n"])
            except RankError as error:
                assert "rank 1 has no more items" in str(error)
                got.append(-1)
        return got

    assert on_all_ranks(2, lambda rank, table: play(rank, table, (5, 3))) == [[0, 2, 4, -1], [1, 3, 5, -1]]
    assert on_all_ranks(2, lambda rank, table: play(rank, table, (2, 2))) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("uneven", ["drop", "pad", "raise"])
@pytest.mark.parametrize("every", [1, 3])
def test_an_error_of_one_rank_ends_all_at_its_place(every: int, uneven: str) -> None:
    def play(rank: int, table: Table) -> tuple[list[int], str]:
        got = []
        with _loader(_graph((9, 9), fail_at=9), rank, table, uneven, every) as loader:
            try:
                for item in loader:
                    got.append(item["n"])
            except Exception as error:
                return got, f"{type(error).__name__}: {error}"
        return got, ""

    (ours, told), (theirs, own) = on_all_ranks(2, play)
    assert ours == [0, 2, 4, 6]
    assert theirs == [1, 3, 5, 7]
    assert own == "ZeroDivisionError: item 9"
    assert told.startswith("RankError")
    assert "rank 1: ZeroDivisionError: item 9" in told


def test_a_rank_without_items_cannot_repeat_any() -> None:
    def play(rank: int, table: Table) -> list[Any]:
        with _loader(_graph((3, 0)), rank, table, "pad", 2) as loader:
            return list(loader)

    for error in on_all_ranks(2, play):
        assert isinstance(error, RankError)
        assert "rank 1 has no item at all" in str(error)


def test_what_is_decided() -> None:
    full, two, ended = (
        RankReport(n, source, True)
        for n, source in ((4, StreamOfRank.OPEN), (2, StreamOfRank.ENDED), (0, StreamOfRank.ENDED))
    )
    failed = RankReport(2, StreamOfRank.FAILED, True)
    assert decide([full, full], Uneven.RAISE, 4) == Verdict(4, Then.NEXT)
    assert decide([full, two], Uneven.DROP, 4) == Verdict(2, Then.END, (1,))
    assert decide([full, ended], Uneven.PAD, 4) == Verdict(4, Then.NEXT)
    assert decide([two, ended], Uneven.PAD, 4) == Verdict(2, Then.END)
    assert decide([two, failed], Uneven.DROP, 4) == Verdict(2, Then.FAILURE, (1,))
    assert decide([ended, failed], Uneven.DROP, 4) == Verdict(0, Then.END, (0,))
    assert decide([ended, failed], Uneven.PAD, 4) == Verdict(2, Then.FAILURE, (1,))
    never = RankReport(0, StreamOfRank.ENDED, False)
    for uneven in Uneven:
        assert decide([two, never], uneven, 4) == Verdict(0, Then.NOTHING, (1,))
    assert decide([never, never], Uneven.DROP, 4) == Verdict(0, Then.END, (0, 1))


def test_the_length_counts_the_rank_alone() -> None:
    graph = IterableWrapper(range(10)).sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED).map(_item)

    def play(rank: int, table: Table) -> int:
        return len(_loader(graph, rank, table, "drop", 1))

    assert on_all_ranks(3, play) == [4, 3, 3]
