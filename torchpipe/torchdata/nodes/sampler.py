"""``Sampler``: the indices that a sampler of torch's gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import SequentialSampler

from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.validate import check_input

__all__ = ["Sampler"]


class Sampler(IterDataPipe[Any]):
    """Yields what ``sampler(*sampler_args, data_source=datapipe, **sampler_kwargs)`` gives: indices, not items.

    As torch's node of this name. A sampler of a sequence is better wrapped itself: ``IterableWrapper(sampler)``.

    State: the sampler's or its iterator's, if they have one; else the position, reached by replay. Raises: TypeError if
    ``datapipe`` has no ``len()``.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        sampler: Callable[..., Any] = SequentialSampler,
        sampler_args: Sequence[Any] | None = None,
        sampler_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_input("Sampler", datapipe)
        len(datapipe)
        self.source = datapipe
        self.arguments = (tuple(sampler_args or ()), dict(sampler_kwargs or {}))  # samplers keep them to themselves
        self.sampler = sampler(*(sampler_args or ()), **{**(sampler_kwargs or {}), "data_source": datapipe})

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler)
