"""What is said of loaders at work: the advice, the text, JSON, and events and sizes wherever they are shown."""

from __future__ import annotations

import json
import multiprocessing
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from reading_services import MultiProcessingReadingService
from tests.measured import measured
from tests.sources import wait_until
from tests.stats.test_loader_stats import graph, slow
from tests.stats.test_sizes import as_array, as_bytes
from tests.stats.test_skips import Behind, fail_at_7
from tests.stats.test_skips import graph as skipping
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.machine import format_bytes
from torchpipe.observe.advice import advise
from torchpipe.stats import LoaderStats


def travels(stats: LoaderStats) -> bool:
    """True if JSON brings it back as it was."""
    return LoaderStats.from_json(stats.to_json()) == stats


def test_before_the_first_item_and_after_the_end() -> None:
    service = MultiProcessingReadingService(2, "fork")
    with measured(DataLoader2(graph(), reading_service=service)) as loader:
        new = loader.stats()
        assert new.advice.bottleneck == "nothing"
        assert "Nothing has been iterated" in str(new)
        iterator = iter(loader)
        assert "No item has been delivered" in loader.stats().advice.sentence
        assert len(list(iterator)) == 26
        assert "Mapper(double)" in str(loader.stats())
        next(iter(loader))
    closed = loader.stats()
    assert closed.advice.sentence
    assert travels(new)
    assert travels(closed)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=repr)
def test_figures_of_a_dataloader_travel(options: dict[str, Any]) -> None:
    with measured(DataLoader(list(range(40)), 4, **options)) as loader:  # type: ignore[arg-type]
        for _ in range(2):
            list(loader)
            assert travels(loader.stats())


def test_bytes_and_skips_travel_and_are_in_the_text() -> None:
    items = IterableWrapper(range(200)).sharding_filter().map(as_bytes).map(as_array).batch(10).map(len)
    with measured(DataLoader2(items)) as loader:
        list(loader)
        stats = loader.stats()
    assert travels(stats)
    assert format_bytes(stats.nodes[3].bytes or 0) in str(stats)
    with measured(DataLoader2(skipping())) as loader:
        list(loader)
        assert travels(loader.stats())
        assert "1 skip" in str(loader.stats())


def test_more_workers_are_advised_for_a_loop_that_takes_all_while_cores_are_free() -> None:
    graph = IterableWrapper(range(300)).sharding_filter().map(slow)
    with measured(DataLoader2(graph, reading_service=MultiProcessingReadingService(2, "fork"))) as loader:
        list(loader)
        advice = advise(replace(loader.stats(), others=None))
    assert "Mapper(slow)" in advice.sentence
    assert "4 workers would make" in advice.sentence
    assert "num_workers=4" in advice.change


class Stuck(Dataset[int]):
    """The seventh sample is not there before somebody says so."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 6:
            assert self.event.wait(60)
        return index


@pytest.mark.parametrize(
    ("options", "measure"), [({}, False), ({}, True), ({"num_workers": 2}, False), ({"num_workers": 2}, True)], ids=str
)
def test_while_a_sample_hangs_neither_ranks_nor_the_sampler_are_blamed(options: Any, measure: bool) -> None:
    event = multiprocessing.get_context("fork").Event()
    context = "fork" if options.get("num_workers") else None
    loader: DataLoader[Any] = DataLoader(Stuck(event), 2, multiprocessing_context=context, **options)
    loader.measuring = measure
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(loader))
    thread.start()
    blamed = ("workers", "merge", "source", "node")
    wait_until(lambda: (stats := loader.stats()).consumer.wait_s > 0.3 and stats.advice.bottleneck in blamed)
    stats = loader.stats()
    event.set()
    thread.join()
    assert len(found) == 6
    assert "Sampler" not in str(stats.advice)  # when it is over, whose time counts depends on the machine
    for advice in (stats.advice, loader.stats().advice):
        assert "rank" not in str(advice)
        assert "shard" not in str(advice)


def test_of_steps_that_are_not_measured_none_is_named_and_no_shares_are_shown() -> None:
    loader = DataLoader(range(20), 2, collate_fn=slow)  # type: ignore[arg-type]
    list(loader)
    stats = loader.stats()
    assert stats.advice.sentence.startswith("You waited")
    assert stats.advice.node is None
    assert "Items are made in this process" in stats.advice.sentence
    assert "100 %" not in str(stats).partition("\n")[2]


def test_an_epoch_of_a_moment_says_nothing_of_who_is_slow() -> None:
    loader = measured(DataLoader(range(20), 2))  # type: ignore[arg-type]
    list(loader)
    advice = loader.stats().advice
    assert "too little to say who is slow" in advice.sentence
    assert (advice.bottleneck, advice.change, advice.predictions) == ("nothing", "", ())


def test_events_are_shown_in_the_page_the_trace_and_every_exporter(tmp_path: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from prometheus_client import CollectorRegistry, generate_latest
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from torchpipe.export import OpenTelemetryExporter, PrometheusExporter, TensorBoardExporter

    spans, tracers, registry = InMemorySpanExporter(), TracerProvider(), CollectorRegistry()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    late = Behind(tmp_path, fail_at_7, 0.006)  # long enough for a curve over time
    with DataLoader2(skipping(late, 120), reading_service=MultiProcessingReadingService(2, "fork")) as loader:
        with (
            loader.trace(tmp_path / "trace.json"),
            OpenTelemetryExporter(loader, tracer_provider=tracers),
            PrometheusExporter(loader, registry=registry),
            TensorBoardExporter(loader, tmp_path / "runs") as board,
        ):
            assert len(list(loader)) == 117
            board.write(1)
            metrics = generate_latest(registry).decode()
        page = loader.report(tmp_path / "report.html").read_text()
        text = str(loader.stats())
    tracers.shutdown()
    assert 'torchpipe_events_total{kind="skip",loader="train"} 3.0' in metrics
    (span,) = spans.get_finished_spans()
    told = sorted((dict(event.attributes or {}) for event in span.events), key=lambda event: str(event["error"]))
    assert [event["error"] for event in told] == [f"ValueError: bad <{n}>" for n in (107, 57, 7)]
    assert {(event["node"], event["shard"], event["process"]) for event in told} == {("Mapper(Behind)", 1, "worker 1")}
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    marks = [event for event in trace if event["ph"] == "i"]
    assert sorted(mark["args"]["error"] for mark in marks) == [f"ValueError: bad <{n}>" for n in (107, 57, 7)]
    assert {mark["name"] for mark in marks} == {"skip"}
    assert page.count("ValueError: bad &lt;57&gt;") >= 2  # in the table, and in the picture over time
    assert "bad <57>" not in page
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert len(events.Tensors("data/events/text_summary")) == 3
    assert "3 skips" in text
    assert "ValueError: bad <" in text


def test_what_crosses_processes_and_where_it_is_shown(tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from torchpipe.export import PrometheusExporter

    graph = IterableWrapper(range(100)).map(as_bytes).sharding_round_robin_dispatch().map(as_array)
    registry = CollectorRegistry()
    with (
        measured(DataLoader2(graph, reading_service=MultiProcessingReadingService(2, "fork"))) as loader,
        PrometheusExporter(loader, registry=registry),
    ):
        assert len(list(loader)) == 100
        stats = loader.stats()
        page = loader.report(tmp_path / "report.html").read_text()
        metrics = generate_latest(registry).decode()
    whole = sum(len(as_bytes(number)) for number in range(100))
    sent = {process.name: process.bytes for process in stats.processes}
    assert sent["dispatcher"] == pytest.approx(whole, rel=0.1)
    assert sent["worker 0"] + sent["worker 1"] == pytest.approx(10 * whole, rel=0.1)
    told = re.search(r'torchpipe_node_out_bytes_total{loader="train",node="2 Mapper\(as_bytes\)"} (.*)', metrics)
    assert told is not None
    assert float(told[1]) == stats.nodes[1].bytes == pytest.approx(whole, rel=0.05)
    assert 'torchpipe_process_sent_bytes_total{loader="train",process="dispatcher"}' in metrics
    assert format_bytes(stats.nodes[1].bytes or 0) in page
    assert format_bytes(sent["dispatcher"]) in page
    assert "sent" in str(stats)
