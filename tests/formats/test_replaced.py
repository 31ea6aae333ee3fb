"""A remote file that another one of the same size replaces is never mixed with it, however it is read."""

from __future__ import annotations

import asyncio
from typing import Any

import fsspec.asyn
import pytest

from tests.servers import Page, s3_server, web_server
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.formats.storage.web import open_web
from torchpipe.iter import IterableWrapper

# Its descriptors stay, and a thread that looks up names: no test is to be the one that begins them
fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.to_thread, int)

ROWS = 120_000
OLD, NEW = (b"".join(b"%s %06d\n" % (name, n) for n in range(ROWS)) for name in (b"old", b"new"))


def graph(url: str, **options: Any) -> Any:
    return IterableWrapper([url]).read_lines(storage_options=options)


def test_a_file_on_the_web_is_not_mixed_and_a_resume_knows_it() -> None:
    with web_server() as server:
        for headers in ({"ETag": '"1"'}, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}):
            server.pages["/a.txt"] = Page(OLD, headers)
            loader = DataLoader2(graph(f"{server.address}/a.txt"))
            stream = iter(loader)
            assert next(stream) == "old 000000"
            state = loader.state_dict()
            later = {"ETag": '"2"'} if "ETag" in headers else {"Last-Modified": "Tue, 02 Jan 2024 00:00:00 GMT"}
            server.pages["/a.txt"] = Page(NEW, later)
            again = DataLoader2(graph(f"{server.address}/a.txt"))
            again.load_state_dict(state)
            with pytest.raises(
                StateError, match=r"a.txt has changed since the state was saved: it is as long, and has"
            ):
                list(again)
            del stream


@pytest.mark.parametrize("ranges", [True, False])
def test_a_stream_that_goes_on_with_another_file_is_an_error(ranges: bool) -> None:
    with web_server() as server:
        page = server.pages["/a.txt"] = Page(OLD, {"ETag": '"1"'}, ranges=ranges, failures=[{"after": 600_000}])
        file = open_web(f"{server.address}/a.txt")
        file.read(300_000)
        page.content, page.headers = NEW, {"ETag": '"2"'}
        with pytest.raises(OSError, match=r"a.txt has the version \"2\", not \"1\": it was replaced"):
            file.read()
        file.close()


def test_a_file_on_s3_is_not_mixed_and_a_resume_knows_it(monkeypatch: Any) -> None:
    import s3fs

    with s3_server(monkeypatch) as address:
        system = s3fs.S3FileSystem(endpoint_url=address)
        system.mkdir("bucket")
        system.pipe("s3://bucket/a.txt", OLD)
        loader = DataLoader2(graph("s3://bucket/a.txt", default_block_size=1 << 19))
        stream = iter(loader)
        assert next(stream) == "old 000000"
        state = loader.state_dict()
        system.pipe("s3://bucket/a.txt", NEW)
        with pytest.raises(OSError, match="replaced while it was read"):
            list(stream)
        s3fs.S3FileSystem.clear_instance_cache()
        again = DataLoader2(graph("s3://bucket/a.txt"))
        again.load_state_dict(state)
        with pytest.raises(StateError, match="it is as long, and has another version"):
            list(again)
