"""Nodes that define ``__iter__`` as torch's do: generators, torch's nodes, nodes with state or protocols."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data import IterDataPipe as TorchIterDataPipe
from torch.utils.data.datapipes import iter as torch_iter
from torch.utils.data.graph_settings import apply_sharding

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import text_of
from tests.laws.kills import Kill, run_with_kills
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.iter import IterableWrapper, Shuffler
from torchpipe.node.datapipe import IterDataPipe, iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node


class Plain(IterDataPipe[Any]):
    """A generator over its input, as most nodes in the wild."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield item, "plain"


class TorchPlain(TorchIterDataPipe):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield item, "torch"


class NextStyle(IterDataPipe[int]):
    """Its own iterator; ``__iter__`` sets it back."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return self.at


class TorchNextStyle(TorchIterDataPipe):
    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def reset(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return self.at


class SeededNode(TorchIterDataPipe):
    """Mixes a buffer as torch's shuffler does: ``set_seed``, then ``reset`` when an iteration begins."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        self.rng = random.Random()
        self.seed: int | None = None
        self.buffer: list[Any] = []

    def set_seed(self, seed: int) -> SeededNode:
        self.seed = seed
        return self

    def reset(self) -> None:
        self.buffer = []
        self.rng.seed(self.seed)

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            self.buffer.append(item)
            if len(self.buffer) > 3:
                yield self.buffer.pop(self.rng.randrange(4))
        self.rng.shuffle(self.buffer)
        while self.buffer:
            yield self.buffer.pop()


class OwnSharding(TorchIterDataPipe):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        self.part = (1, 0)

    def apply_sharding(self, num_of_instances: int, instance_id: int) -> None:
        self.part = (num_of_instances, instance_id)

    def __iter__(self) -> Iterator[Any]:
        parts, part = self.part
        for index, item in enumerate(self.datapipe):
            if index % parts == part:
                yield item


class StatefulNode(IterDataPipe[Any]):
    """Says itself where it stands; begins anew when it is through."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        self.log: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            self.log.append(item)
            yield item, len(self.log)
        self.log.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"log": self.log}  # its own list: the node's iterator must copy it

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log = state["log"]


class Counting:
    """An iterator with state over a stream."""

    def __init__(self, stream: Iterator[Any]) -> None:
        self.stream = stream
        self.count = [0]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = next(self.stream)
        self.count[0] += 1
        return item, self.count[0]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class MakesStatefulIterators(IterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        return Counting(iter(self.datapipe))


class StatefulTwice(MakesStatefulIterators):
    """Node and iterator both have a state: the iterator's counts."""

    def state_dict(self) -> dict[str, Any]:
        return {"node": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {"node": 1}


class SlowShuffler(Shuffler[Any]):
    """Adds to a node of torchpipe by calling its ``__iter__``."""

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            yield item, "slowly"


def small() -> Any:
    return CountingSource(range(6)).shuffle(buffer_size=3)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: Plain(small()),
        lambda: Plain(Plain(small())).batch(2),
        lambda: TorchPlain(small()),
        lambda: Plain(TorchPlain(small())),
        lambda: NextStyle(4),
        lambda: IterableWrapper("ab").zip(NextStyle(4), NextStyle(3)),
        lambda: TorchNextStyle(4),
        lambda: SeededNode(small()),
        lambda: SeededNode(CountingSource(range(9))),
        lambda: OwnSharding(small()),
        lambda: OwnSharding(small()).map(str),
        lambda: SlowShuffler(CountingSource(range(6)), buffer_size=3),
        lambda: Plain(small().zip(small())),
    ],
)
def test_L2_nodes_without_state_are_replayed_exactly(factory: Any) -> None:
    check_node(factory, pulls=lambda k: 9)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: StatefulNode(small()),
        lambda: StatefulNode(small()).batch(2),
        lambda: MakesStatefulIterators(small()),
        lambda: StatefulTwice(small()),
        lambda: StatefulNode(Plain(small()).map(lambda item: item[0])),
    ],
)
def test_L2_nodes_with_state_resume_by_it(factory: Any) -> None:
    check_node(factory, pulls=lambda k: 6)


@pytest.mark.parametrize("kind", [StatefulNode, MakesStatefulIterators])
def test_L5_nodes_with_state_are_not_replayed(kind: Any) -> None:
    source = CountingSource(range(6))
    iterator = iterate(kind(source))
    iterator.drop(4)
    data = encode(iterator.state_dict())
    fresh = CountingSource(range(6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        resumed = iterate(kind(fresh))
        resumed.load_state_dict(decode(data))
    assert next(resumed) == (4, 5)
    assert fresh.pulls.total == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch_iter.IterableWrapper(range(7)),
        lambda: torch_iter.IterableWrapper(range(7)).shuffle(buffer_size=3).batch(2),
        lambda: torch_iter.Mapper(small(), str),
        lambda: torch_iter.Shuffler(small(), buffer_size=2).map(str),
        lambda: torch_iter.ShardingFilter(small()),
        lambda: torch_iter.Zipper(small(), torch_iter.IterableWrapper(range(4))),
        lambda: torch_iter.Multiplexer(small(), small()),
    ],
)
def test_L2_torchs_own_nodes_in_a_graph(make: Any) -> None:
    check_node(lambda: Plain(make()), pulls=lambda k: 99)
    check_node(lambda: IterableWrapper(make()).enumerate(), pulls=lambda k: 99)
    check_node(make, pulls=lambda k: 99)


def test_L5_a_replay_is_announced_once_with_node_and_number() -> None:
    node = Plain(IterableWrapper(range(9)))
    iterator = iterate(node)
    iterator.drop(5)
    state = iterator.state_dict()
    resumed = iterate(node)
    with pytest.warns(ReplayWarning, match="Plain keeps no state: replaying its first 5 items") as seen:
        resumed.load_state_dict(state)
    assert list(resumed) == [(item, "plain") for item in range(5, 9)]
    assert len(seen) == 1


def test_nothing_is_announced_where_nothing_is_replayed() -> None:
    node = Plain(IterableWrapper(range(9)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        iterate(node).load_state_dict(iterate(node).state_dict())


def test_the_state_of_a_replayed_node_is_one_integer() -> None:
    iterator = iterate(Plain(small()))
    iterator.drop(3)
    assert iterator.state_dict() == {"count": 3}


def test_L7_an_error_of_the_node_passes_unchanged_also_while_replaying() -> None:
    class Broken(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise ValueError("bad record")

    with pytest.raises(ValueError, match=r"^bad record$"):
        list(iterate(Broken()))
    resumed = iterate(Broken())
    with pytest.warns(ReplayWarning), pytest.raises(ValueError, match=r"^bad record$") as caught:
        resumed.load_state_dict({"count": 3})
        next(resumed)
    assert not isinstance(caught.value, StateError)


class Shuffles(IterDataPipe[Any]):
    """No generator: it draws from the global random states, and reads its input, when ``iter()`` is called."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        items = list(self.datapipe)
        random.shuffle(items)
        return iter(items)


class ShufflesStateful(Shuffles):
    def __iter__(self) -> Iterator[Any]:
        return Kept(list(super().__iter__()))


class Kept:
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.items:
            raise StopIteration
        return self.items.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"items": self.items}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.items = state["items"]


def draw(item: Any) -> Any:
    return item, random.random()


def opened_late(kind: Any) -> Any:
    return IterableWrapper(range(6)).map(draw).concat(kind(IterableWrapper(range(4)))).sharding_filter().map(draw)


def opened_late_over_a_branch(kind: Any) -> Any:
    first, second = IterableWrapper(range(6)).map(draw).fork(2)
    return first.concat(kind(second)).sharding_filter().map(draw)


@pytest.mark.parametrize("kind", [Shuffles, ShufflesStateful])
@pytest.mark.parametrize("graph", [opened_late, opened_late_over_a_branch])
def test_L2_a_state_is_taken_without_opening_what_was_not_reached_yet(graph: Any, kind: Any) -> None:
    def loader(every: int) -> Any:
        return make_loader(graph(kind), make_service(None, 1, every=every))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        expected = text_of(loader(1 << 40))
        for every in (1, 2, 5):
            assert text_of(loader(every)) == expected
            for position in range(len(expected)):
                stopped, resumed = loader(every), loader(1)
                items = iter(stopped)
                for _ in range(position):
                    next(items)
                resumed.load_state_dict(stopped.state_dict())
                assert text_of(resumed) == expected[position:]


@pytest.mark.parametrize("graph", [opened_late, opened_late_over_a_branch])
def test_L4_a_worker_that_dies_before_a_node_is_reached(graph: Any) -> None:
    expected = oracle(graph(Shuffles), 2, epochs=2)
    for item in range(0, 6, 2):
        with make_loader(graph(Shuffles), make_service(2, 2, every=1)) as loader:
            assert run_with_kills(loader, 2, [Kill(0, item, 0, "SIGKILL")]) == expected


def test_L7_a_node_that_became_shorter_is_an_error() -> None:
    resumed = iterate(NextStyle(2))
    with pytest.warns(ReplayWarning), pytest.raises(StateError, match="ended after 2 of 3"):
        resumed.load_state_dict({"count": 3})
        next(resumed)


def test_the_users_node_is_never_changed() -> None:
    node = SeededNode(OwnSharding(IterableWrapper(range(9))))
    before = dict(vars(node)), dict(vars(node.datapipe))
    list(iterate(node, shard=1, num_shards=3))
    assert (dict(vars(node)), dict(vars(node.datapipe))) == before
    assert node.buffer == []


def test_L1_set_seed_makes_the_stream_a_function_of_seed_and_epoch() -> None:
    node = SeededNode(IterableWrapper(range(20)))
    first = list(iterate(node, seed=1))
    assert first == list(iterate(node, seed=1))
    assert first != list(iterate(node, seed=2))
    assert first != list(iterate(node, seed=1, epoch=1))


def test_apply_sharding_divides_the_stream() -> None:
    node = OwnSharding(IterableWrapper(range(7)))
    shares = [list(iterate(node, shard=shard, num_shards=3)) for shard in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]


def test_a_node_of_ones_own_divides_under_torchs_loaders() -> None:
    class Own(IterDataPipe[Any]):
        """As ``OwnSharding``, of torchpipe's class: each pass has a private copy."""

        part = (1, 0)
        __init__ = OwnSharding.__init__
        apply_sharding = OwnSharding.apply_sharding
        __iter__ = OwnSharding.__iter__

    node = Own(IterableWrapper(range(7)))
    apply_sharding(node, 3, 1)
    assert list(node) == [1, 4]
    assert [int(item) for item in DataLoader(Own(IterableWrapper(range(7))), num_workers=2)] == [*range(7)]


def test_methods_of_an_input_can_be_called() -> None:
    class Asks(IterDataPipe[Any]):
        def __init__(self, datapipe: Any) -> None:
            self.datapipe = datapipe

        def __iter__(self) -> Iterator[Any]:
            yield len(self.datapipe)
            yield self.datapipe.hello()
            yield from self.datapipe.map(str).batch(2)

    class Talks(IterableWrapper[int]):
        def hello(self) -> str:
            return "hello"

    assert list(Asks(Talks(range(3)))) == [3, "hello", ["0", "1"], ["2"]]


def test_L1_a_graph_made_within_a_node_belongs_to_the_pass() -> None:
    class Mixes(IterDataPipe[Any]):
        def __init__(self, datapipe: Any) -> None:
            self.datapipe = datapipe

        def __iter__(self) -> Iterator[Any]:
            yield from self.datapipe.shuffle().random_map(lambda item, rng: (item, rng.random()))

    check_node(lambda: Mixes(CountingSource(range(5))), pulls=lambda k: 5)
    node = Mixes(IterableWrapper(range(20)))
    assert list(iterate(node, seed=1)) != list(iterate(node, seed=2))


def test_an_unknown_iterator_type_is_an_error() -> None:
    class Odd(IterDataPipe[Any]):
        def iterate(self, context: Any) -> Any:
            return iter([])

    class Nothing(IterDataPipe[Any]):
        pass

    with pytest.raises(TypeError, match="must return a NodeIterator"):
        iter(Odd())
    with pytest.raises(NotImplementedError, match=r"Nothing must name its NodeIterator"):
        iter(Nothing())


# --- torch's loaders over torchpipe's graphs ---


def double(item: int) -> int:
    return item * 2


def sharded_graph() -> Any:
    return IterableWrapper(range(20)).shuffle().sharding_filter().map(double)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_delivers_each_item_once(num_workers: int) -> None:
    loader = DataLoader(sharded_graph(), batch_size=3, num_workers=num_workers, shuffle=True)
    epochs = [[item for batch in loader for item in batch.tolist()] for _ in range(2)]
    for items in epochs:
        assert sorted(items) == list(range(0, 40, 2))
    assert epochs[0] != epochs[1]


def test_torchs_loader_seeds_and_switches_the_shuffle() -> None:
    def order(shuffle: bool | None, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return list(DataLoader(sharded_graph(), batch_size=None, shuffle=shuffle, generator=generator))

    assert order(True, 1) == order(True, 1) != order(True, 2)
    assert order(False, 1) == list(range(0, 40, 2))


def test_torchs_loader_with_a_graph_of_users_nodes() -> None:
    loader = DataLoader(Plain(TorchPlain(sharded_graph())), batch_size=None, num_workers=2)
    assert sorted(item[0][0] for item in loader) == list(range(0, 40, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdatas_stateful_loader_resumes(num_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        return stateful.StatefulDataLoader(sharded_graph(), batch_size=2, num_workers=num_workers, shuffle=False)

    loader = make()
    batches = iter(loader)
    seen = [item for _ in range(4) for item in next(batches).tolist()]
    state = loader.state_dict()
    rest = [item for batch in batches for item in batch.tolist()]
    assert sorted(seen + rest) == list(range(0, 40, 2))
    resumed = make()
    resumed.load_state_dict(state)
    assert [item for batch in resumed for item in batch.tolist()] == rest


class Numbering(IterDataPipe[Any]):
    """A node with a state of its own over its input, which opens it when it is asked for the first item."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe, self.seen = datapipe, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            self.seen += 1
            yield self.seen, item

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Without(IterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        yield from self.datapipe


def numbered_branches() -> Any:
    first, second = IterableWrapper(range(9)).sharding_filter().fork(2)
    return Numbering(first).mux_longest(Numbering(second))


def expanded_branches() -> Any:
    """A node that keeps the position before each item, beside one that is replayed."""
    first, second = IterableWrapper(range(9)).sharding_filter().demux(2, lambda item: item % 2)
    return first.flatmap(lambda item: iter((item, draw(item)))).mux_longest(Without(second))


@pytest.mark.parametrize("graph", [numbered_branches, expanded_branches])
@pytest.mark.parametrize("workers", [None, 2])
def test_L2_nodes_of_a_users_over_branches(graph: Any, workers: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        (expected,) = oracle(graph(), 2, epochs=1)
        for stop in range(0, len(expected), 3 if workers is None else 6):
            with make_loader(graph(), make_service(workers, 2, every=1)) as loader:
                items = iter(loader)
                found = [repr(next(items)) for _ in range(stop)]
                state = loader.state_dict()
            with make_loader(graph(), make_service(None, 2, every=1)) as loader:
                loader.load_state_dict(state)
                assert found + text_of(loader) == expected


def test_passes_that_may_replay_are_listed_while_others_open_and_close_them() -> None:
    first = iterate(Plain(IterableWrapper(range(3))))
    shared, passes = first.context.shared, [first]
    for found in shared.replaying():
        assert found is first
        passes.append(first.context.iterate(first.node))  # as another thread does meanwhile
    assert shared.replaying() == passes
    passes.pop().close()
    assert shared.replaying() == passes
