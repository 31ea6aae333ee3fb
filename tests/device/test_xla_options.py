"""The options of the device stage on real XLA: executions and compilations counted, dtypes, shapes, threads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from tests.sources import Script, start, wait_until
from torchpipe.ahead.background import FeedStats
from torchpipe.device import DevicePace
from torchpipe.device.xla import XlaBackend
from torchpipe.iter.to_device import ToDevice

os.environ.setdefault("PJRT_DEVICE", "CPU")

pytestmark = pytest.mark.xla


def xla_metrics() -> Any:
    import torch_xla.debug.metrics

    return torch_xla.debug.metrics


def counted(name: str) -> int:
    """The number of samples of a metric, or the value of a counter."""
    metrics = xla_metrics()
    data = metrics.metric_data(name)
    return int(data[0]) if data is not None else int(metrics.counter_value(name) or 0)


def run_steps(batches: Any, width: int) -> dict[str, int]:
    """Train a vector of ``width`` on ``batches``; a width of its own for each call, so that no graph is known yet."""
    import torch_xla
    import torch_xla.core.xla_model

    weight = torch.ones(width, 1, device=torch_xla.device())
    torch_xla.sync()
    torch_xla.core.xla_model.wait_device_ops()  # an execution is counted when it has been done
    xla_metrics().clear_all()
    for batch in batches:
        weight -= 0.01 * (batch @ weight).sum()
    torch_xla.core.xla_model.wait_device_ops()
    return {"executions": counted("ExecuteTime"), "compilations": counted("UncachedCompile")}


@pytest.mark.parametrize(("group", "executions"), [(1, 16), (2, 8), (4, 4), (16, 1)])
def test_groups_are_equal_and_compile_once(group: int, executions: int) -> None:
    width = 100 + group
    node = ToDevice(Script([torch.ones(2, width)] * 16), "xla", sync="loader", batches_per_execution=group)
    with start(node) as iterator:
        assert run_steps(iterator, width) == {"executions": executions, "compilations": 1}


def test_a_rest_is_an_execution_of_its_own() -> None:
    node = ToDevice(Script([torch.ones(2, 61)] * 10), "xla", sync="loader", batches_per_execution=4)
    with start(node) as iterator:
        assert run_steps(iterator, 61) == {"executions": 3, "compilations": 2}


def test_torch_xla_itself_begins_with_a_short_group() -> None:
    """What this stage does otherwise. Should this fail one day, torch_xla has changed it."""
    import torch_xla
    import torch_xla.distributed.parallel_loader

    make: Any = torch_xla.distributed.parallel_loader.MpDeviceLoader
    loader = make([torch.ones(2, 73) for _ in range(16)], torch_xla.device(), batches_per_execution=4)
    assert run_steps(loader, 73) == {"executions": 5, "compilations": 3}


def test_without_a_policy_the_stage_executes_nothing() -> None:
    import torch_xla

    with start(ToDevice(Script([torch.ones(2, 67)] * 4), "xla", 2, host_prefetch=2)) as iterator:
        assert run_steps(iterator, 67) == {"executions": 0, "compilations": 0}
    torch_xla.sync()


def test_sync_starts_the_work_and_wait_waits_for_it() -> None:
    backend = XlaBackend()
    backend.prepare()
    (moved,) = backend.transfer([torch.ones(71)])
    backend.sync()
    xla_metrics().clear_all()
    result = moved * 2 + 1
    pace = DevicePace(backend, sync=True, group=1, wait_every=1)
    pace.begin()
    pace.returned()
    assert (pace.syncs, pace.waits, counted("ExecuteTime")) == (1, 1, 1)
    assert result.cpu().tolist() == [3.0] * 71
    assert counted("ExecuteTime") == 1


@pytest.mark.parametrize(("policy", "compilations", "rows"), [("allow", 2, 11), ("pad", 1, 12), ("drop", 1, 8)])
def test_a_last_smaller_batch_and_what_it_costs(policy: Any, compilations: int, rows: int) -> None:
    width = 80 + rows
    batches = [torch.ones(4, width), torch.ones(4, width), torch.ones(3, width)]
    seen = 0

    def counting(batches: Any) -> Any:
        nonlocal seen
        for batch in batches:
            seen += batch.shape[0]
            yield batch

    node = ToDevice(Script(batches), "xla", sync="loader", on_new_shape=policy)
    with start(node) as iterator:
        measured = run_steps(counting(iterator), width)
        stats: FeedStats = iterator.stats()  # type: ignore[attr-defined]
    assert (measured["compilations"], seen, stats.new_shapes) == (compilations, rows, 1)


@pytest.mark.parametrize("options", [{}, {"host_prefetch": 2, "transfer_threads": 3}])
def test_the_host_casts_converts_and_pads_and_the_device_computes_nothing(options: dict[str, Any]) -> None:
    import torch_xla

    torch_xla.sync()
    metrics = xla_metrics()
    metrics.clear_all()
    items = [{"x": np.full((3, 2), n, np.float32), "n": torch.tensor(n)} for n in range(6)]
    items.append({"x": np.full((2, 2), 6, np.float32), "n": torch.tensor(6)})
    node = ToDevice(Script(items), "xla", 3, dtype="bfloat16", convert_numpy=True, on_new_shape="pad", **options)
    with start(node) as iterator:
        received = list(iterator)
        torch_xla.sync()
    assert not [name for name in metrics.counter_names() if name.startswith("xla::") and "_to_copy" not in name]
    assert metrics.metric_data("ExecuteTime") is None
    assert metrics.metric_data("TransferToDeviceTime")[0] == 7  # one grouped transfer a batch
    assert metrics.metric_data("OutboundData")[1] == 7 * (3 * 2 * 2 + 8)
    for number, batch in enumerate(received):
        assert batch["x"].dtype is torch.bfloat16
        assert batch["x"].cpu()[0].tolist() == [number] * 2
        assert int(batch["n"]) == number
    assert received[6]["x"].cpu().tolist() == [[6, 6], [6, 6], [0, 0]]


def test_L7_a_numpy_uint16_is_refused_as_a_tensor_of_that_dtype_is() -> None:
    node = ToDevice(Script([{"x": np.ones(2, np.uint16)}]), "xla", convert_numpy=True)
    with start(node) as iterator, pytest.raises(TypeError, match=r"batch\['x'\] cannot be moved to xla:0: its dtype"):
        next(iterator)


def test_read_ahead_is_what_was_asked_for() -> None:
    source = Script([torch.ones(2)] * 50)
    with start(ToDevice(source, "xla", 2, host_prefetch=3)) as iterator:
        next(iterator)
        wait_until(lambda: len(source.journal.pulled) >= 6)
        wait_until(lambda: iterator.stats().waiting == 3 and iterator.stats().ready == 2)  # type: ignore[attr-defined]
        assert len(source.journal.pulled) == 6
