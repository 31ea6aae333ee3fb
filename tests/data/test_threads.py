"""``worker_method="thread"``: order, random numbers, state, errors, and what the threads leave behind."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, RandomSampler, default_collate, get_worker_info

from torchpipe import DataLoader, errors
from torchpipe.ahead import waiting
from torchpipe.iter import IterableWrapper

THREAD = {"worker_method": "thread"}


def draws() -> tuple[float, float]:
    """Two numbers: from the worker's own generators if it is a thread, else from the global ones."""
    info: Any = get_worker_info()
    if info is not None and getattr(info, "worker_method", None) == "thread" and hasattr(info, "rng"):
        return info.rng.random_generator.random(), float(torch.rand((), generator=info.rng.torch_generator))
    return random.random(), float(torch.rand(()))


class Drawing(Dataset[Any]):
    """Sample ``i``: i, and two random numbers."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return (float(index), *draws())


class Calling(Dataset[Any]):
    """Sample ``i`` is what a function of the test's says; never pickled or copied."""

    def __init__(self, length: int, function: Callable[[int], Any]) -> None:
        self.length = length
        self.function = function
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


class Divided(IterableDataset[Any]):
    """Numbers below ``length``, divided among workers; with ``drawing``, each with a random number."""

    def __init__(self, length: int = 23, drawing: bool = False) -> None:
        self.length = length
        self.drawing = drawing

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield (float(number), *draws()) if self.drawing else number


def as_lists(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] if isinstance(batch, list) else batch.tolist() for batch in batches]


def drawing(num_workers: int, **more: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    arguments = {"batch_size": 4, "shuffle": True, "generator": generator, **more}
    return DataLoader(Drawing(), num_workers=num_workers, **arguments)


def worker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "DataLoader worker" in thread.name]


# -- order and random numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_L1_threads_give_what_any_number_of_workers_gives(num_workers: int, persistent: bool) -> None:
    wanted, found = drawing(0), drawing(num_workers, persistent_workers=persistent, **THREAD)
    with found:
        if persistent:  # one base seed for all epochs, so that only the first is another loader's
            assert as_lists(found) == as_lists(wanted)
            assert len(as_lists(found)) == 6
        else:
            for _ in range(3):
                assert as_lists(found) == as_lists(wanted)


def test_L1_threads_give_what_processes_give() -> None:
    for _ in range(2):
        assert as_lists(drawing(2, **THREAD)) == as_lists(drawing(2))


def test_L1_threads_of_persistent_loaders_are_alike() -> None:
    with (
        drawing(2, persistent_workers=True, **THREAD) as first,
        drawing(3, persistent_workers=True, **THREAD) as other,
    ):
        for _ in range(3):
            assert as_lists(first) == as_lists(other)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_L1_threads_over_an_iterable_dataset_go_in_the_order_of_torch(num_workers: int, batch_size: int | None) -> None:
    found = list(DataLoader(Divided(), batch_size, num_workers=num_workers, **THREAD))
    theirs = list(TorchDataLoader(Divided(), batch_size, num_workers=num_workers))
    assert [torch.as_tensor(item).tolist() for item in found] == [torch.as_tensor(item).tolist() for item in theirs]


def test_L1_threads_over_an_iterable_dataset_are_reproducible() -> None:
    streams = []
    for _ in range(2):
        torch.manual_seed(3)
        streams.append(as_lists(DataLoader(Divided(drawing=True), 4, num_workers=2, **THREAD)))
    assert streams[0] == streams[1]


def test_L1_threads_run_graphs() -> None:
    graph = (
        IterableWrapper(range(50)).shuffle(buffer_size=20).sharding_filter().random_map(lambda x, rng: x + rng.random())
    )
    streams = []
    for method in ("thread", "multiprocessing"):
        torch.manual_seed(3)
        streams.append(as_lists(DataLoader(graph, 4, num_workers=2, worker_method=method)))
    assert streams[0] == streams[1]


def test_out_of_order_goes_by_readiness() -> None:
    go = threading.Event()

    def make(index: int) -> int:
        if index == 0:
            assert go.wait(60)
        return index

    stream = iter(DataLoader(Calling(7, make), num_workers=2, in_order=False, **THREAD))
    try:
        found = [int(next(stream)) for _ in range(5)]
    finally:
        go.set()
    assert found == [1, 3, 4, 5, 6]  # of the other thread, which was dealt all but the first two of the slow one
    assert [int(item) for item in stream] == [0, 2]


def test_threads_of_several_loaders_share_nothing() -> None:
    def loader(offset: int) -> DataLoader[Any]:
        def make(index: int) -> tuple[int, int, int]:
            info: Any = get_worker_info()
            return index + offset, id(info.dataset), info.seed

        return DataLoader(Calling(30, make), num_workers=2, **THREAD)

    loaders = [loader(0), loader(1000), loader(2000)]
    seeds = set()
    for number, batches in enumerate(zip(*loaders)):
        for offset, (own, (index, dataset, seed)) in enumerate(zip(loaders, batches)):
            assert (int(index), int(dataset)) == (number + 1000 * offset, id(own.dataset))
            seeds.add(int(seed))
    assert len(seeds) == 6  # two workers each


# -- get_worker_info --------------------------------------------------------------------------------------------------


def test_each_thread_has_its_worker_info() -> None:
    seen: list[Any] = []
    together = threading.Barrier(2)  # both threads are at work while they ask

    def make(index: int) -> int:
        together.wait(60)
        info: Any = get_worker_info()
        seen.append((info, threading.get_ident()))
        return index

    loader = DataLoader(Calling(4, make), num_workers=2, **THREAD)
    for _ in loader:
        assert get_worker_info() is None
    assert {info.id for info, _ in seen} == {0, 1}
    assert len({thread for _, thread in seen}) == 2
    for info, _ in seen:
        assert info.num_workers == 2
        assert info.dataset is loader.dataset
        assert info.worker_method == "thread"
        assert info.rng.numpy_generator.random() < 1
    assert len({id(info.rng) for info, _ in seen}) == 2
    first, second = ({info.seed for info, _ in seen if info.id == worker} for worker in (0, 1))
    assert {seed + 1 for seed in first} == second


def test_torchs_function_is_as_it_was_when_the_threads_have_ended() -> None:
    before = get_worker_info.__code__
    stream = iter(drawing(2, **THREAD))
    next(stream)
    assert get_worker_info.__code__ is not before
    stream._shutdown_workers()
    assert get_worker_info.__code__ is before


def test_processes_beside_threads_have_their_own_worker_info() -> None:
    class Asking(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> tuple[int, int]:
            info: Any = get_worker_info()
            return info.id, info.num_workers

    with drawing(3, persistent_workers=True, **THREAD) as threads:
        next(iter(threads))
        for kind in (TorchDataLoader, DataLoader):
            assert [tuple(map(int, item)) for item in kind(Asking(), num_workers=2)] == 4 * [(0, 2), (1, 2)]
        assert get_worker_info() is None


def test_a_process_forked_by_a_worker_thread_is_no_worker() -> None:
    def make(index: int) -> int:
        child = os.fork()
        if not child:
            os._exit(0 if get_worker_info() is None else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert [int(code) for code in DataLoader(Calling(2, make), num_workers=1, **THREAD)] == [0, 0]


def test_worker_init_fn_runs_once_in_each_thread() -> None:
    calls: list[tuple[int, Any, int]] = []

    def init(worker: int) -> None:
        calls.append((worker, get_worker_info(), threading.get_ident()))

    loader = DataLoader(Drawing(), num_workers=2, worker_init_fn=init, persistent_workers=True, **THREAD)
    with loader:
        for _ in range(3):
            list(loader)
    assert sorted(worker for worker, _, _ in calls) == [0, 1]
    assert all(info.id == worker and info.dataset is loader.dataset for worker, info, _ in calls)
    assert threading.get_ident() not in {thread for _, _, thread in calls}


def test_nothing_is_copied_or_pickled() -> None:
    seen: set[int] = set()
    lock = threading.Lock()  # cannot be pickled

    class Own(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            with lock:
                seen.add(id(self))
            return lock

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError("pickled")

    loader = DataLoader(Own(), batch_size=None, num_workers=2, **THREAD)
    assert all(item is lock for item in loader)
    assert seen == {id(loader.dataset)}


def stacked(samples: list[Any]) -> Any:
    return default_collate(samples)


@pytest.mark.parametrize("collate_fn", [None, stacked])
def test_threads_stack_tensors_in_ordinary_memory(collate_fn: Any) -> None:
    dataset = Calling(4, lambda index: torch.full((3,), index))
    for batch in DataLoader(dataset, 2, num_workers=2, collate_fn=collate_fn, **THREAD):
        assert batch.shape == (2, 3)
        assert not batch.is_shared()  # a file and a descriptor for each, in torch's workers


# -- state ------------------------------------------------------------------------------------------------------------

PLACES: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 1, **THREAD},
    {"num_workers": 3, "prefetch_factor": 5, **THREAD},
    {"num_workers": 2},
]


@pytest.mark.parametrize("into", PLACES, ids=str)
def test_L2_threads_resume_after_each_batch_anywhere(into: dict[str, Any]) -> None:
    loader = drawing(2, **THREAD)
    wanted = as_lists(loader) + as_lists(loader)
    for place in range(7) if into.get("worker_method") else (0, 3, 6):
        first = drawing(2, **THREAD)
        stream = iter(first)
        found = as_lists(next(stream) for _ in range(place))
        other = drawing(**into)
        other.load_state_dict(first.state_dict())
        assert found + as_lists(other) + as_lists(other) == wanted
        assert other.epoch == 2
        stream._shutdown_workers()  # type: ignore[attr-defined]


@pytest.mark.parametrize("source", [PLACES[0], PLACES[3]], ids=str)
def test_L2_threads_go_on_from_a_state_of_others(source: dict[str, Any]) -> None:
    first = drawing(**source)
    wanted = as_lists(drawing(0))
    stream = iter(first)
    found = as_lists(next(stream) for _ in range(2))
    other = drawing(2, **THREAD)
    other.load_state_dict(first.state_dict())
    assert found + as_lists(other) == wanted
    stream._shutdown_workers()  # type: ignore[attr-defined]


@pytest.mark.parametrize("into", PLACES, ids=str)
def test_L2_threads_out_of_order_hand_out_each_batch_once(into: dict[str, Any]) -> None:
    go = threading.Event()

    def make(index: int) -> int:
        if index == 0 and threading.current_thread() is not threading.main_thread():
            assert go.wait(60)
        return index

    def loader(**more: Any) -> DataLoader[Any]:
        return DataLoader(Calling(9, make), in_order=False, **more)

    first = loader(num_workers=2, **THREAD)
    stream = iter(first)
    try:
        found = [int(next(stream)) for _ in range(3)]
        state = first.state_dict()
    finally:
        go.set()
    other = loader(**into)
    other.load_state_dict(state)
    assert sorted(found + [int(item) for item in other]) == list(range(9))


@pytest.mark.parametrize("prefetch_factor", [1, 4])
def test_L2_threads_over_an_iterable_dataset_resume_after_each_batch(prefetch_factor: int) -> None:
    def loader() -> DataLoader[Any]:
        torch.manual_seed(3)
        return DataLoader(Divided(drawing=True), 4, num_workers=2, prefetch_factor=prefetch_factor, **THREAD)

    wanted = as_lists(loader())
    for place in range(1, len(wanted)):
        first = loader()
        stream = iter(first)
        found = as_lists(next(stream) for _ in range(place))
        other = loader()
        other.load_state_dict(first.state_dict())
        found += as_lists(other)
        assert found == wanted
        stream._shutdown_workers()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("source", "into"), [("thread", "multiprocessing"), ("multiprocessing", "thread")])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_L3_states_of_iterable_datasets_go_from_threads_to_processes_and_back(
    source: str, into: str, num_workers: int
) -> None:
    def loader(method: str, workers: int) -> DataLoader[Any]:
        return DataLoader(Divided(), 2, num_workers=workers, worker_method=method)  # type: ignore[arg-type]

    wanted = as_lists(loader("thread", 3))
    first = loader(source, 3)
    stream = iter(first)
    found = as_lists(next(stream) for _ in range(5))
    other = loader(into, num_workers)
    other.load_state_dict(first.state_dict())
    assert found + as_lists(other) == wanted
    stream._shutdown_workers()  # type: ignore[attr-defined]


class Stateful(Drawing):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def test_L7_threads_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"state of its own \(state_dict\)"):
        iter(DataLoader(Stateful(), num_workers=1, **THREAD))

    class Itself(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise StopIteration

    with pytest.raises(ValueError, match="its own iterator"):
        iter(DataLoader(Itself(), num_workers=2, **THREAD))
    assert list(DataLoader(Itself(), num_workers=1, **THREAD)) == []
    first = DataLoader(Stateful(), num_workers=2)
    stream = iter(first)
    next(stream)
    plain = DataLoader(Drawing(), num_workers=2, **THREAD)
    plain.load_state_dict(first.state_dict(), allow_other_data=True)
    with pytest.raises(errors.StateMismatchError, match="states of workers"):
        iter(plain)
    stream._shutdown_workers()


@given(
    length=st.integers(0, 20),
    batch_size=st.integers(1, 5),
    workers=st.tuples(st.integers(1, 4), st.integers(0, 4)),
    prefetch=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    shuffle=st.booleans(),
    place=st.integers(0, 20),
    in_order=st.booleans(),
    device=st.sampled_from([None, "cpu"]),
)
def test_L1_L2_threads_from_any_to_any(
    length: int,
    batch_size: int,
    workers: tuple[int, int],
    prefetch: tuple[int, int],
    shuffle: bool,
    place: int,
    in_order: bool,
    device: str | None,
) -> None:
    """The batches before a state and after it are those of an epoch in process; in that order, with ``in_order``."""

    def loader(num_workers: int, **more: Any) -> DataLoader[Any]:
        order, own = (torch.Generator().manual_seed(7) for _ in range(2))
        sampler = RandomSampler(range(length), generator=order) if shuffle and length else None
        return DataLoader(Drawing(length), batch_size, sampler=sampler, generator=own, num_workers=num_workers, **more)

    def threads(which: int) -> DataLoader[Any]:
        ahead = prefetch[which] if workers[which] else None
        return loader(workers[which], prefetch_factor=ahead, in_order=in_order, device=device, **THREAD)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of more workers than cores
        in_process, first, other = loader(0), threads(0), threads(1)
    wanted = as_lists(in_process)
    found = []
    stream = iter(first)
    for _ in range(min(place, len(wanted))):
        found += as_lists([next(stream)])
    other.load_state_dict(first.state_dict())
    stream._shutdown_workers()
    if len(found) < len(wanted):
        found += as_lists(other)
    assert (found if in_order else sorted(found)) == (wanted if in_order else sorted(wanted))


# -- errors -----------------------------------------------------------------------------------------------------------


def test_L7_an_exception_comes_in_its_place_and_the_next_batches_follow() -> None:
    def make(index: int) -> int:
        if index == 5:
            raise KeyError("a sample of mine")
        return index

    stream = iter(DataLoader(Calling(12, make), batch_size=2, num_workers=2, **THREAD))
    found: list[Any] = []
    for _ in range(6):
        try:
            found.append(next(stream).tolist())
        except KeyError as error:
            assert "Caught KeyError in DataLoader worker thread 0." in str(error)
            assert "in make" in str(error)
            assert "a sample of mine" in str(error)
            assert any("worker 0 (thread" in note for note in error.__notes__)
            found.append(None)
    assert found == [[0, 1], [2, 3], None, [6, 7], [8, 9], [10, 11]]
    assert list(stream) == []


def test_L7_an_exception_of_an_iterable_dataset_comes_in_its_place() -> None:
    class Failing(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)
            raise KeyError("mine")

    stream = iter(DataLoader(Failing(), batch_size=None, num_workers=2, **THREAD))
    assert [next(stream) for _ in range(6)] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(KeyError, match="Caught KeyError in DataLoader worker thread 0"):
        next(stream)


def test_L7_worker_init_fn_may_fail() -> None:
    def init(worker: int) -> None:
        raise OSError(f"no disk for {worker}")

    for more in ({}, {"persistent_workers": True}):
        loader = DataLoader(Drawing(), num_workers=2, worker_init_fn=init, **THREAD, **more)
        for _ in range(2):
            with pytest.raises(OSError, match=r"(?s)Caught OSError in DataLoader worker thread 0.*no disk for 0"):
                next(iter(loader))
    assert get_worker_info() is None
    assert worker_threads() == []


def test_L7_what_ends_a_program_ends_the_epoch() -> None:
    def make(index: int) -> int:
        if index == 2:
            sys.exit("enough")
        return index

    stream = iter(DataLoader(Calling(8, make), num_workers=2, **THREAD))
    assert [int(next(stream)) for _ in range(2)] == [0, 1]
    with pytest.raises(SystemExit, match="enough"):
        next(stream)
    assert worker_threads() == []


@pytest.mark.parametrize("map_style", [True, False])
def test_L7_a_batch_is_awaited_for_timeout_seconds(map_style: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_JOIN_S", 0.01)
    go = threading.Event()
    dataset = Calling(4, lambda index: go.wait(60)) if map_style else Waiting(go)
    stream = iter(DataLoader(dataset, num_workers=2, timeout=0.1, **THREAD))
    missed = r": worker 0 has not made batch 0, of \[0\]" if map_style else ""
    try:
        with pytest.raises(RuntimeError, match=rf"DataLoader timed out after 0\.1 seconds{missed}$"):
            next(stream)
    finally:
        go.set()


class Waiting(IterableDataset[int]):
    def __init__(self, go: threading.Event) -> None:
        self.go = go

    def __iter__(self) -> Iterator[int]:
        self.go.wait(60)
        yield 1


# -- bounds, endings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch_factor", [1, 3])
@pytest.mark.parametrize("generator", [None, torch.Generator()])  # with one, the sampler is asked batch by batch
def test_L5_threads_make_at_most_prefetch_factor_batches_each(prefetch_factor: int, generator: Any) -> None:
    begun: list[int] = []

    def make(index: int) -> int:
        begun.append(index)
        return index

    loader = DataLoader(
        Calling(60, make),
        num_workers=2,
        shuffle=True,
        prefetch_factor=prefetch_factor,
        generator=generator,
        **THREAD,
    )
    for taken, _ in enumerate(loader, start=1):
        assert len(begun) <= taken + 2 * prefetch_factor
    assert len(begun) == 60


def test_L6_threads_end_with_the_epoch_and_with_the_iterator() -> None:
    loader = drawing(2, **THREAD)
    list(loader)
    assert worker_threads() == []
    stream = iter(loader)
    next(stream)
    assert len(worker_threads()) == 2
    del stream  # collected
    assert worker_threads() == []
    for _ in loader:
        break
    assert worker_threads() == []


def test_L6_persistent_threads_stay_until_shutdown() -> None:
    idents: set[int] = set()

    def make(index: int) -> int:
        idents.add(threading.get_ident())
        return index

    with DataLoader(Calling(10, make), num_workers=2, persistent_workers=True, **THREAD) as loader:
        for _ in range(3):
            next(iter(loader))  # let go of in mid-epoch
            assert [int(item) for item in loader] == list(range(10))
        assert len(idents) == 2
    assert worker_threads() == []


def test_L6_a_thread_that_is_stuck_is_named_and_ends_when_it_returns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_JOIN_S", 0.05)
    go, stuck = threading.Event(), threading.Event()

    def make(index: int) -> int:
        if index == 1:
            stuck.set()
            go.wait(60)
        return index

    stream = iter(DataLoader(Calling(8, make), num_workers=2, **THREAD))
    try:
        next(stream)
        assert stuck.wait(60)
        with caplog.at_level(logging.WARNING, "torchpipe"):
            stream._shutdown_workers()
        assert "'DataLoader worker thread 1' still runs your code" in caplog.text
        assert worker_threads() == ["DataLoader worker thread 1"]
        (thread,) = (item for item in threading.enumerate() if item.name == "DataLoader worker thread 1")
    finally:
        go.set()
    thread.join(60)
    assert not thread.is_alive()


def test_L6_a_wait_in_another_thread_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_JOIN_S", 0.05)
    go, stuck = threading.Event(), threading.Event()

    def make(index: int) -> int:
        stuck.set()
        go.wait(60)
        return index

    loader = DataLoader(Calling(8, make), num_workers=2, **THREAD)
    stream = iter(loader)
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            next(stream)
        except BaseException as error:
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        assert stuck.wait(60)
        loader.load_state_dict({})
        consumer.join(60)
        assert isinstance(raised[0], errors.IteratorInvalidated)
    finally:
        go.set()


def test_L6_an_interrupt_ends_the_epoch_and_its_state_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_JOIN_S", 0.05)
    go, asked, told = threading.Event(), threading.Event(), threading.Event()

    def make(index: int) -> int:
        if index == 3 and not go.is_set():
            asked.wait(60)  # earlier, it could come between the loop's next() and its append()
            # Ctrl-C, which the kernel lets this thread take, while the loop waits for this batch: as if it had come in
            # the instant before that wait, which is not woken
            signal.raise_signal(signal.SIGINT)
            if go.wait(60):
                told.set()
        return index

    loader = DataLoader(Calling(8, make), num_workers=2, **THREAD)
    stream = iter(loader)
    found = []
    with pytest.raises(KeyboardInterrupt):
        try:
            for item in stream:
                found.append(int(item))
                if len(found) == 3:
                    asked.set()
        finally:
            go.set()
    assert found == [0, 1, 2]
    loader.load_state_dict(loader.state_dict())
    assert found + [int(item) for item in loader] == list(range(8))
    assert told.wait(60)


def test_L6_an_interpreter_exits_though_a_thread_is_stuck() -> None:
    script = (
        "import threading\n"
        "from torchpipe import DataLoader\n"
        "from torchpipe.ahead import waiting\n"
        "waiting._JOIN_S = 0.2\n"
        "class Stuck:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return threading.Event().wait() if index else 7\n"
        "stream = iter(DataLoader(Stuck(), num_workers=2, worker_method='thread'))\n"
        "print(next(stream))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("tensor([7])\n", 0), done.stderr


def test_a_forked_child_is_told_that_the_threads_are_not_there() -> None:
    stream = iter(drawing(2, **THREAD))
    next(stream)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            next(stream)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert "loader" in pipe.read()
    assert len(as_lists(stream)) == 5  # and the parent goes on


# -- other arguments --------------------------------------------------------------------------------------------------


def test_threads_with_a_device_stage_resume() -> None:
    wanted = as_lists(drawing(0))
    first = drawing(2, device="cpu", **THREAD)
    stream = iter(first)
    found = as_lists(next(stream) for _ in range(2))
    other = drawing(3, device="cpu", **THREAD)
    other.load_state_dict(first.state_dict())
    assert found + as_lists(other) == wanted
    stream._shutdown_workers()  # type: ignore[attr-defined]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for machines without an accelerator")
def test_where_no_memory_can_be_pinned_this_is_told() -> None:
    loader = drawing(2, pin_memory=True, **THREAD)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert as_lists(loader) == as_lists(drawing(0))


def test_threads_leave_the_global_random_states_alone() -> None:
    loader = drawing(2, **THREAD)
    before = random.getstate(), torch.get_rng_state()
    list(loader)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_state_begins_anew_what_threads_share() -> None:
    loader = DataLoader(Shared([0, 1, 2, 3]), 2, num_workers=1, worker_method="thread")
    whole = [batch.tolist() for batch in loader]
    loader.dataset.items.reverse()
    with pytest.raises(ValueError, match="has been changed since"):
        iter(loader)
    loader.load_state_dict({})
    assert len([batch.tolist() for batch in loader]) == len(whole)


class Shared(IterableDataset[int]):
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)
