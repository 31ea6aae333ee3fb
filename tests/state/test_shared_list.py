"""``shared_list``: every item comes back as it was, in every process; nothing of it is sent, and nothing is left."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from torchpipe import DataLoader, DataLoader2, shared_list
from torchpipe.iter import IterableWrapper, PathList
from torchpipe.map import SequenceWrapper
from torchpipe.state.shared_list import SharedList

SPAWN = multiprocessing.get_context("spawn")
PATHS = [f"/data/{number % 7}/é{number:05d}.jpg" for number in range(10_000)]
OTHERS: list[Any] = [
    *("", "\udcff€\0", "\xff", b"", b"ab\xff", None, True, 1.5, float("inf"), -0.0, 2**70, -(2**63)),
    *([], (), {}, ("a.jpg", 3), [(1, (2, [b"3"]))], {"path": "a", "box": (1, 2)}, {1: 2, (1, 2): None}),
    *({"\0tuple": [1]}, {"\0bytes": "YQ==", "b": 1}),
]
LISTS: dict[str, list[Any]] = {
    "texts": PATHS,
    "numbers": list(range(-5000, 5000)),
    "numbers until the last chunk": [*range(9000), 2**63],
    "all kinds": [*OTHERS, *PATHS, *OTHERS],
    "rows": [(path, number) for number, path in enumerate(PATHS)],
    "none": [],
}


def typed(value: Any) -> Any:
    """Tells 1 from True and 1.0, and a tuple from a list."""
    if isinstance(value, dict):
        return [(typed(key), typed(part)) for key, part in value.items()]
    return (type(value), [typed(part) for part in value] if isinstance(value, list | tuple) else repr(value))


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("kept", [False, True], ids=["anonymous", "in a file"])
def test_items_come_back_as_they_were(name: str, kept: bool, tmp_path: Path) -> None:
    items = LISTS[name]
    made = shared_list(iter(items), path=tmp_path / "list" if kept else None)
    assert typed(list(made)) == typed(items)
    assert len(made) == len(items)
    for part in (slice(3, 9_500, 7), slice(None, None, -1), slice(5, 5)):
        assert typed(list(made[part])) == typed(items[part])
        assert isinstance(made[part], SharedList)
    if items:
        assert typed([made[0], made[-1], made[np.int64(len(items) // 2)], made[2:][-1]]) == typed(
            [items[0], items[-1], items[len(items) // 2], items[2:][-1]]
        )
        held = made[0]
        if isinstance(held, list | dict):
            held.clear()
            assert typed(made[0]) == typed(items[0])
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError, match="out of range"):
            made[index]
    assert copy.deepcopy(made) is made
    assert made == shared_list(items)
    assert made != shared_list([*items, 1])
    assert len(pickle.dumps(made)) < 300 + len(str(tmp_path))
    if kept:
        assert list(shared_list(path=tmp_path / "list")) == items
        assert os.listdir(tmp_path) == ["list"]


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        (["a", np.int64(3)], TypeError, "item 1 of a shared_list.*int64"),
        ([1] * 5000 + [{"a": [object()]}], TypeError, "item 5000 of.*builtins.object"),
        ([10**5000], ValueError, "item 0 of a shared_list.*digits"),
        ([np.str_("a")], TypeError, "item 0"),
        ({"a", "b"}, TypeError, "an order"),
        ("text", TypeError, "iterable"),
        (None, TypeError, "path="),
        (3, TypeError, "iterable"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_position(
    items: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        shared_list(items)
    if items is not None:
        with pytest.raises(error, match=message):
            shared_list(items, path=tmp_path / "list")
        assert not os.listdir(tmp_path)


def test_a_file_that_is_no_list_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.bin"
    path.write_bytes(b"of somebody's")
    for call in (lambda: shared_list(path=path), lambda: shared_list(["a"], path=path)):
        with pytest.raises(ValueError, match="no list that shared_list has written"):
            call()
    assert path.read_bytes() == b"of somebody's"
    assert os.listdir(tmp_path) == ["mine.bin"]

    def breaks() -> Iterator[str]:
        yield "a"
        raise KeyError("mine")

    with pytest.raises(KeyError):
        shared_list(breaks(), path=tmp_path / "list")
    before = shared_list(["old"], path=tmp_path / "list")
    whole = (tmp_path / "list").read_bytes()
    sent = pickle.dumps(before)
    shared_list(["new", "newer"], path=tmp_path / "list")
    assert before[0] == "old"
    assert list(shared_list(path=tmp_path / "list")) == ["new", "newer"]
    assert pickle.loads(sent)[0] == "old"  # it is open here
    del before
    with pytest.raises(FileNotFoundError, match="another one is"):
        pickle.loads(sent)
    (tmp_path / "list").write_bytes(whole[:-8])
    with pytest.raises(ValueError, match="not a whole one"):
        shared_list(path=tmp_path / "list")
    with pytest.raises(FileNotFoundError):
        shared_list(path=tmp_path / "none")
    with pytest.raises(ValueError, match="must be a local file"):
        shared_list(["a"], path="s3://bucket/list")


def hold(connection: Any, made: Any) -> None:
    """Answers with pickles of what it was given, and with its items, until it is told to end."""
    made = shared_list(PATHS) if made is None else made
    while (asked := connection.recv()) is not None:
        connection.send(pickle.dumps(made[asked]) if isinstance(asked, slice) else made[asked])


def start(made: Any) -> tuple[Any, Any]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=hold, args=(theirs, made))
    process.start()
    theirs.close()
    return process, ours


def test_who_has_the_list_keeps_it_and_nothing_stays_behind_a_kill() -> None:
    """It is made in one process, goes through a second one, and is read when both were killed."""
    owner, to_owner = start(None)
    to_owner.send(slice(2, None))
    sent = to_owner.recv()
    held = pickle.loads(sent)
    second, to_second = start(held)  # by the one that it has come to
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    assert pickle.loads(sent) == held  # it is open here
    to_second.send(5)
    assert to_second.recv() == PATHS[7]
    assert held[5] == PATHS[7]
    to_second.send(slice(1, None))
    from_second = pickle.loads(to_second.recv())
    os.kill(second.pid, signal.SIGKILL)
    second.join()
    assert from_second[0] == PATHS[3]
    assert list(pickle.loads(pickle.dumps(from_second))) == PATHS[3:]
    del held, from_second
    with pytest.raises(FileNotFoundError, match="has ended, or has let go of it"):
        pickle.loads(sent)
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("torchpipe")]
    to_owner.close(), to_second.close()


class Pictures(Dataset[Any]):
    """Kills the worker that makes item 23, once."""

    def __init__(self, paths: Any, once: Path | None = None) -> None:
        self.paths = paths
        self.once = once

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        if index == 23 and self.once is not None and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        path, label = self.paths[index]
        return os.path.basename(path), label


ROWS = [(path, number) for number, path in enumerate(PATHS[:40])]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_L4_a_dataset_with_a_shared_list_survives_its_workers(method: str, tmp_path: Path) -> None:
    wanted = list(DataLoader(Pictures(ROWS), batch_size=None))
    dataset = Pictures(shared_list(ROWS), tmp_path / "once")
    with DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method) as loader:
        assert list(loader) == wanted
        assert (tmp_path / "once").exists()


@pytest.mark.parametrize(
    "graph_of",
    [
        lambda items: IterableWrapper(items).sharding_filter(),
        lambda items: SequenceWrapper(items).shuffle().sharding_filter(),
        lambda items: IterableWrapper(items).shuffle(buffer_size=5).sharding_filter().enumerate(),
    ],
)
def test_L2_a_run_with_a_list_goes_on_with_a_shared_one(graph_of: Any) -> None:
    """And the other way round; of other items, it does not."""
    items = [{"path": path, "n": number} for path, number in ROWS]
    with DataLoader2(graph_of(items)) as loader:
        loader.seed(3)
        wanted = list(loader)
    made = shared_list(items)
    for first, then in ((items, made), (made, items)):
        for at in (0, 1, 17, 39):
            with DataLoader2(graph_of(first)) as loader, DataLoader2(graph_of(then)) as other:
                loader.seed(3)
                iterator = iter(loader)
                begun = [next(iterator) for _ in range(at)]
                other.load_state_dict(loader.state_dict())
                assert begun + list(other) == wanted
    with DataLoader2(graph_of(made)) as loader, DataLoader2(graph_of(shared_list(items[:-1]))) as less:
        state = loader.state_dict()
        with pytest.raises(Exception, match=r"list\[39\]"):
            less.load_state_dict(state)


def test_a_list_of_paths_stays_shared(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).touch()
    made = shared_list(str(tmp_path / name) for name in ("b.txt", "a.txt"))
    node = PathList(made)
    assert node.paths is made
    assert list(node) == list(made)
    found: Any = PathList(shared_list([str(tmp_path / "{b,a}.txt"), str(tmp_path / "c*")])).paths
    assert isinstance(found, SharedList)
    assert list(found) == [str(tmp_path / f"{name}.txt") for name in "bac"]


def page(number: int, names: Any) -> Any:
    return names[5 * number : 5 * number + 5]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kept", [False, True], ids=["anonymous", "in a file"])
def test_a_process_has_a_list_once_however_often_it_is_unpickled(kept: bool, tmp_path: Path) -> None:
    made = shared_list(PATHS, path=tmp_path / "list" if kept else None)
    before = descriptors()
    copies = [pickle.loads(pickle.dumps(made[number:])) for number in range(100)]
    assert [copy[0] for copy in copies] == PATHS[:100]
    assert descriptors() == before
    del made, copies
    assert descriptors() < before


def run_of_pages() -> Any:
    """Items are parts of a list, which a buffer and so a state hold."""
    return IterableWrapper(range(40)).map(partial(page, names=shared_list(PATHS[:200]))).shuffle(buffer_size=7)


def save_and_die(path: Path) -> None:
    with DataLoader2(run_of_pages()) as loader:
        loader.seed(3)
        iterator = iter(loader)
        begun = [list(next(iterator)) for _ in range(11)]
        path.write_bytes(pickle.dumps((begun, loader.state_dict())))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore::torchpipe.errors.OpaqueStateWarning")
def test_a_state_that_holds_parts_of_a_list_is_loaded_by_a_later_run(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=save_and_die, args=(tmp_path / "state",))
    process.start(), process.join()
    begun, state = pickle.loads((tmp_path / "state").read_bytes())
    with DataLoader2(run_of_pages()) as loader:
        loader.load_state_dict(state, allow_pickle=True)
        got = begun + [list(item) for item in loader]
    assert sorted(got) == sorted(PATHS[first : first + 5] for first in range(0, 200, 5))
