"""A loader's figures for tools that watch many runs: Prometheus, OpenTelemetry, TensorBoard.

Each needs an extra of its name, which is imported when an exporter is made. All draw from ``loader.stats()``: they ask
no process and change nothing in the stream.
"""

from torchpipe.export.opentelemetry import OpenTelemetryExporter
from torchpipe.export.prometheus import PrometheusExporter
from torchpipe.export.tensorboard import TensorBoardExporter

__all__ = ["OpenTelemetryExporter", "PrometheusExporter", "TensorBoardExporter"]
