"""What Prometheus, OpenTelemetry and TensorBoard get of a run with a death in it, read back with their own packages."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.observe.views.figures import BUSY
from tests.observe.views.held import ITEMS, held_loader, run_with_a_death
from torchpipe import DataLoader, DataLoader2
from torchpipe.export import OpenTelemetryExporter, PrometheusExporter, TensorBoardExporter
from torchpipe.iter import IterableWrapper
from torchpipe.loader.observing import _last_looks
from torchpipe.observe.export.figures import Measurements
from torchpipe.stats import LoaderStats


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[DataLoader2[int]]:
    with held_loader(tmp_path) as loader:
        yield loader


def scraped(port: int | None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_is_served_while_it_is_open_and_counts_over_epochs(loader: DataLoader2[int], tmp_path: Path) -> None:
    with PrometheusExporter(loader, port=0, name="mine") as exporter:
        mine = ("loader", "mine")
        assert scraped(exporter.port)[("torchpipe_items_total", (mine,))] == 0
        run_with_a_death(loader, tmp_path)
        first = scraped(exporter.port)
        assert first[("torchpipe_items_total", (mine,))] == ITEMS
        assert first[("torchpipe_delivered", (mine,))] == ITEMS
        assert first[("torchpipe_events_total", (("kind", "restart"), mine))] == 1
        assert sum(value for (name, _), value in first.items() if name == "torchpipe_restarts_total") == 1
        assert any(name == "torchpipe_process_seconds_total" and value for (name, _), value in first.items())
        node = ("torchpipe_node_errors_total", (mine, ("node", "3 Mapper(Held)")))
        assert first[node] == 0
        assert len(list(loader)) == ITEMS
        second = scraped(exporter.port)
        assert second[("torchpipe_items_total", (mine,))] == 2 * ITEMS
        assert second[("torchpipe_delivered", (mine,))] == ITEMS
        falls = {key for key, value in first.items() if key[0].endswith("_total") and second.get(key, 0) < value}
        assert not falls
        with pytest.raises(OSError, match=f"port {exporter.port} of 127.0.0.1 is in use"):
            PrometheusExporter(loader, port=exporter.port)
    exporter.close()
    with PrometheusExporter(loader, port=exporter.port) as again:  # the port is free
        assert again.port == exporter.port


def test_prometheus_takes_a_registry_that_something_else_serves() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    with DataLoader(range(8), batch_size=4) as loader:  # type: ignore[arg-type]
        with PrometheusExporter(loader, registry=registry):
            assert len(list(loader)) == 2
            assert 'torchpipe_items_total{loader="train"} 2.0' in generate_latest(registry).decode()
        assert generate_latest(registry) == b""


def test_two_loaders_of_one_name_in_a_registry_are_refused() -> None:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    train, val = DataLoader([1]), DataLoader([2])  # type: ignore[arg-type]
    with PrometheusExporter(train, registry=registry):
        with pytest.raises(ValueError, match="a loader named 'train' already"):
            PrometheusExporter(val, registry=registry)
        PrometheusExporter(val, registry=registry, name="val").close()
    PrometheusExporter(val, registry=registry).close()


def test_opentelemetry_has_metrics_and_a_span_for_each_epoch(loader: DataLoader2[int], tmp_path: Path) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    exporter = OpenTelemetryExporter(loader, meter_provider=meters, tracer_provider=tracers, every_s=0.01)
    with exporter:
        run_with_a_death(loader, tmp_path)
        told = read(reader)
        assert told[("torchpipe.items", ())] == ITEMS
        assert told[("torchpipe.events", (("kind", "restart"),))] == 1
        assert ("torchpipe.wait", ()) in told
        stream = iter(loader)  # an epoch that has not ended
        next(stream)
    exporter.close()
    assert read(reader) == {}
    first, second = spans.get_finished_spans()
    assert first.name == second.name == "torchpipe.epoch"
    assert first.attributes is not None
    assert second.attributes is not None
    assert (first.attributes["epoch"], first.attributes["items"], first.attributes["state"]) == (0, ITEMS, "finished")
    assert (second.attributes["epoch"], second.attributes["state"]) == (1, "running")
    restart = next(event for event in first.events if event.name == "restart")
    assert "SIGKILL" in str((restart.attributes or {})["text"])
    assert first.start_time is not None
    assert first.end_time is not None
    assert first.start_time <= restart.timestamp <= first.end_time
    meters.shutdown()
    tracers.shutdown()


def read(reader: Any) -> dict[tuple[str, tuple[tuple[str, Any], ...]], float]:
    data = reader.get_metrics_data()
    return {
        (metric.name, tuple(sorted(item for item in point.attributes.items() if item[0] != "loader"))): point.value
        for resource in ([] if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_tensorboard_has_scalars_and_events_as_text(loader: DataLoader2[int], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardExporter(loader, tmp_path / "runs") as exporter:
        run_with_a_death(loader, tmp_path)
        exporter.write(5)
        list(loader)
        exporter.write(9)
    exporter.close()
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    tags = events.Tags()
    assert {"data/items_per_s", "data/wait_share", "data/epoch", "data/restarts"} <= set(tags["scalars"])
    assert [(item.step, item.value) for item in events.Scalars("data/epoch")] == [(5, 0), (9, 1)]
    assert all(0 <= item.value <= 1 for item in events.Scalars("data/wait_share"))
    (text,) = events.Tensors("data/events/text_summary")
    assert b"SIGKILL" in text.tensor_proto.string_val[0]


class Told:
    """A loader that has just done what the figures say."""

    def stats(self) -> Any:
        return BUSY


@pytest.mark.parametrize(
    ("package", "installed_by", "make"),
    [
        ("prometheus_client", "prometheus-client", lambda: PrometheusExporter(Told(), port=0)),
        ("opentelemetry", "opentelemetry-sdk", lambda: OpenTelemetryExporter(Told())),
        ("torch.utils.tensorboard", "tensorboard", lambda: TensorBoardExporter(Told(), "folder")),
    ],
)
def test_an_error_names_the_missing_package(
    package: str, installed_by: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install {installed_by}$"):
        make()


@pytest.mark.parametrize("make", [lambda: DataLoader2(IterableWrapper(range(5))), lambda: DataLoader(range(5), None)])
def test_epochs_that_nobody_looks_at_are_counted(make: Any) -> None:
    with make() as loader:
        measurements = Measurements(loader)
        for _ in range(4):
            assert len(list(loader)) == 5
        assert items_of(measurements) == 20
        del measurements
        list(loader)
        assert not _last_looks[loader], "an exporter that is gone is not asked"


class Overtaken:
    """The first look at it is answered after the second, which is of the next epoch, if that can be."""

    def __init__(self, first: LoaderStats, second: LoaderStats) -> None:
        self._answers = [second, second, first]
        self._overtaken = threading.Event()
        self.begun = threading.Event()

    def stats(self) -> LoaderStats:
        answer = self._answers.pop()
        if len(self._answers) == 2:
            self.begun.set()
            self._overtaken.wait(0.5)
        return answer

    def overtake(self, measurements: Measurements) -> None:
        measurements.take()
        self._overtaken.set()


def test_a_loader_with_an_exporter_is_copied_and_pickled_as_without() -> None:
    loader: Any = DataLoader([1, 2, 3, 4], batch_size=2)
    measurements = Measurements(loader)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert [batch.tolist() for batch in other] == [[1, 2], [3, 4]]
    assert items_of(measurements) == 0


def test_looks_of_two_threads_count_no_epoch_twice() -> None:
    with DataLoader2(IterableWrapper(range(5))) as loader:
        list(loader)
        first = loader.stats()
        list(loader)
        source = Overtaken(first, loader.stats())
    measurements = Measurements(source)
    slow = threading.Thread(target=measurements.take)
    slow.start()
    source.begun.wait()
    source.overtake(measurements)
    slow.join()
    assert items_of(measurements) == 10


def items_of(measurements: Measurements) -> float:
    return next(item.value for item in measurements.take() if item.name == "items")
