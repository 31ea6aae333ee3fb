"""``HuggingFaceHubReader``: a dataset of the Hugging Face hub, by its name."""

from __future__ import annotations

from typing import Any

from torchpipe.compat.packages import needs
from torchpipe.iter.hugging_face import HuggingFaceReader
from torchpipe.node.datapipe import IterDataPipe

__all__ = ["HuggingFaceHubReader"]


class HuggingFaceHubReader(IterDataPipe[Any]):
    """Reads ``datasets.load_dataset(dataset, **config_kwargs)``, streamed unless ``streaming=False``.

    Raises: ImportError without ``datasets``; what ``load_dataset`` raises; TypeError without a ``split``, where the
    dataset has several.
    """

    def __new__(cls, dataset: str, **config_kwargs: Any) -> IterDataPipe[Any]:  # type: ignore[misc]
        datasets = needs("datasets", "HuggingFaceHubReader")
        return HuggingFaceReader(datasets.load_dataset(path=dataset, **{"streaming": True, **config_kwargs}))
