"""``in_memory_cache``: items of the first epoch are kept for later ones."""

from __future__ import annotations

from typing import TypeVar

from torchpipe.iter._shared.bases import form_on
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input

__all__ = ["InMemoryCacheHolder"]

T = TypeVar("T")


@functional_datapipe("in_memory_cache")
class InMemoryCacheHolder(IterDataPipe[T]):
    """``cache`` in memory, of at most ``size`` megabytes (None: any number): its input is made once, and the same items
    come in every epoch. What is beyond ``size`` is made in every epoch.

    State: that of ``cache``. Raises: ValueError if ``size`` is negative.
    """

    def __new__(  # type: ignore[misc]
        cls, source_dp: IterDataPipe[T], size: int | None = None
    ) -> IterDataPipe[T]:
        check_input("in_memory_cache", source_dp)
        most = None if size is None else check_count("size", size, at_least=0) << 20
        return form_on(source_dp, "cache")(max_bytes=most)  # type: ignore[no-any-return]
