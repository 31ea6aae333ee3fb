"""``in_order=False``: batches as they are ready, also of iterable datasets; each comes once, also after a resume."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.data.datasets import Numbers
from torchpipe import DataLoader

EACH = 6


class Gated(IterableDataset[int]):
    """Of two workers, the second gives nothing before somebody has written to ``gate``."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        if info.id == 1:
            self.gate.read_bytes()
        yield from range(10 * info.id, 10 * info.id + EACH)


def loader_of(gate: Path, method: Any, **more: Any) -> DataLoader[Any]:
    return DataLoader(
        Gated(gate), batch_size=2, num_workers=2, in_order=False, worker_method=method, collate_fn=as_it_is, **more
    )


def as_it_is(batch: Any) -> Any:
    return batch


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_nobody_waits_for_a_slow_worker_of_an_iterable_dataset(method: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with loader_of(gate, method) as loader:
        stream = iter(loader)
        assert [next(stream) for _ in range(2)] == [[0, 1], [2, 3]]
        early = loader.state_dict()
        assert next(stream) == [4, 5]
        state = loader.state_dict()
        gate.write_bytes(b"go")
        assert list(stream) == [[10, 11], [12, 13], [14, 15]]
    gate.unlink()
    gate.write_bytes(b"open")
    for known, missing in ((early, [[4, 5]]), (state, [])):
        for in_order in (False, True):
            other = loader_of(gate, method)
            other.in_order = in_order
            with other:
                other.load_state_dict(known)
                assert sorted(other) == [*missing, [10, 11], [12, 13], [14, 15]]


class SlowFirst(Dataset[int]):
    """Sample ``slow`` is made once somebody has written to ``gate``."""

    def __init__(self, gate: Path, slow: int = 0) -> None:
        self.gate, self.slow = gate, slow

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == self.slow:
            self.gate.read_bytes()
        return index


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
@pytest.mark.parametrize(("eager", "prefetch_factor"), [(True, 1), (True, 3), (False, 3)])
def test_little_waits_for_a_slow_batch_of_a_map_style_dataset(
    method: Any, eager: bool, prefetch_factor: int, tmp_path: Path
) -> None:
    """What was dealt to its worker with it, and no more: ``prefetch_factor`` batches, the slow one included."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    sampler = None if eager else iter(range(40))  # that one is asked for one batch at a time
    with DataLoader(
        SlowFirst(gate),
        sampler=sampler,
        num_workers=2,
        prefetch_factor=prefetch_factor,
        in_order=False,
        worker_method=method,
    ) as loader:
        stream = iter(loader)
        found = [int(next(stream)) for _ in range(40 - prefetch_factor)]
        state = loader.state_dict()
        gate.write_bytes(b"go")
        late = [int(batch) for batch in stream]
    assert sorted(found + late) == [*range(40)]
    assert late == [0, 2, 4][:prefetch_factor]
    gate.unlink()
    gate.write_bytes(b"open")
    if eager:
        with DataLoader(SlowFirst(gate), 1, num_workers=0) as other:
            other.load_state_dict(state)
            assert [int(batch) for batch in other] == late


@pytest.mark.parametrize("loads", [False, True])
def test_after_a_break_the_next_order_is_drawn_behind_the_batches_that_have_come(loads: bool, tmp_path: Path) -> None:
    """Also where the first one was slow: how many have come counts, not which."""
    gate = tmp_path / "gate"
    gate.write_bytes(b"open")

    def made(workers: int, slow: int = -1) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(7)
        return DataLoader(
            SlowFirst(gate, slow),
            2,
            shuffle=True,
            generator=generator,
            num_workers=workers,
            in_order=False,
            collate_fn=as_it_is,
        )

    with made(0) as plain:
        stream = iter(plain)
        first, *_ = [next(stream) for _ in range(3)]
        del stream
        following = sorted(plain)
    gate.unlink()
    os.mkfifo(gate)
    with made(2, first[0]) as loader:
        stream = iter(loader)
        assert first not in [next(stream) for _ in range(3)]
        state = loader.state_dict()
        assert state["delivered"] == 0
        gate.write_bytes(b"go")
        del stream
        gate.unlink()
        gate.write_bytes(b"open")
        if loads:
            loader.load_state_dict(state)
            loader.set_epoch(1)
        assert sorted(loader) == following


class Killing(Gated):
    """Its first worker dies after its third item, once."""

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            yield item
            if item == 2 and not (fuse := self.gate.with_name("struck")).exists():
                fuse.touch()
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_L4_a_killed_worker_loses_nothing_out_of_order(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.write_bytes(b"open")
    with DataLoader(Killing(gate), num_workers=2, in_order=False, collate_fn=as_it_is) as loader:
        assert sorted(loader) == [[number] for number in (*range(EACH), *range(10, 10 + EACH))]
    assert gate.with_name("struck").exists()


class FailingLate(Numbers):
    """Its sample 2 raises once somebody has written to ``gate``."""

    def __init__(self, gate: Path) -> None:
        super().__init__(8)
        self.gate = gate

    def __getitem__(self, index: int) -> int:
        if index == 2:
            self.gate.read_bytes()
            raise LookupError(index)
        return index


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_L2_a_batch_that_raised_is_made_again_and_those_before_their_turn_are_not(method: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    options: dict[str, Any] = {"num_workers": 2, "in_order": False, "collate_fn": as_it_is, "prefetch_factor": 4}
    with DataLoader(FailingLate(gate), worker_method=method, **options) as loader:
        stream = iter(loader)
        found = [next(stream) for _ in range(5)]
        gate.write_bytes(b"go")
        with pytest.raises(LookupError):
            while True:
                found.append(next(stream))
        state = loader.state_dict()
        rest = list(stream)
        later = loader.state_dict()
    assert sorted(found + rest) == [[number] for number in (0, 1, 3, 4, 5, 6, 7)]
    with DataLoader(Numbers(8), collate_fn=as_it_is) as other:
        other.load_state_dict(state, allow_other_data=True)
        assert sorted(other) == sorted([[2], *rest])
        other.load_state_dict(later, allow_other_data=True)
        assert len(list(other)) == 8, "of the next epoch"


class FirstIsLast(Dataset[int]):
    """Whoever makes the first item waits for ``go``."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        if index == 0:
            self.go.wait(60)
        return index


def test_L2_behind_many_batches_that_are_done_a_device_stage_finds_the_next_one() -> None:
    """Numbers that a state says are done make no batch: dealing only such would let the stage wait for ever."""
    options: dict[str, Any] = {"num_workers": 2, "worker_method": "thread", "in_order": False, "prefetch_factor": 1}
    dataset = FirstIsLast()
    with DataLoader(dataset, 1, **options) as loader:
        iterator = iter(loader)
        found = [int(next(iterator)) for _ in range(40)]
        state = loader.state_dict()
        dataset.go.set()
    with DataLoader(dataset, 1, device="cpu", **options) as loader:
        loader.load_state_dict(state)
        assert sorted(found + [int(batch) for batch in loader]) == list(range(60))
