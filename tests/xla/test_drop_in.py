"""The drop-in loaders on real XLA (PJRT on the CPU). Collecting this module imports no torch_xla."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.device.loaders import Plain, Saved, index_of, indices
from tests.sources import feed_threads, wait_until
from tests.tries import tries
from torchpipe.errors import IteratorInvalidated, ReplayWarning, StateError
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.iter.sources import IterableWrapper
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.state import SnapshotPolicy
from torchpipe.testing.fakes import FakeBackend

os.environ.setdefault("PJRT_DEVICE", "CPU")

pytestmark = pytest.mark.xla

ADAPTERS = ("MpDeviceLoader", "ParallelLoader", "PerDeviceLoader")


def ours() -> Any:
    import torchpipe.xla.drop_in

    return torchpipe.xla.drop_in


def theirs() -> Any:
    import torch_xla.distributed.parallel_loader

    return torch_xla.distributed.parallel_loader


def device() -> Any:
    import torch_xla

    return torch_xla.device()


def wrap(loader: Any, on: Any = None, **options: Any) -> Any:
    return ours().MpDeviceLoader(loader, device() if on is None else on, **options)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_adapters_derive_from_torch_xlas_with_its_signatures(name: str) -> None:
    mine, original = getattr(ours(), name), getattr(theirs(), name)
    assert issubclass(mine, original)
    assert pickle.loads(pickle.dumps(mine)) is mine
    wanted = inspect.signature(original.__init__).parameters
    given = inspect.signature(mine.__init__).parameters
    assert list(given)[: len(wanted)] == list(wanted)
    for item in wanted:
        assert given[item].default == wanted[item].default
        assert given[item].kind == wanted[item].kind
    public = {item for item in vars(original) if not item.startswith("_")} - {"send_cpu_data_to_device"}
    assert {item for item in public if getattr(mine, item) is getattr(original, item)} == set()


def test_frameworks_find_what_they_look_for() -> None:
    loader = Saved(9)
    wrapped = wrap(loader, loader_prefetch_size=2)
    assert isinstance(wrapped, theirs().MpDeviceLoader)
    assert wrapped._loader is loader
    assert wrapped._device == device()
    assert wrapped._parallel_loader is None
    wrapped.dataset = "set by a trainer"
    assert len(wrapped) == 9
    wrapped._parallel_loader_kwargs["device_prefetch_size"] = 0  # as they change input_sharding
    wrapped._parallel_loader_kwargs["loader_prefetch_size"] = 0
    iterator = iter(wrapped)
    assert isinstance(iterator, theirs().PerDeviceLoader)
    assert isinstance(wrapped._parallel_loader, theirs().ParallelLoader)
    next(iterator)
    assert len(loader.read) == 1  # the change was seen
    assert feed_threads() == []
    wrapped._parallel_loader_kwargs["input_shardings"] = None
    with pytest.raises(TypeError, match="input_shardings"):
        iter(wrapped)


class Derived:
    """What a trainer derives, made where torch_xla may be imported."""

    @staticmethod
    def make() -> Any:
        class Wrapper(ours().MpDeviceLoader):  # type: ignore[misc]
            def __init__(self, loader: Any, on: Any) -> None:
                super().__init__(loader, on)
                self.epochs = 0

            def __iter__(self) -> Any:
                self.epochs += 1
                return super().__iter__()

        return Wrapper


def test_a_trainer_can_derive_from_it() -> None:
    wrapped = Derived.make()(Saved(5), device())
    assert indices(wrapped) == Saved(5).order(0)
    assert indices(wrapped) == Saved(5).order(1)
    assert wrapped.epochs == 2


@settings(max_examples=tries(40))
@given(
    length=st.integers(0, 12),
    cuts=st.lists(st.integers(0, 14), min_size=1, max_size=4),
    sizes=st.sampled_from([(0, 0), (1, 1), (16, 8), (128, 1)]),
    every=st.sampled_from([1, 4, None]),
)
def test_L2_a_checkpoint_loses_and_repeats_nothing(
    length: int, cuts: list[int], sizes: tuple[int, int], every: int | None
) -> None:
    """Each leg is a new process's: a new loader, restored; then two more epochs."""
    options = {"loader_prefetch_size": sizes[0], "device_prefetch_size": sizes[1]}
    got: list[int] = []
    state = None
    for cut in cuts:
        wrapped = wrap(Saved(length), policy=lambda: SnapshotPolicy(every=every), **options)
        if state is not None:
            wrapped.load_state_dict(state)
        got += [index_of(item) for _, item in zip(range(cut), wrapped)]
        state = wrapped.state_dict()
        wrapped.close()
    wrapped = wrap(Saved(length), **options)
    wrapped.load_state_dict(state)
    got += indices(wrapped) + indices(wrapped)
    reference = [item for epoch in range(len(cuts) + 3) for item in Saved(length).order(epoch)]
    assert got == reference[: len(got)]
    assert len(got) % max(1, length) == 0
    assert len(got) >= 2 * length


def graph_loader() -> DataLoader2[Any]:
    node = IterableWrapper([{"index": index, "x": torch.ones(1)} for index in range(20)]).shuffle().sharding_filter()
    loader = DataLoader2(node, reading_service=InProcessReadingService(num_shards=2, prefetch_cnt=1))
    loader.seed(3)
    return loader


@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_L2_over_a_dataloader2(cut: int) -> None:
    with graph_loader() as plain:
        epochs = [indices(plain) for _ in range(3)]
    with graph_loader() as inner:
        wrapped = wrap(inner)
        assert indices(wrapped) == epochs[0]
        iterator = iter(wrapped)
        got = [index_of(next(iterator)) for _ in range(cut)]
        state = wrapped.state_dict()
        wrapped.close()
    with graph_loader() as inner:
        wrapped = wrap(inner)
        wrapped.load_state_dict(state)
        assert got + indices(wrapped) == epochs[1]
        assert indices(wrapped) == epochs[2]


def test_L7_closing_ends_a_wait_inside_a_dataloader2() -> None:
    with graph_loader() as inner:
        wrapped = wrap(inner)
        iterator = iter(wrapped)
        next(iterator)
        wrapped.close()
        with pytest.raises(IteratorInvalidated):
            next(iterator)
    assert feed_threads() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_L2_over_a_stateful_dataloader_through_two_epochs(workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        options: dict[str, Any] = {"multiprocessing_context": "forkserver"} if workers else {}
        generator = torch.Generator().manual_seed(5)
        return StatefulDataLoader(
            [{"index": index} for index in range(16)],
            batch_size=None,
            shuffle=True,
            generator=generator,
            num_workers=workers,
            **options,
        )

    reference = indices(make())
    wrapped = wrap(make(), policy=lambda: SnapshotPolicy(every=3))
    iterator = iter(wrapped)
    got = [index_of(next(iterator)) for _ in range(8)]
    state = wrapped.state_dict()
    wrapped.close()
    del iterator
    wrapped = wrap(make())
    wrapped.load_state_dict(state)
    got += indices(wrapped)
    assert got == reference
    second = indices(wrapped)
    assert sorted(second) == list(range(16))
    wrapped.close()


def test_L5_a_loader_without_state_is_replayed_and_says_so() -> None:
    wrapped = wrap(Plain(9))
    iterator = iter(wrapped)
    assert [index_of(next(iterator)) for _ in range(4)] == [0, 1, 2, 3]
    state = wrapped.state_dict()
    wrapped.close()
    wrapped = wrap(Plain(9))
    wrapped.load_state_dict(state)
    with pytest.warns(ReplayWarning, match="reading its first 4 batches again"):
        iterator = iter(wrapped)
    assert indices(iterator) == [4, 5, 6, 7, 8]


def test_L7_a_second_iter_invalidates_the_first() -> None:
    wrapped = wrap(Saved(9))
    first = iter(wrapped)
    next(first)
    second = iter(wrapped)
    with pytest.raises(IteratorInvalidated):
        next(first)
    assert indices(second) == Saved(9).order(1)


def test_L7_a_failing_loader_can_be_taken_up_again() -> None:
    loader = Saved(9, fail_at=4)
    wrapped = wrap(loader)
    iterator = iter(wrapped)
    got = [index_of(next(iterator)) for _ in range(4)]
    with pytest.raises(OSError, match="planted"):
        next(iterator)
    wrapped.load_state_dict(wrapped.state_dict())
    assert got + indices(wrapped) == Saved(9).order(0)


def test_L6_a_loop_left_by_break_ends_its_threads_and_keeps_its_position() -> None:
    wrapped = wrap(Saved(50))
    for number, _ in enumerate(wrapped):
        if number == 3:
            break
    gc.collect()
    wait_until(lambda: feed_threads() == [])
    assert wrapped._parallel_loader is None
    assert wrapped.state_dict()["delivered"] == 4


def test_a_parallel_loader_is_one_pass() -> None:
    loader = ours().ParallelLoader(Saved(9), [device()])
    per_device = loader.per_device_loader(device())
    assert len(per_device) == loader.per_device_samples() == 9
    first = [index_of(per_device.next()) for _ in range(3)]
    state = loader.state_dict()
    rest = indices(loader.per_device_loader(str(device())))
    assert first + rest == Saved(9).order(0)
    assert list(loader.per_device_loader(device())) == []
    assert loader.next_item(device()) is None
    loader.load_state_dict(state)
    assert index_of(loader.next_item(device())) == Saved(9).order(0)[3]
    loader.close()
    loader.close()


def test_syncs_come_before_each_group_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where a StepTrace has just called it."""
    import torch_xla
    import torch_xla.debug.profiler as profiler

    events: list[Any] = []
    original = torch_xla.sync
    monkeypatch.setattr(torch_xla, "sync", lambda: events.append("sync") or original())
    for item in wrap(Plain(5), batches_per_execution=2):
        events.append(index_of(item))
    assert events == ["sync", 0, 1, "sync", 2, 3, "sync", 4, "sync"]
    events.clear()
    for item in wrap(Plain(3)):
        events.append(index_of(item))
        profiler.set_tracer_marked_step(True)  # type: ignore[no-untyped-call]
    assert events == ["sync", 0, 1, 2, "sync"]
    profiler.set_tracer_marked_step(False)  # type: ignore[no-untyped-call]


def test_other_devices_are_not_synced() -> None:
    fake = FakeBackend()
    wrapped = wrap(Plain(3), fake)
    assert indices(wrapped) == [0, 1, 2]
    assert fake.calls.count("transfer") == 3
    assert indices(wrap(Plain(3), "cpu")) == [0, 1, 2]


def test_L7_a_device_that_is_not_fed_is_refused() -> None:
    loader = ours().ParallelLoader(Saved(3), [device()])
    with pytest.raises(ValueError, match="this loader feeds xla:0, not 'xla:5'"):
        loader.per_device_loader("xla:5")


def test_L7_a_state_that_does_not_fit_is_refused_when_it_is_loaded() -> None:
    wrapped = wrap(Saved(3))
    with pytest.raises(StateError, match="not a state of a device loader"):
        wrapped.load_state_dict({"epoch": 0})
    assert indices(wrapped) == Saved(3).order(0)


WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch_xla" else find(name, *rest)
import torchpipe.xla.drop_in as drop_in
assert "MpDeviceLoader" in dir(drop_in)
assert "torch_xla" not in sys.modules
assert list(drop_in.MpDeviceLoader([1, 2, 3], "cpu")) == [1, 2, 3]
assert list(drop_in.ParallelLoader([1, 2, 3, 4], ["cpu"]).per_device_loader("cpu")) == [1, 2, 3, 4]
try:
    drop_in.MpDeviceLoader([1], "xla")
except ImportError as error:
    print(error)
assert "torch_xla" not in sys.modules
"""


def test_without_torch_xla_the_adapters_serve_other_devices(pytestconfig: pytest.Config) -> None:
    environment = {**os.environ, "PYTHONPATH": str(pytestconfig.rootpath)}
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "pip install torch==2.9.0 torch_xla==2.9.0" in done.stdout
