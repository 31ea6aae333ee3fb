"""A loader's figures for tools that watch many runs: Prometheus, OpenTelemetry, TensorBoard.

Each needs an extra of its name, which is imported when an exporter is made. All draw from ``loader.stats()``: they ask
no process and change nothing in the stream. The code is in ``torchpipe/observe/export/``.
"""

from torchpipe.observe.export.opentelemetry import OpenTelemetryExporter
from torchpipe.observe.export.prometheus import PrometheusExporter
from torchpipe.observe.export.tensorboard import TensorBoardExporter

__all__ = ["OpenTelemetryExporter", "PrometheusExporter", "TensorBoardExporter"]
