"""``on_disk_cache`` ... ``end_caching``: made once, by one, whole or not at all, in order, whatever was cached."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.sources import wait_until
from torchpipe import DataLoader2
from torchpipe.errors import GraphError
from torchpipe.formats.storage.writing import Lease
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


class Cache:
    """A part that notes in a file what it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def path(self, item: Any) -> str:
        return os.path.join(self.folder, f"{item}.txt")

    def make(self, item: Any) -> Any:
        with open(os.path.join(self.folder, "log"), "a") as log:
            log.write(f"{item}\n")
        return item, f"content of {item}".encode()

    def made(self) -> list[str]:
        log = Path(self.folder) / "log"
        return log.read_text().split() if log.exists() else []

    def of(self, source: Any, **options: Any) -> Any:
        part = source.on_disk_cache(self.path, **options).map(self.make)
        return part.end_caching(same_filepath_fn=True, skip_read=True)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_made_once_and_in_the_order_of_the_input(cache: Cache) -> None:
    expected = [cache.path(item) for item in range(5)]
    assert list(cache.of(IterableWrapper([3, 1]))) == [cache.path(3), cache.path(1)]
    for _ in range(2):
        assert list(cache.of(IterableWrapper(range(5)))) == expected
    assert cache.made() == ["3", "1", "0", "2", "4"]
    assert [Path(path).read_text() for path in expected] == [f"content of {item}" for item in range(5)]
    assert sorted(os.listdir(cache.folder)) == ["0.txt", "1.txt", "2.txt", "3.txt", "4.txt", "log"]


def test_L2_exact_resume(cache: Cache) -> None:
    check_node(lambda: cache.of(CountingSource(range(5)).shuffle()), pulls=lambda k: 5)
    check_node(lambda: _parts(cache, CountingSource(range(3))), pulls=lambda k: 3)
    assert sorted(cache.made()) == ["0", "1", "2", "3", "4"]


def _parts(cache: Cache, source: Any) -> Any:
    """Several files of an item."""
    begun = source.on_disk_cache(lambda item: cache.path(f"all-{item}"))
    lines = begun.flatmap(lambda item: [(f"{item}-{number}", [b"a", b"b"]) for number in range(item)])
    return lines.end_caching(filepath_fn=cache.path)


def test_several_files_of_an_item(cache: Cache) -> None:
    expected = [cache.path(name) for name in ("1-0", "2-0", "2-1")]
    assert list(_parts(cache, IterableWrapper(range(3)))) == expected
    assert {Path(path).read_text() for path in expected} == {"ab"}
    before = os.stat(expected[1]).st_mtime_ns
    assert list(_parts(cache, IterableWrapper(range(3)))) == expected
    assert os.stat(expected[1]).st_mtime_ns == before
    os.unlink(expected[2])
    assert list(_parts(cache, IterableWrapper(range(3)))) == expected
    assert os.stat(expected[1]).st_mtime_ns != before
    Path(cache.path("all-2") + ".torchpipe-list").write_text("[1")
    assert list(_parts(cache, IterableWrapper(range(3)))) == expected


def test_streams_text_and_paths_as_items(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("1\n2\u00e4\n")
    target = str(tmp_path / "deep" / "target")
    opened = IterableWrapper([str(tmp_path / "source")]).on_disk_cache(lambda _: target).open_files("b")
    assert list(opened.end_caching(filepath_fn=lambda _: target)) == [target]
    assert Path(target).read_text() == "1\n2\u00e4\n"
    text = IterableWrapper([str(tmp_path / "x")]).on_disk_cache().map(lambda path: (path, io.StringIO("text")))
    assert list(text.end_caching("t")) == [str(tmp_path / "x")]
    nothing = IterableWrapper(["y"]).on_disk_cache().filter(lambda _: False)
    assert list(nothing.end_caching()) == []
    assert sorted(os.listdir(tmp_path)) == ["deep", "source", "x"]  # what made nothing is tried again


def test_one_part_after_another_and_one_within_another(cache: Cache) -> None:
    first = cache.of(IterableWrapper(range(2)))
    second = (
        first.on_disk_cache(lambda path: path + ".2").open_files("b").end_caching(filepath_fn=lambda path: path + ".2")
    )
    assert list(second) == [cache.path(0) + ".2", cache.path(1) + ".2"]
    outer = IterableWrapper([7]).on_disk_cache(lambda item: cache.path(item) + ".outer")
    inner = cache.of(outer).open_files("b").end_caching(filepath_fn=lambda path: path + ".outer")
    assert list(inner) == [cache.path(7) + ".outer"]
    assert cache.made() == ["0", "1", "7"]
    forked = IterableWrapper([8]).on_disk_cache(cache.path).fork(2)
    zipped = forked[0].zip(forked[1]).map(lambda pair: (pair[0], [b"%d" % pair[1]]))
    assert [Path(path).read_text() for path in zipped.end_caching(same_filepath_fn=True)] == ["8"]


def test_hashes_and_checks(cache: Cache) -> None:
    hashes = {cache.path(item): hashlib.md5(f"content of {item}".encode()).hexdigest().upper() for item in range(2)}
    node = cache.of(IterableWrapper(range(2)), hash_dict=hashes, hash_type="md5")
    assert len(list(node)) == len(list(node)) == 2
    Path(cache.path(1)).write_text("damaged")
    list(node)
    assert (Path(cache.path(1)).read_text(), cache.made()) == ("content of 1", ["0", "1", "1"])
    wrong = cache.of(IterableWrapper([3]), hash_dict={cache.path(3): "0" * 64})
    with pytest.raises(RuntimeError, match="does not match") as caught:
        list(wrong)
    assert caught.value.__notes__ == [f"while making {cache.path(3)}"]
    with pytest.raises(RuntimeError, match="Unspecified hash"):
        list(cache.of(IterableWrapper([4]), hash_dict={}))
    assert sorted(os.listdir(cache.folder)) == ["0.txt", "1.txt", "log"]
    list(cache.of(IterableWrapper([0]), extra_check_fn=lambda path: False))
    assert cache.made()[-1] == "0"


def test_every_file_is_checked_also_of_another_name_and_of_several(cache: Cache) -> None:
    """A file that was cut or changed since it was made is no longer handed out, whatever it is called."""

    def part(checks: dict[str, Any]) -> Any:
        begun = IterableWrapper([2]).on_disk_cache(lambda item: cache.path(f"all-{item}"), **checks)
        several = begun.flatmap(lambda item: [(f"{item}-{number}", [b"content"]) for number in range(item)])
        return several.end_caching(filepath_fn=cache.path)

    def renamed(checks: dict[str, Any]) -> Any:
        begun = IterableWrapper([1]).on_disk_cache(lambda item: cache.path(f"all-{item}"), **checks)
        return begun.map(lambda item: (f"{item}-0", [b"content"])).end_caching(filepath_fn=cache.path)

    digest = hashlib.sha256(b"content").hexdigest()
    for make, names in ((renamed, ("1-0",)), (part, ("2-0", "2-1"))):
        paths = [cache.path(name) for name in names]
        hashes = dict.fromkeys(paths, digest)
        checks = [{"hash_dict": hashes}, {"extra_check_fn": lambda path: os.path.getsize(path) == 7}]
        for check in checks:
            assert list(make(check)) == paths
            for path in paths:
                Path(path).write_text("cont")
                for workers in (None, 2):
                    service = None if workers is None else MultiProcessingReadingService(workers)
                    with DataLoader2(make(check).sharding_filter(), reading_service=service) as loader:
                        assert list(loader) == paths
                    assert [Path(made).read_text() for made in paths] == ["content"] * len(paths)
        with pytest.raises(RuntimeError, match="Unspecified hash"):
            list(make({"hash_dict": {}}))
        with pytest.raises(RuntimeError, match="does not match"):
            list(make({"hash_dict": dict.fromkeys(paths, "0" * 64)}))


def test_L1_what_is_made_and_what_follows_does_not_depend_on_what_was_cached(tmp_path: Path) -> None:
    def run(epoch: int, items: int) -> list[Any]:
        files = IterableWrapper(range(4)).on_disk_cache(lambda item: str(tmp_path / str(item)))
        made = files.map(lambda item: (item, [f"{random.random()}"])).end_caching("t", same_filepath_fn=True)
        loader = DataLoader2(made.open_files().map(lambda pair: (pair[1].read(), random.random())))
        loader.seed(3)
        loader.set_epoch(epoch)
        return [pair for pair, _ in zip(loader, range(items))]

    expected = run(0, 4)
    assert run(0, 4) == expected
    for path in tmp_path.iterdir():
        path.unlink()
    run(2, 2)  # another epoch makes the first two of them
    assert run(0, 4) == expected


def test_L4_a_maker_that_was_killed_is_waited_for_by_nobody(cache: Cache) -> None:
    begun = Path(cache.folder) / "begun"

    def hang(item: Any) -> Any:
        def pieces() -> Iterator[bytes]:
            yield b"half of it"
            if not begun.exists():
                begun.touch()
                signal.pause()
            yield b", and the rest"

        return item, pieces()

    node = IterableWrapper([0]).on_disk_cache(cache.path).map(hang).end_caching(same_filepath_fn=True, timeout=60)
    child = os.fork()
    if child == 0:
        try:
            list(node)
        finally:
            os._exit(0)
    wait_until(begun.exists)
    node.set_timeout(0.01)
    with pytest.raises(TimeoutError, match=f"is being made by process {child} on"):
        list(node)
    node.set_timeout(60)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not os.path.exists(cache.path(0))
    assert [Path(path).read_text() for path in node] == ["half of it, and the rest"]
    assert sorted(os.listdir(cache.folder)) == ["0.txt", "begun"]  # nothing stale


def test_L1_several_processes_make_each_file_once(cache: Cache) -> None:
    source = IterableWrapper(range(40)).sharding_filter().map(lambda number: number // 8)
    with DataLoader2(cache.of(source), reading_service=MultiProcessingReadingService(2)) as loader:
        assert sorted(loader) == sorted(cache.path(number // 8) for number in range(40))
    assert sorted(cache.made()) == ["0", "1", "2", "3", "4"]
    assert len(os.listdir(cache.folder)) == 6


def test_a_lease_is_one_process_and_one_passes(tmp_path: Path) -> None:
    one, other = Lease(tmp_path / "x"), Lease(tmp_path / "x")
    assert one.take(1)
    assert not other.take(0.01)
    assert other.owner().startswith(f"process {os.getpid()} on ")
    one.give_back()
    assert other.take()
    os.unlink(other.path)
    other.give_back(remove=True)
    other.give_back(remove=True)
    assert os.listdir(tmp_path) == []


def test_L7_an_error_in_the_part_leaves_nothing_behind(cache: Cache) -> None:
    def fail(item: Any) -> Any:
        raise KeyError(item)

    with pytest.raises(KeyError):
        list(IterableWrapper([0]).on_disk_cache(cache.path).map(fail).end_caching())
    with pytest.raises(TypeError, match="pairs"):
        list(IterableWrapper([0]).on_disk_cache(cache.path).end_caching())
    with pytest.raises(TypeError, match="one path"):
        list(IterableWrapper([0]).on_disk_cache().end_caching())
    assert os.listdir(cache.folder) == []
    iterator = iterate(cache.of(IterableWrapper(range(3))))
    next(iterator)
    iterator.close()
    assert cache.made() == ["0"]


def test_wrong_graphs_are_refused(cache: Cache) -> None:
    source: Any = IterableWrapper(range(3))
    begun = source.on_disk_cache(cache.path)
    cases: list[Any] = [
        (lambda: source.end_caching(), RuntimeError, "Expected `OnDiskCacheHolder` existing"),
        (lambda: cache.of(source).end_caching(), RuntimeError, "can only be invoked once"),
        (lambda: list(begun), RuntimeError, r"Please call `end_caching\(\)`"),
        (lambda: begun.sharding_filter().end_caching(), GraphError, "divide the stream before or after"),
        (lambda: begun.sharding_round_robin_dispatch().end_caching(), GraphError, "divide the stream"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
