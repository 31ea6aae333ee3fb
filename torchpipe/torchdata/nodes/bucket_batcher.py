"""``bucketbatch``: batches of items of like size, made of other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_function, check_input

__all__ = ["BucketBatcher"]

T = TypeVar("T")


@functional_datapipe("bucketbatch")
class BucketBatcher(IterDataPipe[list[T]]):
    """Batches of items that ``sort_key`` puts next to each other: a chain of ``shuffle``, ``map`` and ``batch``.

    Buckets of ``batch_num`` batches are sorted by ``sort_key``, a function from a list of items to the sorted list
    (``functools.partial(sorted, key=len)``), and cut into batches of ``batch_size``; before that, ``bucket_num``
    buckets are mixed. The batches are mixed as well. ``use_in_batch_shuffle`` mixes pools one after the other; without
    it, a shuffle buffer slides over the stream. Without ``sort_key`` items are mixed and batched.

    State: that of the nodes it is made of; a pool of ``batch_size * batch_num * bucket_num`` items is in it.

    Raises: ValueError for a size below 1; TypeError if ``sort_key`` is no function.
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: IterDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[Any]], Any] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> IterDataPipe[list[T]]:
        check_input("bucketbatch", datapipe)
        batch_size = check_count("batch_size", batch_size, at_least=1)
        batch_num = check_count("batch_num", batch_num, at_least=1)
        bucket_num = check_count("bucket_num", bucket_num, at_least=1)
        chain: Any = datapipe
        pool = batch_size * batch_num * bucket_num
        if bucket_num > 1 or sort_key is None:
            chain = _mixed(chain, pool, use_in_batch_shuffle, pool)
        if sort_key is None:
            return chain.batch(batch_size, drop_last=drop_last)  # type: ignore[no-any-return]
        check_function("sort_key", sort_key)
        chain = chain.batch(batch_size * batch_num).map(sort_key).unbatch().batch(batch_size, drop_last=drop_last)
        return _mixed(chain, bucket_num, use_in_batch_shuffle, batch_size * batch_num)  # type: ignore[no-any-return]


def _mixed(chain: Any, pool: int, by_pools: bool, buffer_size: int) -> Any:
    if by_pools:
        return chain.batch(pool).in_batch_shuffle().unbatch()
    return chain.shuffle(buffer_size=buffer_size)
