"""Real servers on this machine, for tests: one of S3, and one of the web that fails as it is told."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Page", "WebServer", "s3_server", "web_server"]


@dataclass
class Page:
    """What is at one path. ``failures`` is used up one by one: a status, or ``{"after": bytes}``, when it hangs up."""

    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True  # does it answer requests for the rest?
    status: int = 200
    failures: list[Any] = field(default_factory=list)


class WebServer:
    """``pages``: by path; ``requests``: what was asked for, with its headers; ``ranged``: how many bytes of parts."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.ranged = 0


@contextmanager
def web_server() -> Iterator[WebServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append((self.path, dict(self.headers)))
            page = state.pages.get(self.path, Page(status=404))
            wanted_tag = self.headers.get("If-Match", page.headers.get("ETag"))
            if page.status == 200 and wanted_tag != page.headers.get("ETag"):
                self.send_error(412)
                return
            failure = page.failures.pop(0) if page.failures else None
            if isinstance(failure, int) and page.status == 200 and failure >= 400:
                self.send_error(failure)
                return
            if page.status != 200:
                self.send_response(page.status)
                for name, value in page.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                return
            start, stop = 0, len(page.content)
            wanted = self.headers.get("Range")
            if wanted and page.ranges:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(stop, int(last or stop) + 1)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(page.content)}")
                state.ranged += stop - start
            else:
                self.send_response(200)
            for name, value in page.headers.items():
                self.send_header(name, value)
            body = page.content[start:stop]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # who asked wanted the headers alone
                self.wfile.write(body if failure is None else body[: failure["after"]])

        def do_HEAD(self) -> None:
            status = state.pages.get(self.path, Page(status=404)).status
            self.send_error(501 if status == 200 else status)  # who is not refused asks by GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.block_on_close = True
    server.daemon_threads = False
    state = WebServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def s3_server(monkeypatch: Any) -> Iterator[str]:
    """A server of moto's, with the variables of the environment that lead to it; its address."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        yield address
    finally:
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        # What is in its buckets belongs to the process, and the next server would have it
        urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset", method="POST")).close()
        server.stop()
