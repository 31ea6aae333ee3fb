"""A loader's figures as OpenTelemetry metrics, and its epochs as spans with restarts and the like as their events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from torchpipe.compat.packages import needs
from torchpipe.observe.export.figures import Measurements
from torchpipe.observe.text import FigureSource, NewEvents
from torchpipe.stats import LoaderStats

__all__ = ["OpenTelemetryExporter"]

_UNITS = {"seconds": "s", "bytes": "By", "": "1"}


class OpenTelemetryExporter:
    """Metrics ``torchpipe.*`` when a reader asks for them, and a span for each epoch, until :meth:`close` or the end of
    a ``with`` block.

    ``meter_provider`` and ``tracer_provider`` default to the global ones. ``name`` is the attribute ``loader`` of all.
    A thread looks every ``every_s`` seconds, and each read of the metrics does. Counters miss nothing; an epoch that
    begins and ends between two looks has no span, and that of one that is followed by the next there has the figures of
    the last look.

    Raises: ImportError without ``opentelemetry-sdk``.
    """

    def __init__(
        self,
        loader: FigureSource,
        *,
        meter_provider: Any = None,
        tracer_provider: Any = None,
        name: str = "train",
        every_s: float = 1.0,
    ) -> None:
        metrics = needs("opentelemetry.metrics", "OpenTelemetryExporter", "opentelemetry-sdk")
        trace = needs("opentelemetry.trace", "OpenTelemetryExporter", "opentelemetry-sdk")
        self._observe: Callable[..., Any] = metrics.Observation
        self._loader = loader
        self._name = name
        self._measurements = Measurements(loader)
        self._events = NewEvents()
        self._span: Any = None
        self._began_at: float | None = None
        self._seen: LoaderStats | None = None  # of the epoch that the span is of
        self._tracer = trace.get_tracer("torchpipe", tracer_provider=tracer_provider)
        self._meter = metrics.get_meter("torchpipe", meter_provider=meter_provider)
        self._instruments: set[str] = set()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._look()
        self._thread = threading.Thread(target=self._run, args=(every_s,), name="torchpipe-telemetry", daemon=True)
        self._thread.start()

    def _run(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            self._look()

    def _look(self) -> None:
        self._make_instruments()
        self._follow()

    def _follow(self) -> None:
        """Begin and end spans, and tell them what has happened."""
        with self._lock:
            stats = self._loader.stats()
            if self._span is not None and stats.began_at != self._began_at:
                self._end(self._seen)
            if self._span is None and stats.began_at is not None and stats.began_at != self._began_at:
                self._began_at = stats.began_at
                self._span = self._tracer.start_span(
                    "torchpipe.epoch",
                    start_time=round(stats.began_at * 1e9),
                    attributes={"loader": self._name, "epoch": stats.epoch, "workers": stats.workers},
                )
            if self._span is None:
                return
            self._seen = stats
            for event in self._events.of(stats):
                attributes: dict[str, str | int] = {"process": event.process, "text": event.text}
                attributes |= {} if not event.error else {"node": event.node, "error": event.error}
                attributes |= {} if event.shard is None else {"shard": event.shard}
                self._span.add_event(event.kind, attributes, timestamp=round(event.at * 1e9))
            if stats.state != "running":
                self._end(stats)

    def _end(self, stats: LoaderStats | None) -> None:
        span, self._span = self._span, None
        if stats is not None:
            span.set_attributes(
                {
                    "state": stats.state,
                    "items": stats.consumer.items,
                    "wait_share": stats.consumer.wait_share,
                    "restarts": sum(process.restarts for process in stats.processes),
                    "advice": stats.advice.sentence,
                }
            )
            consumer = stats.consumer
            took_s = (consumer.start_s or 0.0) + consumer.elapsed_s
            span.end(round(((stats.began_at or 0.0) + took_s) * 1e9))
        else:
            span.end()

    def _make_instruments(self) -> None:
        """One for each name that there is by now: some come with the first epoch."""
        for item in self._measurements.take():
            if item.name in self._instruments:
                continue
            self._instruments.add(item.name)
            counter = item.kind == "counter"
            make = self._meter.create_observable_counter if counter else self._meter.create_observable_gauge
            make(f"torchpipe.{item.name}", [self._reader(item.name)], _UNITS[item.unit], item.help)

    def _reader(self, name: str) -> Callable[[Any], Iterable[Any]]:
        def read(_: Any) -> Iterable[Any]:
            if self._closed.is_set():
                return []
            self._follow()
            return [
                self._observe(item.value, {"loader": self._name, **dict(item.labels)})
                for item in self._measurements.take()
                if item.name == name
            ]

        return read

    def close(self) -> None:
        """End the span that is open, and tell no more. Flushing is the providers' affair. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        try:
            self._look()
        finally:
            if self._span is not None:
                self._end(self._seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
