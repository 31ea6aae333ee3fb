"""A loader's figures for Prometheus: an HTTP endpoint of its own, or a collector in a registry that there is."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Any, Self
from weakref import WeakKeyDictionary

from torchpipe.compat.packages import needs
from torchpipe.observe.export.figures import Measurements
from torchpipe.observe.text import FigureSource

__all__ = ["PrometheusExporter"]

_PREFIX = "torchpipe_"
_names: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # of the loaders in each registry


class PrometheusExporter:
    """Serves the figures of ``loader``, as they are when asked for, until :meth:`close` or the end of a ``with`` block.

    Args:
        port: serve ``http://address:port/metrics``, in threads of its own; 0 chooses one, which ``port`` then says.
        address: who may ask; ``"0.0.0.0"`` lets other machines.
        registry: register there instead, of whatever serves it already; then leave ``port`` out.
        name: the label ``loader`` of all of them, to tell several apart.

    Raises: ImportError without ``prometheus-client``; OSError if the port is in use; ValueError unless there is
    either a ``port``, from 0 to 65535, or a ``registry``, or if that has a loader of this ``name``.
    """

    def __init__(
        self,
        loader: FigureSource,
        port: int | None = None,
        address: str = "127.0.0.1",
        *,
        registry: Any = None,
        name: str = "train",
    ) -> None:
        if (port is None) == (registry is None):
            raise ValueError("give either port= (0 chooses one) or registry=, which something else serves")
        if port is not None and (isinstance(port, bool) or not isinstance(port, int)):
            raise TypeError(f"port must be a number, got {port!r}")
        if port is not None and not 0 <= port <= 65535:
            raise ValueError(f"port must be 0 to 65535, got {port}")
        prometheus_client = needs("prometheus_client", "PrometheusExporter", "prometheus-client")
        if registry is not None and name in _names.get(registry, ()):
            raise ValueError(
                f"this registry has a loader named {name!r} already, whose figures could not be told from this one's: "
                "give each a name= of its own"
            )
        self._measurements = Measurements(loader)
        self._name = name
        self._server: Any = None
        self.port = port
        self._registry = prometheus_client.CollectorRegistry() if registry is None else registry
        if port is not None:
            self._serve(prometheus_client, port, address)
        self._registry.register(self)
        _names.setdefault(self._registry, set()).add(name)
        self._closed = False

    def _serve(self, client: Any, port: int, address: str) -> None:
        try:
            self._server, self._thread = client.start_http_server(port, address, self._registry)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                error.errno,
                f"port {port} of {address} is in use, by another run perhaps: choose another one, or port=0",
            ) from None
        self.port = self._server.server_port

    def collect(self) -> Iterable[Any]:
        """For the registry: all metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for item in self._measurements.take():
            if item.name not in families:
                kind = CounterMetricFamily if item.kind == "counter" else GaugeMetricFamily
                keys = ["loader", *(key for key, _ in item.labels)]
                name = _PREFIX + item.name + (f"_{item.unit}" if item.unit else "")
                families[item.name] = kind(name, item.help, labels=keys)
            families[item.name].add_metric([self._name, *(value for _, value in item.labels)], item.value)
        return families.values()

    def describe(self) -> Iterable[Any]:
        """For the registry: names are known when there is something to tell, and need not be its own alone."""
        return ()

    def close(self) -> None:
        """Serve no more: the port is free. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._registry.unregister(self)
        _names[self._registry].discard(self._name)
        if self._server is not None:
            self._server.shutdown()
            # Workers that were forked have a copy of the socket, which would listen on
            self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
