"""Readers of objects in a bucket that are read ahead and cached: workers that are killed, and buckets that refuse."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest

from reading_services import MultiProcessingReadingService
from tests.laws.executors import pids
from tests.servers import Page, s3_server, web_server
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import TextLineReader, WebDatasetReader

# Its descriptors stay, and a thread that looks up names: no test is to be the one that begins them
fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.to_thread, int)

SHARDS = 5
OF_EACH = 6


def shard(number: int) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for sample in range(OF_EACH):
            for ending, data in (("cls", str(number * OF_EACH + sample).encode()), ("bin", bytes(150_000))):
                info = tarfile.TarInfo(f"{sample}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


@pytest.fixture(scope="module")
def urls() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as monkeypatch, s3_server(monkeypatch) as address:
        import s3fs

        system = s3fs.S3FileSystem(endpoint_url=address, key="test", secret="test")
        system.mkdir("ahead")
        for number in range(SHARDS):
            system.pipe(f"ahead/{number}.tar", shard(number))
        yield f"s3://ahead/{{0..{SHARDS - 1}}}.tar"


def number_of(sample: dict[str, Any]) -> int:
    assert sample["bin"] == bytes(150_000)
    return int(sample["cls"])


def graph(urls: str, **options: Any) -> Any:
    return WebDatasetReader(urls, storage_options=options).shard_pieces().map(number_of)


def test_L2_exact_resume_at_every_sample(urls: str, tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [{"ahead_bytes": 300_000}, {"cache_dir": tmp_path, "cache_bytes": 2 << 20}, {}]
    stream = iter(graph(urls, **options[0]))
    states = []
    found = []
    for item in stream:
        found.append(item)
        states.append(stream.state_dict())
    assert sorted(found) == list(range(SHARDS * OF_EACH))
    for count, state in enumerate(states, 1):
        again = iter(graph(urls, **options[count % 3]))
        again.load_state_dict(state)
        assert list(islice(again, 1 + OF_EACH)) == found[count : count + 1 + OF_EACH]
        again.close()


def test_L4_workers_that_are_killed_in_mid_read_lose_and_repeat_nothing(urls: str, tmp_path: Path) -> None:
    with DataLoader2(graph(urls), reading_service=InProcessReadingService(num_shards=2)) as alone:
        alone.seed(3)
        expected = list(alone)
    assert sorted(expected) == list(range(SHARDS * OF_EACH))
    node = graph(urls, ahead_bytes=1 << 20, cache_dir=tmp_path, cache_bytes=3 << 20)
    with DataLoader2(node, reading_service=MultiProcessingReadingService(2)) as loader:
        loader.seed(3)
        stream = iter(loader)
        got: list[int] = []
        for count in (1, 7, 9):
            got += islice(stream, count)
            os.kill(pids(loader)[0], signal.SIGKILL)
        assert got + list(stream) == expected
    assert not [path for path in tmp_path.rglob("*.block") if path.stat().st_size > (1 << 20) + 16]


def test_what_was_replaced_is_an_error_once_and_a_pass_that_begins_later_reads_what_is_there(urls: str) -> None:
    import s3fs

    others = s3fs.S3FileSystem(skip_instance_cache=True)  # as another machine writes
    others.mkdir("replaced")

    def write(word: str, count: int) -> None:
        for number in range(count):
            others.pipe(f"replaced/{number}.txt", f"{word} {number:09}\n".encode() * 30_000)

    write("old", 1)
    graph = TextLineReader("s3://replaced/*.txt", storage_options={"ahead_bytes": 65_536})
    stream = iter(graph)
    next(stream)
    write("new", 2)
    with pytest.raises(OSError, match="replaced while it was read") as caught:
        list(stream)
    assert not any("in a row" in note for note in caught.value.__notes__)  # it is not tried again
    for each in (graph, graph):
        assert set(each) == {"new 000000000"}
        write("new", 2)  # as large, and with other times
    assert len(list(TextLineReader("s3://replaced/*.txt"))) == 60_000


def test_L7_a_bucket_without_permission_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'
    with web_server() as server:
        for path in ("/closed/a.txt", "/closed/b.txt"):
            server.pages[path] = Page(refusal, {"Content-Type": "application/xml"}, status=403)
        options = {"endpoint_url": server.address, "key": "k", "secret": "s"}
        with pytest.raises(PermissionError) as caught:
            list(TextLineReader(["s3://closed/a.txt", "s3://closed/b.txt"], storage_options=options))
        assert any("s3://closed/a.txt" in note for note in caught.value.__notes__)
