"""Where in the pipeline an exception came from, as its notes say it."""

from __future__ import annotations

import pytest

from torchpipe import DataLoader2
from torchpipe.execution.epoch import ShardSpec
from torchpipe.execution.shard import Shard
from torchpipe.iter import IterableWrapper
from torchpipe.state import Cursor


def invert(item: int) -> float:
    return 1 / item


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (ShardSpec(seed=0, epoch=2, shard=0, num_shards=1), "item 1 of shard 0 of 1, epoch 2"),
        (
            ShardSpec(seed=0, epoch=2, shard=3, num_shards=4, rank=1, world_size=2),
            "item 1 of shard 3 of 4 of rank 1, epoch 2",
        ),
    ],
)
def test_the_item_is_named_with_its_shard_and_its_rank_if_there_are_several(spec: ShardSpec, where: str) -> None:
    shard = Shard((IterableWrapper([1, 0]).map(invert),), spec)
    shard.within(lambda: shard.start(Cursor()))
    items = []
    while (chunk := shard.within(lambda: shard.produce(5))).error is None:  # a snapshot ends a chunk
        items += chunk.items
    shard.within(shard.close)
    assert items + chunk.items == [1.0]
    assert isinstance(chunk.error, ZeroDivisionError)
    assert chunk.error.__notes__ == [f"torchpipe: raised in Mapper(invert) for {where}"]


def ended(number: int) -> int:
    return next(iter(range(number, 1)))


def test_the_node_is_named_whose_function_let_a_stop_iteration_out() -> None:
    """The generator around it made another error of it, whose traceback began outside."""
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        list(DataLoader2(IterableWrapper([0, 1]).map(ended).batch(3)))
    assert caught.value.__notes__ == [
        "torchpipe: ended() raised StopIteration, which is no end: next() without a default does",
        "torchpipe: raised in Mapper(ended) for item 0 of shard 0 of 1, epoch 0",
    ]
