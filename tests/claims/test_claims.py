"""Claims: every item is finished once, whoever finishes first, through resumes, epochs and numbers of workers."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import json
import os
import pickle
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from tests.services.ranks import FixedRank
from tests.tries import tries
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.claims import Claims
from torchpipe.errors import (
    IteratorInvalidated,
    StateError,
    StateMismatchError,
    UnsafeStateError,
    WorkerDiedError,
)
from torchpipe.iter import IterableWrapper
from torchpipe.state import SnapshotPolicy, merge

ITEMS, EPOCHS = 30, 2
Make = Callable[[int], Any]


def _first(batch: list[Any]) -> Any:
    return batch[0]


class Counting(torch.utils.data.Dataset[list[int]]):
    """Counts in itself, and hands out what it keeps."""

    def __init__(self) -> None:
        self.asked = 0
        self.kept = [[number] for number in range(ITEMS)]

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> list[int]:
        self.asked += 1
        return self.kept[index]


def map_style(workers: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    return DataLoader(Counting(), 1, shuffle=True, num_workers=workers, collate_fn=_first, generator=generator)


def graph(workers: int) -> Any:
    nodes: Any = IterableWrapper([[number] for number in range(ITEMS)]).shuffle().sharding_filter().shuffle()
    service = MultiProcessingReadingService(workers, "fork", num_shards=2)
    loader: Any = DataLoader2(nodes, reading_service=service)
    loader.seed(3)
    return loader


class _Stream(torch.utils.data.IterableDataset[list[int]]):
    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
        return iter([[number] for number in range(worker, ITEMS, workers)])


def iterable(workers: int) -> Any:
    return DataLoader(_Stream(), None, num_workers=workers)


LOADERS = st.sampled_from([map_style, graph])


@given(LOADERS, st.integers(1, 9), st.randoms(use_true_random=False))
@settings(max_examples=tries(12))
def test_every_item_is_finished_once(make: Make, ahead: int, random: Random) -> None:
    """Lives end after some items, with what they have finished since the last state lost, as a model's steps are."""
    state: dict[str, Any] | None = None
    items: dict[tuple[int, int], int] = {}
    finished: list[tuple[int, int]] = []
    for life in range(40):
        loader = make(random.choice([0, 0, 2]))
        if state is not None:
            loader.load_state_dict(state)
        claims = loader.claims(ahead=ahead)
        last = random.randrange(5, 60) if life < 30 else 1000
        since: list[tuple[int, int]] = []
        held: list[Any] = []
        given_here = 0
        while claims.epoch < EPOCHS and given_here < last:
            for claim in claims:
                given_here += 1
                (value,) = claim.item
                assert items.setdefault(claim.number[:2], value) == value
                claim.item.append("changed by its user")
                if make is map_style:
                    claim.item.pop()
                held.append(claim)
                while len(held) == ahead or (held and random.random() < 0.4):
                    ended = held.pop(random.randrange(len(held)))
                    since.append(ended.number[:2])
                    if random.random() < 0.8:
                        assert ended.done(np.int64(1))
                    else:
                        ended.drop("no use")
                if random.random() < 0.2:
                    state, finished, since = loader.state_dict(), finished + since, []
                    assert claims.stats().open >= len(held)
                if given_here == last:
                    break
            else:
                while held:
                    since.append(held[0].number[:2])
                    held.pop(0).done()
        loader.shutdown()
        if given_here < last:
            finished += since
            break
    assert sorted(finished) == [(epoch, ordinal) for epoch in range(EPOCHS) for ordinal in range(ITEMS)]
    for epoch in range(EPOCHS):
        assert sorted(value for number, value in items.items() if number[0] == epoch) == list(range(ITEMS))


@pytest.mark.parametrize("make", [map_style, graph])
def test_numbers_and_items_are_the_loaders_own_under_any_number_of_workers(make: Make) -> None:
    with make(0) as plain:
        whole = [[*item] for item in plain]
    for workers in (0, 2):
        with make(workers) as loader:
            claims = loader.claims(ahead=ITEMS)
            assert [(claim.number[:2], claim.item) for claim in claims] == [
                ((0, ordinal), item) for ordinal, item in enumerate(whole)
            ]
            assert loader.epoch == 1
            assert claims.epoch == 1
            assert claims.stats().open == ITEMS


def test_an_iterable_dataset_under_workers() -> None:
    with iterable(2) as loader:
        claims = loader.claims(ahead=10)
        taken = list(islice(claims, 10))
        for claim in taken[3:]:
            claim.done()
        state = loader.state_dict()
    with iterable(2) as loader:
        loader.load_state_dict(state)
        claims = loader.claims(ahead=100)
        rest = list(claims)
        assert [claim.item for claim in rest[:3]] == [claim.item for claim in taken[:3]]
        assert sorted(claim.item[0] for claim in (*taken[3:], *rest)) == list(range(ITEMS))


def test_a_state_is_small_and_plain(tmp_path: Path) -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=8)
        for claim in claims:
            if claim.ordinal % 5:
                claim.done()
            if claim.ordinal == 20:
                break
        state = loader.state_dict()
        assert state == claims.state_dict()
        assert len(state["claims"]) < 400
    torch.save(state, tmp_path / "state.pt")
    for loaded in (json.loads(json.dumps(state)), torch.load(tmp_path / "state.pt", weights_only=True)):
        with map_style(0) as loader:
            loader.load_state_dict(loaded)
            claims = loader.claims(ahead=100)
            assert claims.epoch == 0
            assert [claim.ordinal for claim in claims] == [0, 5, 10, 15, 20, *range(21, ITEMS)]
            assert claims.stats().passed == 16


def test_it_does_not_matter_whether_claims_are_made_before_the_state_is_loaded() -> None:
    with graph(0) as loader:
        claims = loader.claims(ahead=4)
        assert [claim.ordinal for claim in islice(claims, 3)] == [0, 1, 2]
        state = loader.state_dict()
        loader.load_state_dict(state)  # into the loader that has given it, claims and all
        assert [claim.ordinal for claim in islice(claims, 4)] == [0, 1, 2, 3]


def test_next_waits_until_one_is_done_and_says_who_is_late() -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=3, timeout=0.05)
        stream = iter(claims)
        taken = list(islice(stream, 3))
        with pytest.raises(TimeoutError, match=r"3 claims are open \(ahead=3\).*oldest is item 0 of epoch 0.*ahead="):
            next(stream)
        taken[1].done()
        assert next(stream).ordinal == 3
        claims.close()
        with pytest.raises(ValueError, match="ahead"):
            loader.claims(ahead=0)
    with map_style(0) as loader:
        claims = loader.claims(ahead=2)
        stream = iter(claims)
        first = list(islice(stream, 2))
        timer = threading.Timer(0.1, first[0].done)
        timer.start()
        assert next(stream).ordinal == 2
        assert claims.stats().waited_s > 0


def test_what_is_finished_twice_or_never_given_is_an_error() -> None:
    with map_style(0) as loader:
        claims = loader.claims()
        stream = iter(claims)
        claim = next(stream)
        assert claims.done(tuple(np.asarray(claim.number)))
        for number in (claim.number, (0, 7), (5, 0)):
            with pytest.raises(ValueError, match=f"item {number[1]} of epoch {number[0]} is not open"):
                claims.done(number)
        with pytest.raises(RuntimeError, match="keep_results=True"):
            claims.take()
        sent = pickle.loads(pickle.dumps(next(stream)))
        assert sent.number[:2] == (0, 1)
        with pytest.raises(RuntimeError, match=r"send its number back, and say claims.done\(number\)"):
            sent.done()
        claims.done(sent.number)
        claims.close()
        with pytest.raises(IteratorInvalidated, match="make others"):
            next(stream)


def test_what_would_lose_open_claims_is_refused() -> None:
    with graph(0) as loader:
        claims = loader.claims(ahead=9)
        _ = list(islice(claims, 3))
        with pytest.raises(RuntimeError, match=r"3 claims are open, which iter\(loader\) would lose"):
            iter(loader)
        with pytest.raises(RuntimeError, match="3 claims are open, which other claims would lose"):
            loader.claims()
        state = loader.state_dict()
        claims.close()
        assert "claims" not in loader.state_dict()
        assert len(list(loader)) == ITEMS
    with graph(0) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            RuntimeError, match=r"3 claims are open in the loaded state, which iter\(loader\) would lose"
        ):
            iter(loader)
        loader.set_epoch(1)
        claims = loader.claims()
        with pytest.raises(
            RuntimeError, match="3 claims of epoch 0 are open in the state .*epoch 1 would begin without them"
        ):
            iter(claims)


def test_all_of_a_group_make_a_claim_done() -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=4, groups=3, keep_results=True)
        first, second = (claim for claim in islice(claims, 2))
        for answer in ("a", "b"):
            first.done(answer)
            second.done(answer)
        second.done("c")
        assert claims.stats().open == 1
        state = loader.state_dict()
    with map_style(2) as loader:
        loader.load_state_dict(state)
        claims = loader.claims(ahead=4, groups=3, keep_results=True)
        stream = iter(claims)
        again = next(stream)
        assert again.number[:2] == first.number[:2]  # with no answer yet: they were of a group that was cut off
        for answer in ("d", "e", "f"):
            again.done(answer)
        assert claims.take(0) == []
        assert claims.take() == [((0, 1), ["a", "b", "c"]), ((0, 0), ["d", "e", "f"])]
        assert claims.take() == []
        assert next(stream).ordinal == 2


@pytest.mark.parametrize("stale", ["again", "drop"])
def test_a_result_of_old_weights_does_not_count(stale: Any) -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=3, max_staleness=1, stale=stale)
        stream = iter(claims)
        first = next(stream)
        assert (claims.advance(), first.version) == (1, 0)
        second = next(stream)
        claims.advance()
        assert second.done()
        before = [*first.item]
        first.item.append("changed by its user")
        assert not first.done()
        assert not first.done(), "late once more"
        state = loader.state_dict()
        following = next(stream)
        if stale == "drop":
            assert following.ordinal == 2
            assert claims.stats().reasons == {"stale": 1}
        else:
            assert (following.number[:2], following.item, following.version) == ((0, 0), before, 2)
            assert claims.stats().again == 1
            assert following.done()
    with map_style(0) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader.claims())).ordinal == (2 if stale == "drop" else 0)


def test_an_item_that_fails_leaves_the_state_before_it() -> None:
    def fails(number: list[int]) -> list[int]:
        if number[0] == 7 and broken:
            raise KeyError("a bad item")
        return number

    broken = True
    nodes: Any = IterableWrapper([[number] for number in range(ITEMS)]).sharding_filter().map(fails)
    with DataLoader2(nodes) as loader:
        claims = loader.claims(ahead=ITEMS)
        taken = []
        with pytest.raises(KeyError, match="a bad item"):
            for claim in claims:
                taken.append(claim)
        taken[2].done()
        state = loader.state_dict()
        broken = False
        loader.load_state_dict(state)
        assert [claim.ordinal for claim in claims] == [0, 1, *range(3, ITEMS)]


def test_a_worker_that_is_killed_costs_nothing() -> None:
    with graph(2) as loader:
        claims = loader.claims(ahead=ITEMS)
        stream = iter(claims)
        taken = [next(stream).item[0]]
        os.kill(loader.stats().processes[1].pid, signal.SIGKILL)
        while len(taken) < ITEMS:
            taken.append(next(stream).item[0])
        assert sorted(taken) == list(range(ITEMS))


def test_threads_finish_and_save_while_another_takes() -> None:
    with map_style(2) as loader, ThreadPoolExecutor(4) as pool:
        claims: Claims[Any] = loader.claims(ahead=5)
        states = []
        for claim in claims:
            pool.submit(claim.done)
            if claim.ordinal % 7 == 0:
                states.append(pool.submit(loader.state_dict))
        saved = [state.result() for state in states]
    for state in saved:
        with map_style(0) as loader:
            loader.load_state_dict(state)
            rest = [claim.ordinal for claim in loader.claims(ahead=ITEMS)]
            assert rest == sorted(rest)
            assert {*range(max(rest, default=0), ITEMS)} <= {*rest} | {ITEMS}


def test_tasks_take_by_async_for() -> None:
    async def run() -> list[int]:
        finished = []

        async def work(claim: Any) -> None:
            await asyncio.sleep(0.01 if claim.ordinal % 3 else 0.03)
            finished.append(claim.ordinal)
            claim.done()

        with map_style(0) as loader:
            claims = loader.claims(ahead=4)
            tasks = []
            async for claim in claims:
                assert claims.stats().open <= 4
                tasks.append(asyncio.create_task(work(claim)))
            await asyncio.gather(*tasks)
            assert claims.stats().open == 0
        return finished

    assert sorted(asyncio.run(run())) == list(range(ITEMS))


def test_a_state_of_other_ranks_or_of_damage_is_refused() -> None:
    with map_style(0) as loader:
        next(iter(loader.claims()))
        state = loader.state_dict()
    sampler = torch.utils.data.DistributedSampler(Counting(), num_replicas=2, rank=1)
    other: Any = DataLoader(Counting(), 1, sampler=sampler, collate_fn=_first)
    with pytest.raises(StateMismatchError):
        other.load_state_dict(state)
    for damaged in (7, "none", state["claims"][:-8]):
        with map_style(0) as loader, pytest.raises(StateError, match="damaged"):
            loader.load_state_dict(state | {"claims": damaged})
    with map_style(0) as loader:  # nothing of it was taken up
        assert len(list(loader)) == ITEMS


def test_all_ranks_have_no_one_state_of_claims() -> None:
    with DataLoader2(IterableWrapper(range(9)).sharding_filter(), reading_service=FixedRank(0, 2, 4)) as loader:
        next(iter(loader.claims()))
        with pytest.raises(StateError, match='no one state of all ranks: save each rank\'s own, state_dict\\("own"\\)'):
            loader.state_dict("all")
        assert loader.state_dict("own")["claims"]


def test_workers_that_die_too_often_end_the_loop_and_lose_nothing() -> None:
    def kills(number: list[int]) -> list[int]:
        if number[0] == 11:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    nodes: Any = IterableWrapper([[number] for number in range(ITEMS)]).sharding_filter().map(kills)
    with DataLoader2(nodes, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
        claims = loader.claims(ahead=ITEMS)
        taken = []
        with pytest.raises(WorkerDiedError):
            for claim in claims:
                taken.append(claim.ordinal)
        state = loader.state_dict()
    assert taken == list(range(len(taken)))
    with DataLoader2(nodes) as loader:
        loader.load_state_dict(state)
        assert [
            next(claims_again).ordinal for claims_again in [iter(loader.claims(ahead=20))] for _ in range(11)
        ] == taken


# -- what a reader found -----------------------------------------------------------------------------------------


def test_an_epoch_whose_order_is_drawn_from_torchs_generator_is_in_the_state_apart() -> None:
    """A straggler of epoch 0 is open while epoch 1 is taken, and the loop draws between the two."""

    def loader_of() -> Any:
        return DataLoader(list(range(10)), None, shuffle=True)

    torch.manual_seed(5)
    with loader_of() as loader:
        claims = loader.claims(ahead=20)
        first = []
        for claim in claims:
            first.append(claim.item)
            torch.rand(3)
            if claim.ordinal != 2:
                claim.done()
        second = list(islice(claims, 6))
        for claim in second[:3]:
            claim.done()
        state = loader.state_dict()
    torch.manual_seed(6)
    with loader_of() as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        claims = loader.claims(ahead=20)
        assert claims.epoch == 0
        assert [(claim.ordinal, claim.item) for claim in claims] == [(2, first[2])]
        torch.rand(17)
        assert claims.epoch == 1
        rest = list(claims)
        assert [claim.item for claim in rest[:3]] == [claim.item for claim in second[3:]]
        assert sorted([claim.item for claim in second[:3]] + [claim.item for claim in rest]) == list(range(10))
        again = loader.state_dict()
    with loader_of() as loader:
        loader.load_state_dict(again)
        claims = loader.claims(ahead=20)
        assert [claim.item for _ in range(2) for claim in claims] == [first[2], *(claim.item for claim in rest)]


def test_a_loader_whose_items_come_in_any_order_has_no_claims() -> None:
    with (
        DataLoader(list(range(9)), num_workers=2, in_order=False) as loader,
        pytest.raises(ValueError, match="in_order=True"),
    ):
        loader.claims()


def test_a_loaded_state_is_whole_before_claims_are_made() -> None:
    with map_style(0) as loader:
        for claim in islice(loader.claims(ahead=9), 6):
            if claim.ordinal % 2:
                claim.done()
        state = loader.state_dict()
    with map_style(0) as loader:
        loader.load_state_dict(state)
        between = loader.state_dict()
    with map_style(0) as loader:
        loader.load_state_dict(between)
        assert [claim.ordinal for claim in islice(loader.claims(), 5)] == [0, 2, 4, 6, 7]
        with pytest.raises(TypeError, match="5 claims are open, and a copy"):
            pickle.dumps(loader)
    with graph(0) as loader:
        list(islice(loader.claims(ahead=9), 3))
        with pytest.raises(StateError, match="open claims, which only the loader of the rank"):
            merge([loader.state_dict()])


def test_a_loader_of_another_library_has_no_claims() -> None:
    with pytest.raises(TypeError, match="of a DataLoader or a DataLoader2 of torchpipe, got <torch"):
        Claims(torch.utils.data.DataLoader(list(range(9))))


def test_one_iterator_is_one_epoch() -> None:
    with map_style(0) as loader:
        stream = iter(loader.claims(ahead=ITEMS))
        first = next(stream)
        assert [first.ordinal, *(claim.ordinal for claim in stream)] == list(range(ITEMS))
        assert list(stream) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_goes_on_behind_an_error_counts_as_the_loader_does(workers: int) -> None:
    class Fails(Counting):
        def __getitem__(self, index: int) -> list[int]:
            if index == 3 and broken:
                raise KeyError("a bad item")
            return self.kept[index]

    def loader_of() -> Any:
        return DataLoader(Fails(), 1, collate_fn=_first, num_workers=workers)

    broken = True
    with loader_of() as loader:
        stream, seen = iter(loader.claims(ahead=50)), []
        while len(seen) < 8:
            try:
                seen.append(next(stream))
            except KeyError:
                continue
        assert [(claim.ordinal, claim.item[0]) for claim in seen] == [
            (number, number) for number in (0, 1, 2, 4, 5, 6, 7, 8)
        ]
        for claim in seen:
            if claim.ordinal != 6:
                claim.done()
        state = loader.state_dict()
    broken = False
    with loader_of() as loader:
        loader.load_state_dict(state)
        assert [claim.item[0] for claim in islice(loader.claims(), 3)] == [6, 9, 10]


def test_a_late_result_does_not_count_for_the_time_after() -> None:
    with map_style(0) as loader:
        claims = loader.claims(groups=2, max_staleness=0, keep_results=True)
        first = next(iter(claims))
        claims.advance()
        assert not first.done("old 1")
        assert not first.done("old 2")
        again = next(iter(claims))
        assert again.done("new 1")
        assert not first.done("old 3")
        assert again.done("new 2")
        assert claims.take() == [((0, 0), ["new 1", "new 2"])]


def test_what_comes_back_behind_the_last_item_is_given_by_the_next_loop() -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=ITEMS, max_staleness=0)
        held, given_to = [], []
        while claims.epoch < 1:
            for claim in claims:
                given_to.append(claim.ordinal)
                held.append(claim)
            claims.advance()
            for claim in held[:2]:
                assert not claim.done()
            for claim in held[2:]:
                claims.drop(claim.number, "no use")
            if len(held) == 2:
                break
            held = []
        assert given_to == [*range(ITEMS), 0, 1]


def test_an_epoch_that_would_begin_again_is_refused() -> None:
    with graph(0) as loader:
        claims = loader.claims(ahead=20)
        held = list(islice(claims, 3))
        loader.seed(7)
        with pytest.raises(RuntimeError, match="3 claims of epoch 0 are open, and epoch 0 would begin again"):
            iter(claims)
        for claim in held:
            claim.done()
        assert len(list(islice(claims, 4))) == 4


def test_who_waits_for_room_is_woken_by_shutdown_and_by_a_state() -> None:
    for action in ("shutdown", "load"):
        with map_style(0) as loader:
            claims = loader.claims(ahead=1)
            stream = iter(claims)
            next(stream)
            state, errors = loader.state_dict(), []

            def wait(stream: Any = stream, errors: list[Exception] = errors) -> None:
                try:
                    next(stream)
                except IteratorInvalidated as error:
                    errors.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            while stream.at_hand is None:
                pass
            loader.shutdown() if action == "shutdown" else loader.load_state_dict(state)
            thread.join(60)
            assert len(errors) == 1
            assert loader.state_dict()["claims"]


def test_kept_results_stay_what_they_are_and_are_not_lost_in_silence() -> None:
    with map_style(0) as loader:
        claims = loader.claims(keep_results=True)
        next(iter(claims)).done(("text", 0.5))
        state = loader.state_dict()
        with pytest.raises(RuntimeError, match=r"1 result was not taken, which iter\(loader\) would lose"):
            iter(loader)
    with map_style(0) as loader:
        loader.load_state_dict(state)
        assert loader.claims(keep_results=True).take() == [((0, 0), [("text", 0.5)])]


def test_a_plain_state_begins_anew() -> None:
    with map_style(0) as loader:
        plain = loader.state_dict()
        claims = loader.claims(ahead=9)
        list(islice(claims, 3))
        loader.load_state_dict(plain)
        assert claims.stats().open == 0
        assert [claim.ordinal for claim in islice(claims, 2)] == [0, 1]


def test_a_call_that_is_cancelled_takes_nothing() -> None:
    async def run() -> list[int]:
        with map_style(0) as loader:
            claims = loader.claims(ahead=2)
            stream = aiter(claims)
            taken = [await anext(stream), await anext(stream)]
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.05)
            assert claims.stats().open == 2
            taken[0].done()
            taken.append(await anext(stream))
            for claim in taken[1:]:
                claim.done()
            async for claim in stream:
                taken.append(claim)
                claim.done()
            return [claim.ordinal for claim in taken]

    assert asyncio.run(run()) == list(range(ITEMS))


def test_a_task_that_fails_ends_the_loop() -> None:
    async def work(claim: Any) -> None:
        raise ValueError("the engine is gone")

    async def run() -> None:
        with map_style(0) as loader:
            async with asyncio.TaskGroup() as tasks:
                async for claim in loader.claims(ahead=2):
                    tasks.create_task(work(claim))

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert "the engine is gone" in str(caught.value.exceptions[0])


# -- one loop owns what it pulls; what was loaded counts for the loops that go on with it ----------------------------


def test_an_item_at_hand_is_that_of_its_loop() -> None:
    with graph(0) as loader:
        claims = loader.claims(ahead=3, timeout=0.05)
        stream = iter(claims)
        held = list(islice(stream, 3))
        with pytest.raises(TimeoutError):
            next(stream)  # which has item 3 of epoch 0 at hand
        state = loader.state_dict()
        for claim in held:
            claim.done()
        following = iter(claims)  # the rest of epoch 0 is given up, as by a break
        first = next(following)
        with graph(0) as other:
            other.set_epoch(1)
            assert (first.number[:2], first.item) == ((1, 0), next(iter(other)))
        with pytest.raises(IteratorInvalidated):
            next(stream)
    with graph(0) as loader:
        loader.load_state_dict(state)
        assert [claim.ordinal for claim in islice(loader.claims(), 5)] == [0, 1, 2, 3, 4]


def test_a_resumed_epoch_can_be_gone_through_again() -> None:
    with graph(0) as loader:
        claims = loader.claims(ahead=9)
        for claim in islice(claims, 9):
            if claim.ordinal != 4:
                claim.done()
        state = loader.state_dict()
    with graph(0) as loader:
        loader.load_state_dict(state)
        claims = loader.claims(ahead=ITEMS)
        for claim in claims:
            claim.done()
        loader.set_epoch(0)
        assert [claim.ordinal for claim in claims] == list(range(ITEMS))


@pytest.mark.parametrize("make", [map_style, graph])
def test_a_state_goes_the_way_that_the_run_goes(make: Make) -> None:
    """``set_epoch`` between two loops, and behind a break."""
    with make(0) as loader:
        claims = loader.claims(ahead=ITEMS)
        for claim in claims:
            claim.done()
        loader.set_epoch(5)
        state = loader.state_dict()
        here = [claim.item for claim in claims]
        for claim in list(claims._window.open):
            claims.done(claim)
        for claim in islice(claims, 4):
            claim.done()
        loader.set_epoch(8)
        later = loader.state_dict()
    for saved, epoch in ((state, 5), (later, 8)):
        with make(0) as loader:
            loader.load_state_dict(saved)
            claims = loader.claims(ahead=ITEMS)
            assert claims.epoch == epoch
            rest = list(claims)
            assert [claim.number[:2] for claim in rest] == [(epoch, ordinal) for ordinal in range(ITEMS)]
            if epoch == 5:
                assert [claim.item for claim in rest] == here


def test_a_state_of_a_loop_that_is_left_warns_as_the_loaders_own_does() -> None:
    with graph(0) as loader:
        claims = loader.claims(ahead=9)
        for claim in islice(claims, 3):
            claim.done()
        loader.state_dict()
        with pytest.warns(UserWarning, match="rest of epoch 0; this run begins epoch 1"):
            next(iter(claims))


def test_a_state_that_is_loaded_behind_close_is_that_of_the_next_claims() -> None:
    with graph(0) as loader:
        claims = loader.claims(ahead=9)
        list(islice(claims, 3))
        state = loader.state_dict()
        claims.close()
        loader.load_state_dict(state)
        assert [claim.ordinal for claim in islice(loader.claims(), 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("action", ["load", "close"])
def test_a_thread_that_still_makes_an_item_writes_nothing_into_what_comes_after(action: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(item: list[int]) -> list[int]:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            go_on.wait(60)
        return item

    def made() -> Any:
        nodes: Any = IterableWrapper([[number] for number in range(ITEMS)]).map(slow)
        return DataLoader2(nodes)

    with made() as loader:
        claims = loader.claims(ahead=9)
        list(islice(claims, 2))
        state = loader.state_dict()
    with made() as loader:
        claims = loader.claims(ahead=9)
        stream, errors = iter(claims), []
        list(islice(stream, 5))

        def pull() -> None:
            try:
                next(stream)
            except IteratorInvalidated as error:
                errors.append(error)

        thread = threading.Thread(target=pull)
        thread.start()
        begun.wait(60)
        threading.Timer(0.1, go_on.set).start()
        claims.close() if action == "close" else loader.load_state_dict(state)
        thread.join(60)
        if action == "close":
            assert len(errors) == 1
            claims = loader.claims(ahead=9)
            assert claims.stats().open == 0
        else:
            assert [claim.ordinal for claim in islice(claims, 4)] == [0, 1, 2, 3]


class Unplain:
    """An item that a state holds as a pickle alone."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.filterwarnings("ignore::torchpipe.errors.OpaqueStateWarning")
def test_allow_pickle_holds_for_the_epochs_that_come_later() -> None:
    def made() -> Any:
        nodes: Any = IterableWrapper(range(8)).map(Unplain).shuffle(buffer_size=4)
        policy = partial(SnapshotPolicy, every=1)
        loader: Any = DataLoader2(nodes, reading_service=InProcessReadingService(policy=policy))
        loader.seed(3)
        return loader

    with made() as loader:
        claims = loader.claims(ahead=20)
        _, *others = claims
        for claim in (*others, *islice(claims, 6)):
            claim.done()
        state = loader.state_dict()
    with made() as loader:
        with pytest.raises(UnsafeStateError):
            loader.load_state_dict(state)
        loader.load_state_dict(state, allow_pickle=True)
        claims = loader.claims(ahead=20)
        assert [claim.number[:2] for claim in claims] == [(0, 0)]
        assert [claim.number[:2] for claim in claims] == [(1, ordinal) for ordinal in range(6, 8)]


def test_a_result_of_the_run_before_does_not_count_in_the_resumed_one() -> None:
    with map_style(0) as loader:
        first = next(iter(loader.claims()))
        state = loader.state_dict()
    with map_style(0) as loader:
        loader.load_state_dict(state)
        claims = loader.claims()
        again = next(iter(claims))
        assert again.number[:2] == first.number[:2]
        assert not claims.done(first.number)
        assert not claims.drop(first.number)
        assert claims.done(again)


def test_kept_results_are_copies() -> None:
    with map_style(0) as loader:
        claims = loader.claims(keep_results=True)
        result = torch.zeros(2)
        for claim in islice(claims, 2):
            claim.done(result)
            result += 1
        assert [kept.tolist() for _, (kept,) in claims.take()] == [[0, 0], [1, 1]]


def test_a_refused_shutdown_leaves_the_loop_over_claims_alone() -> None:
    refused = []

    class Interrupting(Counting):
        def __getitem__(self, index: int) -> list[int]:
            if index == 3:
                try:
                    loader.shutdown()
                except RuntimeError as error:
                    refused.append(error)
            return self.kept[index]

    loader: Any = DataLoader(Interrupting(), None, collate_fn=_same)
    assert [claim.ordinal for claim in loader.claims(ahead=ITEMS)] == list(range(ITEMS))
    assert len(refused) == 1


def _same(item: Any) -> Any:
    return item


def test_an_exact_state_of_claims_is_refused_also_before_they_are_made() -> None:
    with graph(0) as loader:
        next(iter(loader.claims()))
        state = loader.state_dict()
        loader.load_state_dict(state)
    with graph(0) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="exact=True is for a loop without claims"):
            loader.state_dict(exact=True)


def test_another_thread_that_iterates_ends_the_loop_that_waits() -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=1)
        stream, errors = iter(claims), []
        held = next(stream)

        def wait() -> None:
            try:
                next(stream)
            except IteratorInvalidated as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while stream.at_hand is None:
            pass
        held.done()
        thread.join(60)
        assert errors == []
        thread = threading.Thread(target=wait)
        thread.start()
        while stream.at_hand is None:
            pass
        time.sleep(0.2)  # by now it waits for room, most likely; it is told in any case
        iter(claims)
        thread.join(30)
        assert len(errors) == 1


def test_a_task_whose_time_is_over_names_what_is_open_or_goes_on() -> None:
    """Other threads finish claims at about the time at which its patience ends."""
    found = Counter[str]()

    async def take() -> None:
        with map_style(0) as loader:
            stream = aiter(loader.claims(ahead=1, timeout=0.002))
            while True:
                try:
                    timer = threading.Timer(0.002, (await anext(stream)).done)
                    timer.start()
                    found["given"] += 1
                except TimeoutError as error:
                    assert "the oldest is item" in str(error)
                    found["late"] += 1
                except StopAsyncIteration:
                    timer.join()
                    return

    for _ in range(10):
        asyncio.run(take())
    assert found["given"] == 10 * ITEMS


def test_what_was_waited_counts_also_where_it_was_in_vain() -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=1, timeout=0.2)
        stream = iter(claims)
        next(stream)
        with pytest.raises(TimeoutError):
            next(stream)
        assert claims.stats().waited_s >= 0.2


def test_an_iterator_that_has_ended_stays_so() -> None:
    with map_style(0) as loader:
        claims = loader.claims(ahead=ITEMS, max_staleness=0)
        stream = iter(claims)
        held = list(stream)
        claims.advance()
        assert not held[0].done()
        assert list(stream) == []
        assert [claim.ordinal for claim in claims] == [0]


def test_a_group_whose_claim_was_dropped_as_stale_may_go_on_to_answer() -> None:
    with map_style(0) as loader:
        claims = loader.claims(groups=3, max_staleness=0, stale="drop")
        first = next(iter(claims))
        assert first.done("in time")
        claims.advance()
        assert [first.done(), first.done(), claims.done(first.number)] == [False] * 3
        assert claims.stats().reasons == {"stale": 1}


@pytest.mark.parametrize("number", [(0,), "01", 7, None, (0, 1.5), (0, 1, 2)])
def test_what_is_no_number_of_a_claim_is_a_type_error(number: Any) -> None:
    with map_style(0) as loader:
        claims = loader.claims()
        for act in (claims.done, claims.drop):
            with pytest.raises(TypeError, match=r"claim\.number, or by \(epoch, ordinal\)"):
                act(number)


def test_other_batches_have_other_claims() -> None:
    with DataLoader(list(range(12)), 2) as loader:
        next(iter(loader.claims()))
        state = loader.state_dict()
    with (
        DataLoader(list(range(12)), 3) as loader,
        pytest.raises(StateMismatchError, match=r"batch size 2 \(here 3\)"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(("name", "value"), [("timeout", "3"), ("timeout", -1), ("stale", "now"), ("ahead", 1.5)])
def test_arguments_out_of_range_are_refused(name: str, value: Any) -> None:
    with map_style(0) as loader, pytest.raises((TypeError, ValueError), match=name):
        loader.claims(**{name: value})


# -- what is done stays done, in each epoch that the user names ------------------------------------------------------


def saved_behind(make: Make, done: int) -> dict[str, Any]:
    """A state after so many claims, all done: the loader's own position in it lies before them."""
    with make(0) as loader:
        for claim in islice(loader.claims(ahead=64), done):
            claim.done()
        return loader.state_dict()


def _skip(loader: Any) -> Any:
    return loader.skip(2)


def _copy(loader: Any) -> Any:
    return copy.copy(loader)


@pytest.mark.parametrize("make", [map_style, graph])
def test_what_is_done_is_not_given_again_in_silence(make: Make) -> None:
    state = saved_behind(make, 6)
    for act in (list, iter, _skip, *([_copy] if make is map_style else [])):
        with make(0) as loader:
            loader.load_state_dict(state)
            loader.claims()
            with pytest.raises((RuntimeError, TypeError), match="items behind the loader's position are done"):
                act(loader)
            assert next(iter(loader.claims(ahead=9))).ordinal == 6  # other claims, with what was loaded


def test_an_epoch_that_is_named_is_that_epoch() -> None:
    """One claim of epoch 0 is open, epoch 1 is finished, epoch 2 at work."""
    with graph(0) as loader:
        claims = loader.claims(ahead=64)
        for epoch in range(2):
            for claim in claims:
                if claim.number[:2] != (0, 11):
                    claim.done()
            assert claims.epoch == epoch + 1
        for claim in islice(claims, 4):
            claim.done()
        state = loader.state_dict()
    wanted = {0: [11], 1: [], 2: list(range(4, ITEMS)), 3: list(range(ITEMS))}
    for named in (True, False):
        found: dict[int, list[int]] = {}
        with graph(0) as loader:
            loader.load_state_dict(state)
            claims = loader.claims(ahead=64)
            while claims.epoch < 4:
                epoch = claims.epoch
                if named:
                    loader.set_epoch(epoch)
                between = loader.state_dict()
                found[epoch] = []
                for claim in claims:
                    assert claim.epoch == epoch
                    found[epoch].append(claim.ordinal)
                    claim.done()
                with graph(0) as other:  # a state of between two loops says the same
                    other.load_state_dict(between)
                    first = next((claim.number[:2] for _ in range(4) for claim in other.claims(ahead=64)), None)
                    rest = [(at, ordinal) for at in range(epoch, 4) for ordinal in wanted[at]]
                    assert first == rest[0]
        assert found == wanted


def test_an_epoch_that_was_left_ends_behind_its_last_open_claim() -> None:
    """Of an endless dataset, whose epochs are cut short by ``break``."""

    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(10**9))

    with DataLoader(Endless(), None) as loader:
        claims = loader.claims(ahead=8)
        for _ in range(2):
            for claim in islice(claims, 6):
                if claim.number[:2] != (0, 3):
                    claim.done()
        state = loader.state_dict()
    with DataLoader(Endless(), None) as loader:
        loader.load_state_dict(state)
        claims = loader.claims(ahead=8)
        assert [claim.number[:2] for claim in claims] == [(0, 3)]
        assert [claim.number[:2] for claim in islice(claims, 2)] == [(1, 6), (1, 7)]


def test_a_loader_in_process_gives_tasks_the_items_that_loops_have() -> None:
    def drawing(item: list[int]) -> tuple[int, float]:
        return item[0], float(np.random.random())

    def made() -> Any:
        loader: Any = DataLoader2(IterableWrapper([[number] for number in range(9)]).map(drawing))
        loader.seed(3)
        return loader

    async def run() -> list[Any]:
        with made() as loader:
            return [claim.item async for claim in loader.claims(ahead=20)]

    with made() as loader:
        wanted = list(loader)
    assert asyncio.run(run()) == wanted


def test_what_ends_an_async_loop_is_not_raised_by_datasets() -> None:
    class Ends(Counting):
        def __getitem__(self, index: int) -> list[int]:
            if index == 3:
                raise StopAsyncIteration
            return self.kept[index]

    async def run() -> None:
        with DataLoader(Ends(), None) as loader:
            async for _ in loader.claims(ahead=ITEMS):
                pass

    with pytest.raises(RuntimeError, match="has raised StopAsyncIteration"):
        asyncio.run(run())


def test_an_answer_of_the_run_before_never_raises() -> None:
    with map_style(0) as loader:
        first, second = islice(loader.claims(), 2)
        second.done()
        state = loader.state_dict()
    with map_style(0) as loader:
        loader.load_state_dict(state)
        claims = loader.claims()
        for claim in (first, second):
            assert not claims.done(claim.number)
            assert not claims.drop(claim.number)
        with pytest.raises(ValueError, match="since the state was loaded it was not given yet"):
            claims.done((0, 0))


def test_what_came_back_can_be_dropped() -> None:
    with map_style(0) as loader:
        claims = loader.claims(max_staleness=0)
        stream = iter(claims)
        first, second = next(stream), next(stream)
        claims.advance()
        assert not first.done()
        assert not second.done()
        assert first.drop("too old")
        assert claims.drop(second.number[:2], "too old")
        assert claims.stats().reasons == {"too old": 2}
        assert next(stream).ordinal == 2


def test_results_that_a_state_has_can_be_taken_by_who_keeps_none() -> None:
    with map_style(0) as loader:
        claims = loader.claims(keep_results=True)
        next(iter(claims)).done("a")
        state = loader.state_dict()
    with map_style(0) as loader:
        loader.load_state_dict(state)
        claims = loader.claims()
        assert claims.take() == [((0, 0), ["a"])]
        with pytest.raises(RuntimeError, match="keep_results=True"):
            claims.take()


def test_a_result_that_no_state_can_hold_is_refused_when_it_is_given() -> None:
    with map_style(0) as loader:
        claims = loader.claims(keep_results=True)
        claim = next(iter(claims))
        with pytest.raises(
            TypeError, match="with keep_results=True a result is plain data, which a state can hold: <generator"
        ):
            claim.done(number for number in range(3))
        assert claim.done([1, 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_failed_long_ago_is_passed_over_by_a_resume(workers: int) -> None:
    class Fails(Counting):
        def __getitem__(self, index: int) -> list[int]:
            if index in (3, 4):
                raise KeyError("a bad item")
            return self.kept[index]

    def loader_of() -> Any:
        return DataLoader(Fails(), None, num_workers=workers)

    with loader_of() as loader:
        stream, held = iter(loader.claims(ahead=64)), []
        while len(held) < 6:
            try:
                held.append(next(stream))
            except KeyError:
                continue
        for claim in held[1:]:
            claim.done()
        state = loader.state_dict()
    with loader_of() as loader:
        loader.load_state_dict(state)
        assert [claim.ordinal for claim in islice(loader.claims(ahead=64), 3)] == [0, 8, 9]


# -- an interrupt; who keeps whom alive ------------------------------------------------------------------------------


class Stop(BaseException):
    """Strikes as Ctrl-C does."""


strikes: list[type[BaseException]] = []


def _struck(item: Any) -> Any:
    if strikes:
        raise strikes.pop()
    return item


class Striking(Counting):
    def __getitem__(self, index: int) -> list[int]:
        return _struck(self.kept[index])  # type: ignore[no-any-return]


def map_style_that_strikes() -> Any:
    return DataLoader(Striking(), None)


def graph_that_strikes() -> Any:
    return DataLoader2(IterableWrapper([[number] for number in range(ITEMS)]).shuffle().map(_struck))


def _next(claims: Any) -> Any:
    return next(iter(claims))


def _next_of_task(claims: Any) -> Any:
    async def first() -> Any:
        return await anext(aiter(claims))

    return asyncio.run(first())


@pytest.mark.parametrize("make", [map_style_that_strikes, graph_that_strikes])
@pytest.mark.parametrize("first", [_next, _next_of_task])
@pytest.mark.parametrize("still_open", [(), (2, 4)])
def test_an_interrupt_before_the_first_item_of_a_resume_gives_nothing_up(
    make: Callable[[], Any], first: Callable[[Any], Any], still_open: tuple[int, ...]
) -> None:
    with make() as loader:
        for claim in islice(loader.claims(ahead=50), 6):
            if claim.ordinal not in still_open:
                claim.done()
        state = loader.state_dict()
    wanted = [*still_open, *range(6, ITEMS)]
    for _ in range(3):
        with make() as loader:
            loader.load_state_dict(state)
            claims = loader.claims(ahead=50)
            strikes.append(Stop)
            with pytest.raises(Stop):
                first(claims)
            assert claims.epoch == 0
            with pytest.raises(RuntimeError, match="2 claims are open|items behind the loader's position are done"):
                loader.skip(1)
            state = loader.state_dict()
            again = loader.claims(ahead=50)  # other claims have it, too
            assert [claim.ordinal for claim in again] == wanted
            assert claims.epoch == 1


@pytest.mark.parametrize("make", [map_style_that_strikes, graph_that_strikes])
def test_an_interrupt_among_items_that_were_done_gives_none_of_them_again(make: Callable[[], Any]) -> None:
    with make() as loader:
        for claim in islice(loader.claims(ahead=50), 9):
            if claim.ordinal not in (0, 7):
                claim.done()
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        stream = iter(loader.claims(ahead=50))
        assert next(stream).done()
        strikes.append(Stop)
        with pytest.raises(Stop):
            next(stream)
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        assert [claim.ordinal for claim in loader.claims(ahead=50)] == [7, *range(9, ITEMS)]


@pytest.mark.parametrize("make", [map_style_that_strikes, graph_that_strikes])
def test_items_that_are_done_are_not_skipped_to_again(make: Callable[[], Any]) -> None:
    with make() as loader:
        for claim in islice(loader.claims(ahead=50), 6):
            claim.done()
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        stream = iter(loader.claims(ahead=50))
        with pytest.raises(RuntimeError, match="items behind the loader's position are done"):
            loader.skip(2)
        assert next(stream).ordinal == 6


@pytest.mark.parametrize("make", [map_style, graph])
@pytest.mark.parametrize("workers", [0, 2])
def test_claims_and_their_loader_are_in_no_cycle(make: Make, workers: int) -> None:
    """A claim that somebody still works on keeps no loader, and so no worker, alive."""
    loader = make(workers)
    claims = loader.claims(ahead=9)
    stream = iter(claims)
    claim = next(stream)
    state = loader.state_dict()
    resumed = make(workers)
    resumed.load_state_dict(state)
    dropped = [weakref.ref(loader), weakref.ref(resumed)]
    gc.disable()
    try:
        del loader, claims, stream, resumed
        assert [found() for found in dropped] == [None, None]
        assert claim.done()
    finally:
        gc.enable()


def test_a_loader_is_kept_by_its_claims_and_by_a_loop_over_them() -> None:
    assert [claim.ordinal for claim in map_style(0).claims(ahead=ITEMS)] == list(range(ITEMS))
    claims = map_style(0).claims(ahead=ITEMS)
    assert len(list(claims)) == ITEMS


def test_open_claims_that_nobody_holds_are_in_the_loaders_state() -> None:
    with map_style(0) as loader:
        for claim in islice(loader.claims(ahead=9), 3):
            claim.done()
        del claim
        next(iter(loader.claims(ahead=9, groups=2)))  # of the epoch after the one that was left
        gc.collect()
        state = loader.state_dict()
    with map_style(0) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader.claims())).number[:2] == (1, 0)


def test_a_copy_of_a_loader_whose_loaded_state_has_claims_is_refused() -> None:
    state = saved_behind(map_style, 6)
    with map_style(0) as loader:
        loader.load_state_dict(state)
        with pytest.raises(TypeError, match="items behind the loader's position are done, and a copy"):
            copy.copy(loader)


@pytest.mark.parametrize("make", [map_style, graph])
@pytest.mark.parametrize("still_open", [(), (1,)])
def test_other_claims_have_what_is_loaded_or_are_refused_once_it_is_begun(make: Make, still_open: Any) -> None:
    with make(0) as loader:
        for claim in islice(loader.claims(ahead=8), 3):
            if claim.ordinal not in still_open:
                claim.done()
        state = loader.state_dict()
    with make(0) as loader:
        loader.load_state_dict(state)
        loader.claims(ahead=8)
        claims = loader.claims(ahead=ITEMS)
        stream = iter(claims)
        with pytest.raises(RuntimeError, match="which other claims would lose"):
            loader.claims(ahead=16)
        assert [claim.ordinal for claim in stream] == [*still_open, *range(3, ITEMS)]


def test_a_rest_of_which_nothing_is_done_is_not_lost_to_other_claims_either() -> None:
    with map_style(0) as loader:
        stream = iter(loader.claims(ahead=3, timeout=0.01))
        held = list(islice(stream, 3))
        with pytest.raises(TimeoutError):
            next(stream)
        for claim in held:
            claim.done()
        state = loader.state_dict()
    with map_style(0) as loader:
        loader.load_state_dict(state)
        stream = iter(loader.claims(ahead=ITEMS))
        with pytest.raises(RuntimeError, match="items of the loaded state are to come, which other claims would lose"):
            loader.claims()
        assert [claim.ordinal for claim in stream] == list(range(3, ITEMS))


@pytest.mark.parametrize("make", [map_style, graph])
def test_a_state_that_is_saved_behind_set_epoch_loads_or_is_refused(make: Make) -> None:
    """Forwards it has what was open; backwards there is none, as long as something is open."""
    with make(0) as loader:
        claims = loader.claims(ahead=64)
        for _ in range(2):
            held = next(iter(claims))
            state = loader.state_dict()
            if held.epoch == 0:
                early = state
                held.done()
        loader.set_epoch(0)
        with pytest.raises(StateError, match="1 claim of epoch 1 is open, and the loader was set back to the start of"):
            loader.state_dict()
        held.done()
        assert loader.state_dict()["epoch"] == 0
    with make(0) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(0)
        with pytest.raises(StateError, match="set back to the start of epoch 0"):
            loader.state_dict()
    for made_before in (True, False):
        with make(0) as loader:
            loader.load_state_dict(early)
            if made_before:
                loader.claims()
            loader.set_epoch(1)
            state = loader.claims().state_dict()
        with make(0) as loader:
            loader.load_state_dict(state)
            claims = loader.claims(ahead=64)
            assert [claim.number[:2] for claim in claims] == [(0, 0)]
            assert [claim.number[:2] for claim in claims] == [(1, ordinal) for ordinal in range(ITEMS)]


def test_a_state_names_a_position_for_all_that_is_open() -> None:
    with map_style(0) as loader:
        claims = loader.claims()
        next(iter(claims))
        claims._driver._positions.clear()
        with pytest.raises(StateError, match="no position of the loader before item 0 of epoch 0 is known"):
            loader.state_dict()


def test_closed_claims_know_nothing_of_a_state_that_is_loaded_later() -> None:
    with graph(0) as loader:
        claims = loader.claims(keep_results=True)
        for claim in islice(claims, 3):
            if claim.ordinal:
                claim.done("result")
        state = loader.state_dict()
        claims.close()
        loader.load_state_dict(state)
        assert claims.stats().open == claims.stats().done == 0
        assert claims.take() == []
        claims.advance()
        with pytest.raises(IteratorInvalidated, match=r"make others with loader.claims\("):
            iter(claims)
        assert loader.state_dict()["claims"] == state["claims"]
        assert len(loader.claims(keep_results=True).take()) == 2


def test_a_loader_names_the_arguments_of_its_claims() -> None:
    (_, *own), (_, *those) = (list(inspect.signature(of).parameters.values()) for of in (DataLoader.claims, Claims))
    assert own == those
