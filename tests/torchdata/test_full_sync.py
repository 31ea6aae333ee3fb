"""``fullsync`` with real processes, which talk through gloo."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from torchpipe.errors import RankError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed")


def on_ranks(folder: Path, world_size: int, play: Callable[[int], Any]) -> list[Any]:
    """What ``play(rank)`` returns in a process for each rank."""
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            try:
                dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
                (folder / f"{rank}.json").write_text(json.dumps(play(rank)))
                dist.barrier()
                dist.destroy_process_group()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


def play(rank: int) -> Any:
    found: dict[str, Any] = {}
    node = IterableWrapper(range(5 + 2 * rank)).fullsync(timeout=60)
    found["epochs"] = [list(node), list(node)]
    iterator = iterate(node)
    first = [next(iterator) for _ in range(2)]
    state = iterator.state_dict()
    iterator.close()
    resumed = iterate(node)
    resumed.load_state_dict(state)
    found["resumed"] = first + list(resumed)

    def fail(item: int) -> int:
        if item == 2 and rank == 1:
            raise KeyError(item)
        return item

    try:
        list(IterableWrapper(range(5)).map(fail).fullsync())
    except Exception as error:
        found["failed"] = type(error).__name__
    return found


def test_ranks_end_together(tmp_path: Path) -> None:
    for rank, found in enumerate(on_ranks(tmp_path, 2, play)):
        assert found == {
            "epochs": [[0, 1, 2, 3, 4]] * 2,
            "resumed": [0, 1, 2, 3, 4],
            "failed": ["RankError", "KeyError"][rank],
        }


def alone(rank: int) -> Any:
    if rank == 1:
        return "nothing"
    try:
        list(IterableWrapper(range(5)).fullsync(timeout=0.2))
    except RankError as error:
        return str(error)
    return "no error"


def test_L7_a_rank_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    said, _ = on_ranks(tmp_path, 2, alone)
    assert "has not answered within 0.2 s" in said


def one(rank: int) -> Any:
    check_node(lambda: CountingSource(range(5)).fullsync())
    return "done"


def test_L2_exact_resume_of_a_single_rank(tmp_path: Path) -> None:
    assert on_ranks(tmp_path, 1, one) == ["done"]


def test_it_needs_a_process_group() -> None:
    with pytest.raises(RuntimeError, match="required to be initialized"):
        list(IterableWrapper([1]).fullsync())
