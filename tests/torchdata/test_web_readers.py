"""``read_from_gdrive`` and ``read_from_remote``, from a server of the tests'."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.iter.clouds.test_web_readers import urls
from tests.servers import Page, WebServer, web_server
from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as running:
        running.pages["/a.txt"] = Page(b"1\n2\n3\n4\n", {"ETag": '"1"'})
        running.pages["/b.txt"] = Page(b"b\n")
        yield running


def test_L2_exact_resume_at_a_place_in_a_file(server: WebServer) -> None:
    addresses = urls(server, "a.txt", "b.txt")
    check_node(lambda: CountingSource(addresses).read_from_http().readlines(), pulls=lambda k: 2)


def test_google_drive(server: WebServer) -> None:
    file = {"Content-Disposition": 'attachment; filename="x.bin"'}
    server.pages |= {
        "/small": Page(b"small", file),
        "/large?id=1": Page(b"<html><title>Google Drive - Virus scan warning</title>"),
        "/large?id=1&confirm=t": Page(b"large", file),
        "/cookie?id=1": Page(b"page", {"Set-Cookie": "download_warning_1=abc; Path=/"}),
        "/cookie?id=1&confirm=abc": Page(b"old", file),
        "/quota": Page(b"<title>Google Drive - Quota exceeded</title>"),
        "/view": Page(b"<html>"),
    }
    found = IterableWrapper(urls(server, "small", "large?id=1", "cookie?id=1")).read_from_gdrive(timeout=9)
    assert [(name, stream.read()) for name, stream in found] == [
        ("x.bin", b"small"),
        ("x.bin", b"large"),
        ("x.bin", b"old"),
    ]
    with pytest.raises(RuntimeError, match="quota was exceeded"):
        list(IterableWrapper(urls(server, "quota")).read_from_gdrive())
    with pytest.raises(RuntimeError, match="gives no file"):
        list(IterableWrapper(urls(server, "view")).read_from_gdrive())
    proxied = IterableWrapper(["http://drive.google.com/small"]).read_from_remote(proxies={"http": server.address})
    server.pages["http://drive.google.com/small"] = server.pages["/small"]
    assert [(name, stream.read()) for name, stream in proxied] == [("x.bin", b"small")]
    others = IterableWrapper(urls(server, "b.txt")).read_from_remote()
    assert [(name, stream.read()) for name, stream in others] == [(f"{server.address}/b.txt", b"b\n")]
