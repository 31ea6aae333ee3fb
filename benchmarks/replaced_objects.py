"""What a reader gets of an object that is replaced, or whose download breaks: torchpipe's cache beside fsspec's.

    python benchmarks/replaced_objects.py

Prints a table. The store is a server of S3's interface in a thread. Each object is all of one byte, so that what is
read says of which content it is: ``old``, ``new``, ``mixed`` (both, in silence), ``short`` or ``with zeros`` (in
silence), or the error.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torchpipe.formats.storage.remote import open_url

MIB = 1 << 20
BYTES = 12 * MIB
OLD, NEW = b"o", b"n"
REFUSAL = (
    b"<Error><Code>PreconditionFailed</Code>"
    b"<Message>At least one of the pre-conditions you specified did not hold</Message></Error>"
)
READERS = (
    "read-ahead",
    "read-ahead, cache_dir",
    "simplecache::",
    "filecache::, check_files",
    "blockcache::, check_files",
)


class Store:
    """One object, in a thread. ``breaks``: before the next answer has come whole, this is called, and the line breaks;
    ``halts``: there it stops. ``closed``: it is refused."""

    def __init__(self) -> None:
        self.content = OLD
        self.breaks: Callable[[], None] | None = None
        self.halts: Any = None
        self.closed = False
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                content = store.content
                tag, wanted = f'"{content.decode()}"', self.headers.get("Range")
                first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
                start, stop = int(first), min(BYTES, int(last or BYTES) + 1)
                refused = self.headers.get("If-Match", tag) != tag
                refused = refused or store.closed
                self.send_response(403 if store.closed else 412 if refused else 206 if wanted else 200)
                self.send_header("ETag", tag)
                self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
                if wanted:
                    self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{BYTES}")
                answer = b"<Error><Code>AccessDenied</Code></Error>" if store.closed else REFUSAL
                self.send_header("Content-Length", str(len(answer) if refused else stop - start))
                self.end_headers()
                if self.command == "HEAD":
                    return
                if refused:
                    self.wfile.write(answer)
                    return
                body = content * (stop - start)
                if store.breaks is not None:
                    breaks, store.breaks = store.breaks, None
                    self.wfile.write(body[: len(body) // 2])
                    breaks()
                    self.close_connection = True
                elif store.halts is not None:
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    store.halts.set()
                    threading.Event().wait()
                else:
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass

        server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def replace(self) -> None:
        self.content = NEW


def opened(reader: str, address: str, folder: str) -> Any:
    store: dict[str, Any] = {"key": "any", "secret": "any", "endpoint_url": address}
    if reader.startswith("blockcache"):
        store["default_block_size"] = MIB
    if "::" not in reader:
        more = {"cache_dir": folder, "cache_bytes": 1 << 30} if "cache" in reader else {}
        return open_url("s3://bench/object", options={**store, **more})
    kind = reader.partition("::")[0]
    kept = {"cache_storage": folder, "check_files": "check_files" in reader, "skip_instance_cache": True}
    return open_url(f"{kind}::s3://bench/object", options={"s3": store, kind: kept})


def kind_of(data: bytes) -> str:
    if len(data) < BYTES:
        return f"short, {len(data) * 100 // BYTES} %"
    if b"\0" in data:
        return "with zeros"
    return {OLD: "old", NEW: "new"}.get(data[:1], "?") if len(set(data)) == 1 else "mixed"


def between_two_reads(reader: str, folder: str) -> str:
    """One open file: half is read, the object is replaced, another reader opens it, the rest is read."""
    store = Store()
    with opened(reader, store.address, folder) as file:
        data = file.read(MIB)
        store.replace()
        with opened(reader, store.address, folder) as other:
            other.read()
        return kind_of(data + file.read())


def between_two_passes(reader: str, folder: str) -> str:
    store = Store()
    with opened(reader, store.address, folder) as file:
        file.read()
    store.replace()
    with opened(reader, store.address, folder) as file:
        return kind_of(file.read())


def after_an_error(reader: str, folder: str) -> str:
    """The store refuses one read of an open file; the reader reads again."""
    store = Store()
    with opened(reader, store.address, folder) as file:
        data = file.read(1)
        store.closed = True
        with suppress(Exception):
            data += file.read()
        store.closed = False
        file.seek(len(data))
        return kind_of(data + file.read())


def where_the_line_breaks(reader: str, folder: str) -> str:
    """The object is replaced while it is sent, and the connection breaks."""
    store = Store()
    store.breaks = store.replace
    with opened(reader, store.address, folder) as file:
        return kind_of(file.read())


def _read(reader: str, address: str, folder: str) -> None:
    with opened(reader, address, folder) as file:
        file.read()


def after_a_kill(reader: str, folder: str) -> str:
    """A process is killed in the midst of its first download; the next one reads."""
    store = Store()
    store.halts = threading.Event()
    process = multiprocessing.get_context("spawn").Process(target=_read, args=(reader, store.address, folder))
    process.start()
    assert store.halts.wait(60)
    assert process.pid is not None
    process.join(1.0)  # it writes what has come
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    store.halts = None
    with opened(reader, store.address, folder) as file:
        return kind_of(file.read())


def main() -> None:
    warnings.simplefilter("ignore")
    cases = (between_two_reads, between_two_passes, where_the_line_breaks, after_an_error, after_a_kill)
    print("| |", " | ".join(case.__name__.replace("_", " ") for case in cases), "|")
    print("|---" * (len(cases) + 1) + "|")
    for reader in READERS:
        found = []
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found.append(case(reader, folder))
                except Exception as error:
                    found.append(f"{type(error).__name__}: {error!s:.60}")
        print(f"| {reader} |", " | ".join(found), "|", flush=True)


if __name__ == "__main__":
    main()
