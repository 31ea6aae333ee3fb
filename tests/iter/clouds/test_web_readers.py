"""``read_from_http``, ``read_from_gdrive``, ``read_from_remote``, and reading that is tried again: on a real server."""

from __future__ import annotations

import io
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPMessage
from typing import Any

import fsspec.asyn
import pytest

from tests.servers import Page, WebServer, web_server
from torchpipe.formats.storage import retrying, web
from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node

fsspec.asyn.get_loop()  # its descriptors stay: no test is to be the one that opens them

CONTENT = b"".join(b"%06d\n" % number for number in range(100_000))  # more than any buffer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(retrying, "_FIRST_WAIT_S", 0.001)
    with web_server() as running:
        running.pages["/a.txt"] = Page(CONTENT, {"ETag": '"1"'})
        running.pages["/b.txt"] = Page(b"b\n")
        yield running


def urls(server: WebServer, *names: str) -> list[str]:
    return [f"{server.address}/{name}" for name in names]


def test_L2_exact_resume_at_a_place_in_a_file(server: WebServer) -> None:
    server.pages["/a.txt"] = Page(b"1\n2\n3\n4\n")
    addresses = urls(server, "a.txt", "b.txt")
    check_node(lambda: CountingSource(addresses).read_from_http())
    check_node(lambda: CountingSource(addresses).read_from_http().flatmap(lambda pair: pair[1]), pulls=lambda k: 2)


def test_options(server: WebServer) -> None:
    (address,) = urls(server, "b.txt")
    node = IterableWrapper([address]).read_from_http(
        9.0, params={"q": [1, 2]}, auth=("me", "secret"), headers={"X-Test": "yes"}, cookies={"c": "d"}, proxies={}
    )
    server.pages["/b.txt?q=1&q=2"] = Page(b"asked")
    assert [(url, stream.read()) for url, stream in node] == [(address, b"asked")]
    _, headers = server.requests[-1]
    assert (headers["X-Test"], headers["Cookie"], headers["Authorization"]) == ("yes", "c=d", "Basic bWU6c2VjcmV0")
    assert len(node) == 1
    server.pages["/moved"] = Page(status=302, headers={"Location": address})
    assert [stream.read() for _, stream in IterableWrapper(urls(server, "moved")).read_from_http()] == [b"b\n"]
    with pytest.raises(urllib.error.HTTPError, match="302"):
        list(IterableWrapper(urls(server, "moved")).read_from_http(allow_redirects=False))


def test_another_host_is_told_no_password_no_cookie_and_no_header_of_the_users(server: WebServer) -> None:
    secrets: Any = {
        "auth": ("me", "secret"),
        "cookies": {"c": "d"},
        "headers": {"PRIVATE-TOKEN": "t", "proxy-authorization": "p", "User-Agent": "ours"},
    }

    def told(to: WebServer) -> set[str]:
        return {name.lower() for name in to.requests[-1][1]} - {"host", "connection"}

    with web_server() as other:
        other.pages["/b.txt"] = Page(CONTENT, failures=[{"after": 300_000}])
        other.pages["/back"] = Page(status=302, headers={"Location": f"{server.address}/b.txt"})
        server.pages["/away"] = Page(status=302, headers={"Location": f"{other.address}/b.txt"})
        server.pages["/there"] = Page(status=301, headers={"Location": f"{other.address}/back"})
        server.pages["/here"] = Page(status=302, headers={"Location": "/b.txt"})
        ((_, stream),) = IterableWrapper(urls(server, "away")).read_from_http(**secrets)
        assert stream.read() == CONTENT  # of two requests, the second one for the rest
        assert told(other) == {"accept-encoding", "user-agent", "range"}
        assert other.requests[-1][1]["User-Agent"] == "ours"
        assert [stream.read() for _, stream in IterableWrapper(urls(server, "there")).read_from_http(**secrets)] == [
            b"b\n"
        ]
        assert told(other) == told(server) == {"accept-encoding", "user-agent"}
        assert len(list(IterableWrapper(urls(server, "here")).read_from_http(**secrets))) == 1
        assert {"authorization", "cookie", "private-token"} <= told(server)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("http://a.org/x", "http://a.org:80/y", True),
        ("http://a.org/x", "https://A.org/y", True),
        ("https://a.org/x", "http://a.org/y", False),
        ("http://a.org:8080/x", "https://a.org/y", False),
        ("https://a.org/x", "https://a.org:8443/y", False),
        ("https://a.org/x", "https://b.a.org/y", False),
        ("https://a.org/x", "https://a.org.evil.org/y", False),
    ],
)
def test_who_is_told_as_much_after_a_redirect(before: str, after: str, told: bool) -> None:
    request = urllib.request.Request(before, headers={"Authorization": "p", "cookie": "c", "Accept": "*"})
    redirected = web._Redirects().redirect_request(request, io.BytesIO(), 302, "Found", HTTPMessage(), after)
    assert redirected is not None
    assert set(redirected.headers) == ({"Authorization", "Cookie", "Accept"} if told else {"Accept"})


def test_L7_a_server_that_never_answers_is_an_error_without_a_timeout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "DEFAULT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(TimeoutError):
            list(IterableWrapper([address]).read_from_http(retries=1))


@pytest.mark.parametrize("ranges", [True, False])
def test_L7_a_stream_that_breaks_off_goes_on(server: WebServer, ranges: bool) -> None:
    server.pages["/a.txt"] = Page(CONTENT, ranges=ranges, failures=[503, {"after": 300_000}, {"after": 301_000}, 500])
    ((_, stream),) = IterableWrapper(urls(server, "a.txt")).read_from_http()
    assert stream.read() == CONTENT
    assert [headers.get("Range", "") for _, headers in server.requests][0] == ""
    stream.close()


def test_L7_what_lasts_is_an_error(server: WebServer) -> None:
    (address,) = urls(server, "nothing")
    with pytest.raises(urllib.error.HTTPError, match=f"404.+{address}"):
        list(IterableWrapper([address]).read_from_http())
    assert len(server.requests) == 1  # not tried again
    server.pages["/a.txt"].failures = [500] * 9
    with pytest.raises(urllib.error.HTTPError, match="500") as caught:
        list(IterableWrapper(urls(server, "a.txt")).read_from_http(retries=2))
    assert caught.value.__notes__ == [f"opening {server.address}/a.txt failed 3 times in a row"]
    server.pages["/a.txt"].failures = [{"after": 5}, {"after": 0}, {"after": 0}, {"after": 0}, {"after": 0}]
    ((_, stream),) = IterableWrapper(urls(server, "a.txt")).read_from_http()
    with pytest.raises(ConnectionResetError, match="ended at byte 5 of 700000"):
        stream.read()
    stream.close()
    server.pages["/a.txt"].failures = [{"after": 5}]
    ((_, stream),) = IterableWrapper(urls(server, "a.txt")).read_from_http()
    server.pages["/a.txt"] = Page(b"another one")
    with pytest.raises(OSError, match="has 11 bytes now, and had 700000"):
        stream.read()
    stream.close()


def test_retry_around_a_reader_that_tries_again_says_how_often(server: WebServer) -> None:
    server.pages["/a.txt"].failures = [500] * 9
    with pytest.raises(urllib.error.HTTPError, match="500"):
        list(IterableWrapper(urls(server, "a.txt")).read_from_http(retries=3).retry(2, backoff_s=0))
    assert len(server.requests) == 2
    server.requests.clear()
    with pytest.raises(urllib.error.HTTPError, match="500"):  # another error than retry() is for: the reader's own
        list(IterableWrapper(urls(server, "a.txt")).read_from_http(retries=1).retry(4, errors=KeyError, backoff_s=0))
    assert len(server.requests) == 2
    server.requests.clear()
    server.pages["/a.txt"].failures = [{"after": 5}]  # in the midst of a file nobody but the reader can go on
    node = (
        IterableWrapper(urls(server, "a.txt")).read_from_http().map(lambda pair: pair[1].read()).retry(2, backoff_s=0)
    )
    assert list(node) == [CONTENT]


def test_left_out_with_a_warning(server: WebServer) -> None:
    node = IterableWrapper(urls(server, "nothing", "b.txt")).read_from_http(skip_on_error=True)
    with pytest.warns(UserWarning, match=f"404.+{server.address}/nothing.*skipping"):
        assert [stream.read() for _, stream in node] == [b"b\n"]


def test_L7_reading_by_fsspec_is_tried_again_too(server: WebServer) -> None:
    server.pages["/a.txt"] = Page(CONTENT, {"Accept-Ranges": "bytes"}, failures=[{"after": 0}, 503, {"after": 100_000}])
    for form in ("open_files_by_fsspec", "open_files"):
        ((_, stream),) = getattr(IterableWrapper(urls(server, "a.txt")), form)("rb")
        assert stream.read() == CONTENT
        stream.close()


def test_wrong_addresses_are_errors() -> None:
    source = IterableWrapper(["file:///etc/passwd"])
    with pytest.raises(ValueError, match="no URL of a web server"):
        list(source.read_from_http())
    items: Any = IterableWrapper([3])
    with pytest.raises(TypeError, match="needs paths or URLs, got 3"):
        list(items.read_from_http())
