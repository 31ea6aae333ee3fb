"""The graph that a loader makes of the given one: adapted by the user's functions, and iterable. Runs in the user's
process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from torchpipe.compat.torch_datapipes import TorchMapDataPipe
from torchpipe.execution.interface import ReadingServiceInterface
from torchpipe.iter.sources import MapToIterConverter
from torchpipe.node.traits import DataPipe, is_node

__all__ = ["Adapter", "adapt", "streamed", "way_out"]

Adapter = Callable[[Any], Any]


def way_out(value: object) -> str:
    if value is None or isinstance(value, ReadingServiceInterface):
        return "a state holds no graph, so give it as well: from_state(state, datapipe, reading_service)"
    if isinstance(value, Dataset) and not isinstance(value, IterableDataset):
        return "torchpipe.DataLoader takes a dataset; in a graph, begin with torchpipe.map.SequenceWrapper(dataset)"
    return "wrap an iterable in torchpipe.iter.IterableWrapper"


def streamed(datapipe: DataPipe) -> DataPipe:
    if isinstance(datapipe, TorchMapDataPipe) and not hasattr(type(datapipe), "__iter__"):
        return MapToIterConverter(datapipe)  # type: ignore[arg-type]  # torch's own will do as well
    return datapipe


def adapt(datapipe: DataPipe, adapters: Adapter | Iterable[Adapter] | None) -> DataPipe:
    if adapters is None:
        return datapipe
    chosen = [adapters] if callable(adapters) or not isinstance(adapters, Iterable) else list(adapters)
    for adapter in chosen:
        if not callable(adapter):
            raise TypeError(
                "datapipe_adapter_fn must be a function from a datapipe to a datapipe, or a list of such, "
                f"got {adapter!r}" + (": say reading_service=" if isinstance(adapter, ReadingServiceInterface) else "")
            )
        adapted = adapter(datapipe)
        if not is_node(adapted):
            raise TypeError(
                f"the adapter {adapter!r} must return the datapipe (changed or not), got {adapted!r}: is a return "
                "missing?"
            )
        datapipe = adapted
    return datapipe
