"""The model of epochs (``tests/loader/test_epochs.py``) over loaders that other libraries drive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.loader.test_epochs import SEED, Streams, System, graph_system, in_process, play, unsized
from torchpipe.integrations.torch_loaders import GraphDataset
from torchpipe.integrations.torchdata_nodes import LoaderNode


class Node(System):
    """``reset()`` is ``iter()``, with the state that is to be loaded."""

    drops, passes, is_node = False, True, True

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._node: LoaderNode[Any] = LoaderNode(loader)
        self._state: Any = None

    def begin(self) -> Any:
        state, self._state = self._state, None
        self._node.reset(state)
        return self._node

    def state(self) -> Any:
        return self._node.state_dict() if self._state is None else self._state

    def load(self, state: Any) -> None:
        super().load(state)
        self._state = state

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if self._state is not None and self._state["epoch"] != epoch:
            self._state = None


class AsDataset(System):
    passes, is_dataset, looks = True, True, False

    @property
    def epoch(self) -> int:
        return int(self.loader.epoch)

    def state(self) -> Any:
        return self.loader.save()

    def load(self, state: Any) -> None:
        self.loader.restore(state)

    def close(self) -> None:
        return


CASES: dict[str, tuple[Callable[[], Any], list[Callable[[], System]]]] = {
    "LoaderNode": (lambda: Streams(unsized, 2), [partial(graph_system, Node, unsized, in_process)]),
    "GraphDataset": (lambda: Streams(unsized, 1), [lambda: AsDataset(GraphDataset(unsized(), seed=SEED))]),
}


@pytest.mark.parametrize("name", CASES)
def test_L2_any_sequence_of_calls(name: str) -> None:
    play(CASES[name], 40, 15)
