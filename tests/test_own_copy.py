"""A pass's own: whatever a node or an iterable of the user's holds, each pass of each shard begins from it as given."""

from __future__ import annotations

import io
import queue
import random
import tempfile
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from tests.keeping import LEAVES, Box, draw, make, specs
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.kills import Kill, run_with_kills
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.errors import GraphError
from torchpipe.iter import IterableWrapper
from torchpipe.node.own_copy import OwnCopy

ITEMS = 6
SINGLY = {"views of numpy", "views of torch"}  # as pickle copies them
PICKLED = ("list", [("twice", [name]) for name in LEAVES if name not in SINGLY | {"long list", "1001 objects", "deep"}])
pytestmark = pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")


def copied(value: Any) -> Any:
    return OwnCopy(value).of(value)


def begins_from_what_was_given(spec: Any) -> None:
    expected = [draw(kept) for kept in [make(spec)] for _ in range(3)]
    root = Box("holder", x=[make(spec)])
    first, second = copied(root), copied(root)
    assert [draw(first), draw(second), draw(first), draw(second)] == [expected[n] for n in (0, 0, 1, 1)]
    assert draw(copied(first)) == expected[2], "a copy of what has moved on"
    assert draw(root) == expected[0], "what was given is as it was"


@pytest.mark.parametrize("name", LEAVES)
def test_L1_a_copy_is_its_own(name: str) -> None:
    begins_from_what_was_given(name)


@settings(max_examples=60, deadline=None)
@given(specs())
def test_L1_in_any_nesting_and_however_it_is_shared(spec: Any) -> None:
    begins_from_what_was_given(spec)


# -- in graphs ------------------------------------------------------------------------------------------------------


class Iterable:
    def __init__(self, spec: Any, items: int = ITEMS) -> None:
        self.kept, self.items = make(spec), items

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.items):
            yield number, draw(self.kept)


class Own(IterDataPipe[Any]):
    __init__ = Iterable.__init__
    __iter__ = Iterable.__iter__


def source(kind: str, spec: Any) -> Any:
    return Own(spec) if kind == "node" else IterableWrapper(Iterable(spec))


def alone(spec: Any) -> list[Any]:
    return list(iter(Iterable(spec)))


@settings(max_examples=20, deadline=None)
@given(spec=specs(), kind=st.sampled_from(["node", "iterable"]), at=st.sampled_from([0, ITEMS // 2, ITEMS]))
def test_L1_L2_two_shards_of_one_process_two_epochs_and_resumes(spec: Any, kind: str, at: int) -> None:
    def loader_of() -> Any:
        service = InProcessReadingService(num_shards=2)
        return DataLoader2(source(kind, spec).sharding_filter(), reading_service=service)

    expected, loader, states = alone(spec), loader_of(), []
    for _ in range(2):
        stream = iter(loader)
        got = [next(stream) for _ in range(at)]
        states.append(loader.state_dict())
        assert got + list(stream) == expected
    for state in states:
        other = loader_of()
        other.load_state_dict(state)
        assert list(other) == expected[at:]


@pytest.mark.parametrize(
    ("kind", "method", "workers"),
    [("node", "fork", 1), ("node", "fork", 2), ("iterable", "fork", 1), ("iterable", "spawn", 2)],
)
def test_L1_in_workers(kind: str, method: str, workers: int) -> None:
    expected, graph = alone(PICKLED), source(kind, PICKLED).sharding_filter()
    with make_loader(graph, make_service(workers, 2, every=1, context=method)) as loader:
        assert [list(loader), list(loader)] == [expected, expected]


def test_L4_a_successor_begins_from_the_same() -> None:
    def graph() -> Any:
        return Own(PICKLED, items=60).sharding_filter()

    expected = oracle(graph(), 2, epochs=2)
    assert expected[0] == expected[1]
    for epoch in range(2):
        with make_loader(graph(), make_service(2, 2, every=1)) as loader:
            assert run_with_kills(loader, 2, [Kill(epoch, 10, 0, "SIGKILL")]) == expected


class Handles(IterDataPipe[Any]):
    """Methods of its own, of a list, of a helper that knows it."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.seen: list[Any] = []
        self.count = 0
        self.handlers = {"text": self.on_text}
        self.note = self.seen.append
        self.helper = Box("", owner=self, source=source)

    def on_text(self, item: Any) -> Any:
        self.count += 1
        return item, self.count

    def __iter__(self) -> Iterator[Any]:
        for item in self.helper.source:
            self.note(item)
            yield *self.handlers["text"](item), self.count, len(self.helper.owner.seen)


def test_L1_methods_are_bound_to_the_copy_and_helpers_read_its_inputs() -> None:
    loader = DataLoader2(Handles(IterableWrapper("ab").shuffle().set_shuffle(False)))
    assert [list(loader), list(loader)] == [[("a", 1, 1, 1), ("b", 2, 2, 2)]] * 2


class Counts:
    """A function that has state, which the node holds twice."""

    def __init__(self) -> None:
        self.count, self.buffer = 0, np.zeros(200_000)

    def __call__(self) -> int:
        self.count += 1
        self.buffer += 1
        return int(self.buffer[7])

    def state_dict(self) -> Any:
        return {"count": self.count, "buffer": self.buffer}

    def load_state_dict(self, state: Any) -> None:
        vars(self).update(state)


class Calls(IterDataPipe[Any]):
    def __init__(self) -> None:
        self.fn = Counts()
        self.other = SimpleNamespace(fn=self.fn)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(3):
            yield self.fn(), self.other.fn.count


def test_L2_a_function_with_state_is_copied_with_its_data_and_is_one() -> None:
    loader = DataLoader2(Calls())
    assert [list(loader), list(loader)] == [[(1, 1), (2, 2), (3, 3)]] * 2


# -- what stays -----------------------------------------------------------------------------------------------------


class Owner:
    """Closes what it has opened."""

    def __init__(self) -> None:
        self.closed = False

    def __del__(self) -> None:
        self.closed = True


class Reads(Dataset[int]):
    pass


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


class Runs:
    def __init__(self) -> None:
        self.stop, self.thread = False, threading.Thread()


def shared_memory() -> Any:
    return torch.zeros(3).share_memory_()


def written_by_nobody() -> Any:
    return np.frombuffer(b"abc", np.uint8)


@pytest.mark.parametrize("thing", [
    Owner, Reads, Refuses, Runs, object, threading.Lock, io.BytesIO, queue.Queue, tempfile.TemporaryFile,
    torch.nn.Flatten,
    lambda: print, lambda: Owner, lambda: (n for n in "ab"), lambda: random, lambda: random.random, shared_memory,
    written_by_nobody, lambda: torch.zeros(2, device="meta"), lambda: torch.zeros(1, requires_grad=True),
    lambda: IterableWrapper("ab"), lambda: torch.default_generator,
])  # fmt: skip
def test_what_has_an_owner_stays_and_what_holds_it_is_copied(thing: Any) -> None:
    kept = thing()
    root = SimpleNamespace(rows=[kept], own={"n": [1]}, again=kept)
    root.me = root
    own = copied(root)
    assert own.rows[0] is own.again is kept
    assert own is own.me is not root
    assert own.rows is not root.rows
    assert own.own == root.own
    assert own.own["n"] is not root.own["n"]


def test_memory_that_arrays_and_tensors_share_stays_shared() -> None:
    array = np.arange(12.0)
    root = SimpleNamespace(rows=array.reshape(3, 4), all=array, back=array[::-1], torch=torch.from_numpy(array[3:]))
    root.few = root.torch[:4].view(2, 2)
    own = copied(root)
    own.all[:] = np.arange(12.0) * 10
    assert own.rows.tolist() == own.all.reshape(3, 4).tolist()
    assert own.back.tolist() == own.all[::-1].tolist()
    assert own.torch.tolist() == own.all[3:].tolist()
    own.few += 1
    assert own.all[3:7].tolist() == [31, 41, 51, 61]
    assert array.tolist() == list(range(12))


# -- data -----------------------------------------------------------------------------------------------------------

MANY = 100_000


class Wrapped:
    def __init__(self, change: Any, **values: Any) -> None:
        self.change = change
        vars(self).update(values)

    def __iter__(self) -> Iterator[Any]:
        self.change(self)
        yield from range(3)


class Large(IterDataPipe[Any]):
    __init__ = Wrapped.__init__
    __iter__ = Wrapped.__iter__


def shuffle(node: Any) -> None:
    random.shuffle(node.rows)


def put(node: Any) -> None:
    node.rows[0] = "other"


def count(node: Any) -> None:
    node.helper.count += 1
    node.helper.small[0] += 1


def whole(loader: Any) -> list[Any]:
    return [list(loader), list(loader)]


@pytest.mark.parametrize("change", [shuffle, put, count])
def test_a_list_that_is_data_may_be_shuffled_and_what_holds_it_is_copied(change: Any) -> None:
    helper = SimpleNamespace(count=0, small=np.zeros(3), table={"large": np.zeros(MANY * 10)})
    rows = [{"n": number} for number in range(MANY)]
    helper.rows = rows
    node = Large(change, rows=rows, helper=helper, first=rows[0])
    assert whole(DataLoader2(node)) == [[0, 1, 2]] * 2
    assert rows[0] is node.first
    assert (helper.count, helper.small[0]) == (0, 0)
    own = copied(node)
    assert own.helper.rows is own.rows
    assert own.rows[0] is own.first is not node.first
    assert own.helper.table["large"] is helper.table["large"]


def in_place(node: Any) -> None:
    np.random.shuffle(node.rows)


def through_a_view(node: Any) -> None:
    node.head[:] = 7


def in_records(node: Any) -> None:
    for record in node.rows:
        record.seen = True


def in_rows(node: Any) -> None:
    for row in node.rows:
        row.append(1)


def of_an_array(kind: Any) -> Any:
    def values() -> dict[str, Any]:
        rows = kind(np.arange(MANY * 10))
        return {"rows": rows, "head": rows[:3]}

    return values


@pytest.mark.parametrize(("change", "values"), [
    (in_place, of_an_array(np.array)),
    (through_a_view, of_an_array(np.array)),
    (through_a_view, of_an_array(torch.from_numpy)),
    (in_records, lambda: {"rows": [SimpleNamespace(seen=False) for _ in range(MANY)]}),
    (in_rows, lambda: {"rows": tuple([n] for n in range(MANY))}),
])  # fmt: skip
@pytest.mark.parametrize("wraps", [False, True])
def test_L7_a_change_of_data_is_an_error_that_names_them(change: Any, values: Any, wraps: bool) -> None:
    def graph() -> Any:
        return IterableWrapper(Wrapped(change, **values())) if wraps else Large(change, **values())

    stream = iter(DataLoader2(graph()))
    with pytest.raises(
        GraphError, match=r"a pass has changed (Large|Wrapped).rows in place. It is larger than 1,000 kB"
    ):
        next(stream)
    with pytest.raises(GraphError, match=r"\.rows in place"):
        list(DataLoader2(graph()))


# -- torch's protocol -----------------------------------------------------------------------------------------------


def countdown(base: Any) -> Any:
    class Countdown(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.steps, self.left = [3], 0

        def reset(self) -> None:
            (self.left,) = self.steps

        def __iter__(self) -> Iterator[int]:
            while self.left:
                self.left -= 1
                yield self.left

    return Countdown()


@pytest.mark.parametrize("base", [torch.utils.data.IterDataPipe, IterDataPipe])
def test_L1_reset_is_called_before_each_pass(base: Any) -> None:
    loader = DataLoader2(countdown(base))
    assert whole(loader) == [[2, 1, 0]] * 2
    stream = iter(loader)
    assert next(stream) == 2
    other = DataLoader2(countdown(base))
    other.load_state_dict(loader.state_dict())
    assert list(other) == [1, 0]


class Tells:
    """Anything that is iterated or called, and says what it was told."""

    def __init__(self) -> None:
        self.told = Box("", part=-1)

    def __iter__(self) -> Iterator[Any]:
        yield from [(self.told.part, number) for number in range(2)]

    def __call__(self, item: Any) -> Any:
        return self.told.part, item


class TellingNode(IterDataPipe[Any]):
    __init__ = Tells.__init__
    __iter__ = Tells.__iter__


class Divides(TellingNode):
    def apply_sharding(self, parts: int, part: int) -> None:
        self.told.parts = parts, part

    def __iter__(self) -> Iterator[Any]:
        parts, part = self.told.parts
        yield from range(part, 6, parts)


def tell(graph: Any, info: Any) -> Any:
    held = graph.source if isinstance(graph.source, TellingNode) else None
    for name in ("iterable", "fn"):
        held = held or vars(graph.source).get(name)
    held.told.part = info.worker_id
    return graph


@pytest.mark.parametrize("make", [
    TellingNode, lambda: IterableWrapper(Tells()), lambda: IterableWrapper(range(4)).map(Tells())
])  # fmt: skip
def test_L1_what_init_fn_sets_is_the_shards_alone(make: Any) -> None:
    got = []
    for workers in (0, 1, 2):
        with make_loader(make().sharding_filter(), make_service(workers, 2, worker_init_fn=tell)) as loader:
            got.append(whole(loader))
    assert {part for part, _ in got[0][0]} == {0, 1}
    assert got[0] == got[1] == got[2]


def test_L1_what_apply_sharding_notes_in_an_object_is_the_passs_own() -> None:
    loader = DataLoader2(Divides(), reading_service=InProcessReadingService(num_shards=2))
    assert sorted(loader) == list(range(6))
