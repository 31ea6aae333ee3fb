"""``LoaderNode`` and ``NodesReader``: graphs among torchdata's nodes, and those in graphs, exact at every item."""

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import pytest
from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.integrations.torchdata_nodes import LoaderNode, NodesReader
from torchpipe.iter import IterableWrapper as Source
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node


def loader(count: int = 11) -> DataLoader2[int]:
    made: DataLoader2[int] = DataLoader2(Source(range(count)).shuffle(buffer_size=4))
    made.seed(1)
    return made


def test_L2_a_loader_among_their_nodes_resumes_exactly_at_every_batch() -> None:
    batches, states = [], []
    nodes = Loader(Batcher(LoaderNode(loader()), 2, drop_last=False))
    for batch in nodes:
        batches.append(batch)
        states.append(copy.deepcopy(nodes.state_dict()))
    following = list(nodes)
    assert sorted(item for batch in batches for item in batch) == list(range(11))
    assert following != batches  # another epoch
    for position, state in enumerate(states[:-1], 1):
        again = Loader(Batcher(LoaderNode(loader()), 2, drop_last=False))
        again.load_state_dict(state)
        assert list(again) == batches[position:]
        assert list(again) == following
    last = Loader(Batcher(LoaderNode(loader()), 2, drop_last=False))
    last.load_state_dict(states[-1])
    assert list(last) == following  # this Loader goes on where nothing is left


def test_L2_nothing_is_left_of_an_epoch_at_its_end_whatever_the_length() -> None:
    def node() -> LoaderNode[int]:
        made: DataLoader2[int] = DataLoader2(Source(range(9)).shuffle(buffer_size=4).filter(lambda item: item < 5))
        made.seed(1)
        return LoaderNode(made)

    def epoch(nodes: LoaderNode[int], state: Any = None) -> list[int]:
        nodes.reset(state)
        return list(nodes)

    whole = node()
    expected = [epoch(whole) for _ in range(3)]
    saving = node()
    saving.reset()
    states = [saving.state_dict()]
    for _ in saving:
        states.append(saving.state_dict())
    states.append(saving.state_dict())  # the end has been seen
    for position, state in enumerate(states):
        again = node()
        assert [epoch(again, state), epoch(again), epoch(again)] == [expected[0][position:], *expected[1:]]


def test_L3_a_loader_of_workers_is_one_node() -> None:
    service = MultiProcessingReadingService(num_workers=2)
    made: DataLoader2[int] = DataLoader2(Source(range(20)).sharding_filter(), reading_service=service)
    nodes = Loader(LoaderNode(made), restart_on_stop_iteration=False)
    stream = iter(nodes)
    assert [next(stream) for _ in range(5)] == list(range(5))
    nodes.load_state_dict(nodes.state_dict())
    assert list(nodes) == list(range(5, 20))
    made.shutdown()


def nodes_of(epoch: int) -> Any:
    return Batcher(IterableWrapper(range(10 * epoch, 10 * epoch + 9)), 2, drop_last=False)


def in_threads(epoch: int) -> Any:
    return ParallelMapper(IterableWrapper(range(40)), lambda item: item + 1, num_workers=2, method="thread")


def test_L2_their_nodes_in_a_graph_resume_exactly() -> None:
    check_node(lambda: NodesReader(nodes_of).sharding_filter(), positions=5)
    assert list(iterate(NodesReader(nodes_of), epoch=1)) == [[10, 11], [12, 13], [14, 15], [16, 17], [18]]


def test_L6_threads_of_their_nodes_end_with_the_pass() -> None:
    before = threading.active_count()
    iterator = iterate(NodesReader(in_threads))
    assert [next(iterator) for _ in range(5)] == [1, 2, 3, 4, 5]
    state = iterator.state_dict()
    iterator.close()
    again = iterate(NodesReader(in_threads))
    again.load_state_dict(state)
    assert list(again) == list(range(6, 41))
    again.close()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and threading.active_count() > before:
            thread.join(5)


def test_wrong_nodes_and_states_are_refused() -> None:
    with pytest.raises(TypeError, match=r"needs a node of torchdata.nodes, make\(\) returned \[\]"):
        iterate(NodesReader(lambda epoch: []))  # type: ignore[arg-type, return-value]
    for state in ({"count": -1}, {"count": 3, "nodes": None}, {"count": 1, "nodes": {"wrong": 1}}):
        with pytest.raises(StateError):
            again = iterate(NodesReader(nodes_of))
            again.load_state_dict(state)
            next(again)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchpipe.integrations.torchdata_nodes")
    monkeypatch.setitem(sys.modules, "torchdata.nodes", None)
    with pytest.raises(ImportError, match=r'pip install "torchdata>=0\.11"'):
        import torchpipe.integrations.torchdata_nodes  # noqa: F401
