"""Remote files that are read ahead, and kept on disk: the same bytes as without, whatever servers and processes do."""

from __future__ import annotations

import fcntl
import gc
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest

from tests.servers import Page, WebServer, web_server
from torchpipe.formats.storage import ahead, retrying
from torchpipe.formats.storage.block_cache import BlockCache
from torchpipe.formats.storage.content import open_up_to
from torchpipe.formats.storage.remote import RemoteSource, open_url
from torchpipe.iter import TextLineReader
from torchpipe.node.fingerprint import fingerprint

fsspec.asyn.get_loop()  # its descriptors stay: no test is to be the one that opens them

MIB = 1 << 20
CONTENT = random.Random(0).randbytes(5 * MIB + 12_345)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(retrying, "_FIRST_WAIT_S", 0.001)
    with web_server() as running:
        running.pages["/a"] = Page(CONTENT, {"ETag": '"1"', "Accept-Ranges": "bytes"})
        yield running
        deadline = time.monotonic() + 20
        while ahead.budget()._taken:  # what is being opened is closed once it is
            assert time.monotonic() < deadline, "closed files hold bytes"
            gc.collect()  # those of passes that were left


@pytest.mark.parametrize("ahead_bytes", [0, 1, 300_000, 2 * MIB])
@pytest.mark.parametrize("cached", [False, True])
def test_whatever_is_read_and_sought_is_what_the_file_has(
    server: WebServer, tmp_path: Path, ahead_bytes: int, cached: bool
) -> None:
    options: dict[str, Any] = {"ahead_bytes": ahead_bytes}
    options |= {"cache_dir": tmp_path, "cache_bytes": 3 * MIB} if cached else {}
    draw = random.Random(1)
    for _ in range(2):
        server.pages["/a"].failures = [*[None] * 12, 503, *[None] * 12, {"after": 3000}] * 4
        with open_url(f"{server.address}/a", options=options) as file:
            for _ in range(12):
                at = file.seek(draw.randrange(len(CONTENT) + 10))
                for size in [draw.choice([1, 100, 70_000, 700_000]) for _ in range(draw.randrange(8))]:
                    assert file.read(size) == CONTENT[at : at + size]
                    at = file.tell()
                assert not (ahead_bytes or cached) or file.raw._held <= max(ahead_bytes, 2 * MIB if cached else 1 << 18)
            file.seek(0)
            assert file.read() == CONTENT
    if cached:
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.block")) <= 3 * MIB


def test_who_needs_little_asks_for_little(server: WebServer) -> None:
    with open_url(f"{server.address}/a", buffer_bytes=512) as file:
        for at in range(0, 5 * MIB, MIB):
            file.seek(at)
            file.read(8)
    assert 0 < server.ranged <= 5 * (1 << 16)
    server.ranged = 0
    with open_up_to(f"{server.address}/a", 2 * MIB) as file:
        file.seek(MIB)
        assert file.read(MIB + 10) == CONTENT[MIB : 2 * MIB + 10]
    assert MIB <= server.ranged <= MIB + (1 << 17)


@pytest.mark.parametrize("cached", [False, True])
def test_an_object_that_is_replaced_between_two_ranges_is_never_mixed(
    server: WebServer, tmp_path: Path, cached: bool
) -> None:
    options = (
        {"cache_dir": tmp_path, "cache_bytes": 99 * MIB, "ahead_bytes": 2 * MIB} if cached else {"ahead_bytes": MIB}
    )
    new = bytes(len(CONTENT))
    with open_url(f"{server.address}/a", options=options) as file:
        read = file.read(600_000)
        server.pages["/a"] = Page(new, {"ETag": '"2"', "Accept-Ranges": "bytes"})
        with pytest.raises(OSError, match="replaced while it was read"):
            while True:
                read += file.read(100_000)
    assert read == CONTENT[: len(read)]
    for _ in range(2):
        with open_url(f"{server.address}/a", options=options) as file:
            assert file.read() == new
    server.pages["/a"] = Page(CONTENT, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"})  # two in one second have it
    before = len(list(tmp_path.rglob("*.block")))
    with open_url(f"{server.address}/a", options=options) as file:
        assert file.read() == CONTENT
    assert len(list(tmp_path.rglob("*.block"))) == before


def test_an_error_is_raised_where_reading_comes_to_it_and_passes(server: WebServer) -> None:
    with open_url(f"{server.address}/a", options={"ahead_bytes": 2 * MIB}) as file:
        assert file.read(1 << 19) == CONTENT[: 1 << 19]
        server.pages["/a"].status = 403
        read = bytearray(CONTENT[: 1 << 19])
        with pytest.raises(Exception, match="403|Forbidden"):
            while True:
                read += file.read1(1 << 16)
        assert read == CONTENT[: len(read)]
        server.pages["/a"].status = 200
        assert file.read() == CONTENT[len(read) :]


def test_a_server_that_takes_no_ranges_is_read_in_sequence(server: WebServer) -> None:
    server.pages["/a"] = Page(CONTENT[:MIB], {"ETag": '"1"'}, ranges=False)
    with open_url(f"{server.address}/a") as file:
        assert file.read() == CONTENT[:MIB]


def test_what_a_chain_of_fsspec_keeps_is_read_from_there(server: WebServer, tmp_path: Path) -> None:
    options = {"blockcache": {"cache_storage": str(tmp_path)}}
    for asks in (True, False):
        server.ranged = 0
        with open_url(f"blockcache::{server.address}/a", options=options) as file:
            assert file.read() == CONTENT
        assert bool(server.ranged) is asks


def test_a_chain_of_fsspec_is_not_opened_ahead(files: list[str], server: WebServer, tmp_path: Path) -> None:
    options = {"filecache": {"cache_storage": str(tmp_path)}}  # whose notes are for one thread
    urls = [f"filecache::{file}" for file in files]
    assert not any(RemoteSource(url, options).can_be_ahead() for url in urls)
    stream = iter(TextLineReader(urls, storage_options=options))
    next(stream)
    assert {path for path, _ in server.requests} == {"/0.txt"}
    assert len(list(stream)) == 239


def test_threads_that_read_files_at_once_and_files_that_are_left_open(server: WebServer) -> None:
    found: list[bool] = []

    def read(part: int) -> None:
        with open_url(f"{server.address}/a", options={"ahead_bytes": MIB}) as file:
            file.seek(part * 300_000)
            found.append(file.read() == CONTENT[part * 300_000 :])

    threads = [threading.Thread(target=read, args=(part,)) for part in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 12
    left = open_url(f"{server.address}/a")
    left.read(1 << 19)
    del left  # in mid-read, and never closed


def test_a_forked_child_goes_on_where_the_file_stood(server: WebServer) -> None:
    with open_url(f"{server.address}/a") as file:
        file.read(1 << 19)  # much of the rest is being asked for
        in_child(lambda: bool(file.read() == CONTENT[1 << 19 :]))
        assert file.read() == CONTENT[1 << 19 :]


@pytest.fixture
def files(server: WebServer) -> list[str]:
    for number in range(6):
        lines = b"".join(b"%d %06d\n" % (number, line) for line in range(40))
        server.pages[f"/{number}.txt"] = Page(lines, {"ETag": '"1"', "Accept-Ranges": "bytes"})
    return [f"{server.address}/{number}.txt" for number in range(6)]


def test_L2_a_state_is_the_same_whatever_is_open_ahead(files: list[str], server: WebServer, tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {"ahead_bytes": 0}, {}, {"cache_dir": tmp_path, "cache_bytes": 2 * MIB}, {"ahead_bytes": 70_000},
    ]  # fmt: skip
    graphs = [
        TextLineReader(files, storage_options=each).shard_pieces(shuffle=False, piece_bytes=300) for each in options
    ]
    assert len({fingerprint(graph) for graph in graphs}) == 1
    streams = [iter(graph) for graph in graphs]
    expected = sorted(f"{number} {line:06}" for number in range(6) for line in range(40))
    found: list[str] = []
    while True:
        server.pages["/3.txt"].failures = [503]
        states = [stream.state_dict() for stream in streams]
        assert all(state == states[0] for state in states)
        if len(found) % 31 == 0:
            again = iter(graphs[len(found) % 4])
            again.load_state_dict(states[(len(found) + 1) % 4])
            assert sorted(found + list(again)) == expected
        items = {next(stream, "") for stream in streams}
        assert len(items) == 1
        found += items
        if "" in items:
            break
    assert sorted(found[:-1]) == expected


def test_the_next_files_are_opened_while_one_is_read_and_closed_with_the_pass(
    files: list[str], server: WebServer
) -> None:
    server.pages["/4.txt"] = Page(status=404)
    stream = iter(TextLineReader(files))
    assert next(stream) == "0 000000"
    deadline = time.monotonic() + 20
    while {path for path, _ in server.requests} < {f"/{number}.txt" for number in range(5)}:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert "/5.txt" not in {path for path, _ in server.requests}
    read = ["0 000000"]
    with pytest.raises(FileNotFoundError):  # what was opened in vain is an error at its place
        for line in stream:
            read.append(line)
    assert read == [f"{number} {line:06}" for number in range(4) for line in range(40)]
    left = iter(TextLineReader(files))
    next(left)
    del left


def test_a_forked_child_waits_for_nothing_that_its_parent_opens(files: list[str]) -> None:
    stream = iter(TextLineReader(files))
    rest = [next(stream)]
    in_child(lambda: len(list(stream)) == 239)
    assert len(rest + list(stream)) == 240


def in_child(holds: Callable[[], bool]) -> None:
    assert os.waitpid(forked(holds), 0)[1] == 0


def forked(holds: Callable[[], bool]) -> int:
    """The id of a child that ends with 0 if it ``holds``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: that is the case
        pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            os._exit(0 if holds() else 1)
        finally:
            os._exit(2)
    return pid


def of_number(start: int, stop: int) -> bytes:
    return b"".join(bytes([at // MIB]) * min(MIB, stop - at) for at in range(start, stop, MIB))


def fill(folder: Path, ready: Any) -> None:
    """Read blocks without end, more than there is room for."""
    cache = BlockCache(str(folder), 10 * MIB)
    for turn in itertools.count():
        for at in range(0, 16 * MIB, 2 * MIB):
            assert cache.read_through("key", at, at + 2 * MIB, of_number) == of_number(at, at + 2 * MIB)
        if not turn:
            ready.set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_cache_that_processes_share_survives_their_deaths(tmp_path: Path) -> None:
    (tmp_path / "others.block").write_text("of another program")
    forking = multiprocessing.get_context("fork")
    for wait_s in (0.0, 0.01, 0.02, 0.03):
        ready = [forking.Event(), forking.Event()]
        writers = [forking.Process(target=fill, args=(tmp_path, each), daemon=True) for each in ready]
        for writer in writers:
            writer.start()
        assert all(each.wait(20) for each in ready)
        writers[0].join(wait_s)
        for writer in writers:
            writer.kill()
            writer.join()
            assert writer.exitcode == -signal.SIGKILL
            writer.close()
    blocks = list(tmp_path.rglob("*.block"))
    assert 0 < sum(path.stat().st_size for path in blocks) <= 10 * MIB
    for torn, path in zip((b"", b"torn", blocks[1].read_bytes()[:-1]), blocks[1:]):
        path.write_bytes(torn)
    old = blocks[1].parent / "left.new"
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache = BlockCache(str(tmp_path), 10 * MIB)
    for at in range(0, 16 * MIB, MIB):
        assert cache.read_through("key", at, at + MIB, of_number) == of_number(at, at + MIB)
    assert not old.exists()
    assert (tmp_path / "others.block").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in which there is room for five blocks; for none, where nobody may mount."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(tmp_path)]
    if not subprocess.run(mount, check=False, capture_output=True).returncode:
        try:
            yield tmp_path
        finally:
            subprocess.run(["umount", tmp_path], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        yield tmp_path
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_old_blocks_then_the_cache_and_never_the_data(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = BlockCache(str(small_disk), 99 * MIB)
    for at in range(12):
        assert cache.read_through("key", at * MIB, at * MIB + MIB, of_number) == bytes([at]) * MIB
        assert len(list(small_disk.rglob("*.block"))) <= 5
    assert bool(caplog.records) is not os.path.ismount(small_disk)
    with (
        suppress(OSError),
        open(small_disk / "others", "wb", buffering=0) as others,
    ):  # and another program takes the rest
        for path in small_disk.rglob("*.block"):
            path.unlink()
        while others.write(bytes(1 << 16)):
            pass
    for at in range(20, 24):
        assert cache.read_through("key", at * MIB, at * MIB + MIB, of_number) == bytes([at]) * MIB
    (record,) = caplog.records
    assert str(small_disk) in record.getMessage()


def test_a_folder_may_be_deleted_at_any_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = BlockCache(str(tmp_path / "of"), 9 * MIB)
    ended = threading.Event()

    def delete() -> None:
        while not ended.is_set():
            shutil.rmtree(tmp_path / "of", ignore_errors=True)

    deleting = threading.Thread(target=delete)
    deleting.start()
    try:
        for at in range(60):
            assert cache.read_through("key", at * MIB, at * MIB + MIB, of_number) == bytes([at]) * MIB
    finally:
        ended.set()
        deleting.join()
    cache.read_through("key", 0, MIB, of_number)
    assert list(tmp_path.rglob("*.block"))
    assert not caplog.records


def test_a_fork_while_a_block_is_added_leaves_nothing_locked(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 9 * MIB)
    reading, writing = os.pipe()
    with cache._locked():
        child = forked(lambda: os.close(writing) or not os.read(reading, 1))  # until this process closes its end
    os.close(reading)
    with open(tmp_path / "torchpipe-blocks" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_that_may_begin_no_thread_reads_by_itself(server: WebServer) -> None:
    def reads() -> bool:
        with open_url(f"{server.address}/a", options={"ahead_bytes": 0}) as file:
            file.read(1)  # fsspec's own thread begins
        if not os.getuid():
            os.setuid(54_321)  # root may begin any number
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        with open_url(f"{server.address}/a") as file:
            return bool(file.read() == CONTENT)

    in_child(reads)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"ahead_bytes": -1}, ValueError, "ahead_bytes"),
        ({"ahead_bytes": "32MB"}, TypeError, "ahead_bytes"),
        ({"cache_dir": "{tmp}/x"}, ValueError, "cache_dir and cache_bytes together"),
        ({"cache_bytes": 1 << 30}, ValueError, "cache_dir and cache_bytes together"),
        ({"cache_dir": 7, "cache_bytes": 1 << 30}, TypeError, "cache_dir must be a path"),
        ({"cache_dir": "{tmp}/x", "cache_bytes": 1000}, ValueError, "blocks of 1048592 bytes"),
        ({"cache_dir": "{tmp}/x", "cache_bytes": 1 << 20}, ValueError, "would hold nothing"),
        ({"cache_dir": "s3://bucket/x", "cache_bytes": 1 << 30}, ValueError, "a folder on a local disk"),
        ({"cache_dir": "", "cache_bytes": 1 << 30}, ValueError, "a folder on a local disk"),
        ({"cache_dir": "{tmp}/file", "cache_bytes": 1 << 30}, OSError, "cache_dir='.*file' cannot be used"),
        ({"cache_dir": "/proc/x", "cache_bytes": 1 << 30}, OSError, "cache_dir='/proc/x' cannot be used"),
    ],
)
def test_options_that_cannot_be_are_refused_when_the_graph_is_made(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    (tmp_path / "file").write_text("")
    given = {
        name: value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value
        for name, value in options.items()
    }
    with pytest.raises(kind, match=words):
        TextLineReader("s3://bucket/a.txt", storage_options=given)
