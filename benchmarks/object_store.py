"""Tar shards of JPEGs in an object store that answers slowly and fails now and then: images a second, beside peers.

    python benchmarks/object_store.py [--shards 8] [--images 200] [--rounds 3] [--latency-ms 20] [--mb-per-s 0]
                                      [--errors 0.01] [--no-decode] [--one-process] [--readers "a;b"]
                                      [--out object_store.json]

The store is a server of S3's interface in a process of its own on this machine: it waits ``--latency-ms`` before it
answers each request, sends ``--mb-per-s`` on each connection (0: as fast as it can), and answers ``--errors`` of them
with 503. Each reader reads all shards in one process, without workers, and decodes the images with Pillow: torchpipe
without and with read-ahead, also of names that a node yields, so that no file is opened ahead, and with a cache on
disk, in the first epoch and a later one; the same over fsspec's own caches, in memory (blocks of 4 MiB) and on disk
(chains); ``webdataset`` (``pipe:curl --retry``) and streams of Hugging Face ``datasets``, where they are installed. A
fresh process for each figure, in turn, and of each the median; with ``--one-process`` this one for all, which has
connected before any time counts. Before that, each reader's bytes are compared with those written. Prints JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

PIXELS = (320, 240)
PIECE_BYTES = 1 << 18  # sent at once
PEERS = ("webdataset", "datasets")
IN_MEMORY = ("readahead", "blockcache", "background")  # fsspec's ``cache_type``
ON_DISK = ("simplecache", "filecache", "blockcache")  # the chains of fsspec's, which keep files or blocks of them
READERS = (
    *("no read-ahead", "read-ahead", "read-ahead, each opened when it comes", "cache, first epoch", "cache, later"),
    *(f"fsspec {kind}" for kind in IN_MEMORY),
    *(f"{kind}::, {when}" for kind in ON_DISK for when in ("first epoch", "later")),
    *PEERS,
)


@cache
def pictures() -> list[bytes]:
    from PIL import Image

    rng = np.random.default_rng(0)
    made = []
    for _ in range(32):
        small = Image.fromarray(rng.integers(0, 256, (60, 80, 3), np.uint8))
        buffer = io.BytesIO()
        small.resize(PIXELS, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=95)
        made.append(buffer.getvalue())
    return made


def picture(number: int) -> bytes:
    """A JPEG of its own: its number stands behind its end, which decoders pass over."""
    return pictures()[number % 32] + b"%08d" % number


def shard(first: int, count: int) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number in range(first, first + count):
            for ending, data in (("jpg", picture(number)), ("cls", b"%d" % (number % 1000))):
                info = tarfile.TarInfo(f"{number:08d}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def name_of(number: int) -> str:
    return f"shard-{number:03d}.tar"


def serve(shards: int, images: int, latency_ms: float, mb_per_s: float, errors: float) -> None:
    """Objects ``/bench/shard-000.tar`` ... Prints its port, and ends with its standard input."""
    objects = {f"/bench/{name_of(number)}": shard(number * images, images) for number in range(shards)}
    tags = {path: f'"{hashlib.md5(data).hexdigest()}"' for path, data in objects.items()}
    draw = random.Random(0)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            time.sleep(latency_ms / 1e3)
            url = urlsplit(self.path)
            with lock:
                fails = draw.random() < errors
            if fails:
                self.answer(503, b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>")
            elif url.path in objects:
                data, tag = objects[url.path], tags[url.path]
                told = {"ETag": tag, "Accept-Ranges": "bytes", "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
                if self.headers.get("If-Match", tag) != tag:
                    self.answer(412, b"")
                elif wanted := self.headers.get("Range"):
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    start, stop = int(first), min(len(data), int(last or len(data)) + 1)
                    told["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
                    self.answer(206, memoryview(data)[start:stop], told)
                else:
                    self.answer(200, data, told)
            elif url.path.rstrip("/") == "/bench" and "list-type" in parse_qs(url.query):
                prefix = parse_qs(url.query).get("prefix", [""])[0]
                found = [path for path in objects if path.removeprefix("/bench/").startswith(prefix)]
                entries = "".join(
                    f"<Contents><Key>{path.removeprefix('/bench/')}</Key><Size>{len(objects[path])}</Size>"
                    f"<ETag>{tags[path]}</ETag><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
                    for path in found
                )
                start = f"<ListBucketResult><Name>bench</Name><KeyCount>{len(found)}</KeyCount>"
                self.answer(200, f"{start}<IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode())
            else:
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

        def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                for start in range(0, len(body), PIECE_BYTES):
                    began = time.perf_counter()
                    self.wfile.write(body[start : start + PIECE_BYTES])
                    if mb_per_s:
                        time.sleep(max(0.0, began + PIECE_BYTES / mb_per_s / 1e6 - time.perf_counter()))

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:  # a client that hung up
            pass

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


def bytes_of(reader: str, shards: int, address: str, folder: str) -> Iterator[bytes]:
    """The images, as bytes, in order."""
    urls = [f"s3://bench/{name_of(number)}" for number in range(shards)]
    store = {"key": "any", "secret": "any", "endpoint_url": address}
    if reader == "webdataset":
        import webdataset

        commands = [f"pipe:curl -sf --retry 9 --retry-delay 0 {address}/bench/{name_of(n)}" for n in range(shards)]
        for sample in webdataset.WebDataset(commands, shardshuffle=False, empty_check=False):
            yield sample["jpg"]
    elif reader == "datasets":
        import datasets

        pages = [f"{address}/bench/{name_of(number)}" for number in range(shards)]  # it gives s3fs what that refuses
        stream = datasets.load_dataset(
            "webdataset", data_files=pages, split="train", streaming=True, cache_dir=folder
        ).cast_column("jpg", datasets.Image(decode=False))
        for sample in stream:
            yield sample["jpg"]["bytes"]
    elif reader.startswith("fsspec "):
        from torchpipe.iter import IterableWrapper

        kinds = {"cache_type": reader.removeprefix("fsspec "), "block_size": 4 << 20}
        opened = IterableWrapper(urls).open_files_by_fsspec("rb", kwargs_for_open=kinds, **store)
        for path, stream in opened.load_from_tar():
            if path.endswith(".jpg"):
                yield stream.read()
    else:
        from torchpipe.iter import IterableWrapper, WebDatasetReader

        names: Any = urls
        options: dict[str, Any] = store
        if reader == "no read-ahead":
            options = {**store, "ahead_bytes": 0}
        elif reader.startswith("cache"):
            options = {**store, "cache_dir": folder, "cache_bytes": 10 << 30}
        elif "::" in reader:
            kind = reader.partition("::")[0]
            names = [f"{kind}::{url}" for url in urls]
            options = {"s3": store, kind: {"cache_storage": f"{folder}-{kind}", "check_files": kind != "simplecache"}}
        elif reader != "read-ahead":
            names = IterableWrapper(urls)
        for sample in WebDatasetReader(names, ["jpg"], decode=False, storage_options=options):
            yield sample["jpg"]


def run(reader: str, shards: int, images: int, address: str, folder: str, decode: bool) -> float:
    """Seconds. Raises: AssertionError unless these are the images, in order."""
    from PIL import Image

    warnings.simplefilter("ignore")
    picture(0)
    for module in (reader,) if reader in PEERS else ("s3fs", "torchpipe.iter"):
        importlib.import_module(module)
    count = 0
    start = time.perf_counter()
    for data in bytes_of(reader, shards, address, folder):
        if decode:
            Image.open(io.BytesIO(data)).convert("RGB")
        else:
            assert data == picture(count), f"image {count} of {reader} is another one"
        count += 1
    seconds = time.perf_counter() - start
    assert count == shards * images, f"{reader} gave {count} images of {shards * images}"
    return seconds


def measured(
    reader: str, options: argparse.Namespace, address: str, folder: str, decode: bool, failed: dict[str, int]
) -> float:
    """Images a second, in a process of its own. A peer that an answer of 503 ends runs again; ``failed`` counts."""
    asked = (reader, options.shards, options.images, address, folder, decode)
    if options.one_process:
        return float(options.shards * options.images / run(*asked))
    given = json.dumps(asked)
    for _ in range(10):
        done = subprocess.run([sys.executable, __file__, "--one", given], check=False, capture_output=True, text=True)
        if not done.returncode:
            return options.shards * options.images / float(done.stdout.split()[-1])
        if reader not in PEERS or "AssertionError" in done.stderr:
            break
        failed[reader] += 1
    raise RuntimeError(f"{reader}: {done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--mb-per-s", type=float, default=0.0)
    parser.add_argument("--errors", type=float, default=0.01)
    parser.add_argument("--one-process", action="store_true")
    parser.add_argument("--readers")
    parser.add_argument("--no-decode", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*json.loads(options.serve))
        return
    if options.one:
        print(run(*json.loads(options.one)))
        return
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ.setdefault(name, "1")
    readers = [name for name in READERS if name not in PEERS or importlib.util.find_spec(name)]
    if options.readers:
        readers = [name for name in readers if name in options.readers.split(";")]
    given = json.dumps([options.shards, options.images, options.latency_ms, options.mb_per_s, options.errors])
    failed = dict.fromkeys(readers, 0)
    folder = tempfile.mkdtemp()
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        for reader in readers:
            measured(reader, options, address, f"{folder}/checked", False, failed)
        rates: dict[str, list[float]] = {reader: [] for reader in readers}
        for turn in range(options.rounds):
            for reader in readers:  # a cache's two epochs one behind the other
                rates[reader].append(
                    measured(reader, options, address, f"{folder}/{turn}", not options.no_decode, failed)
                )
    finally:
        server.communicate("")
        shutil.rmtree(folder, ignore_errors=True)
    base = statistics.median(rates.get("no read-ahead", rates[readers[0]]))
    results = {
        "shards": options.shards,
        "images": options.images,
        "bytes": len(shard(0, options.images)) * options.shards,
        "latency_ms": options.latency_ms,
        "mb_per_s": options.mb_per_s,
        "errors": options.errors,
        "decoded": not options.no_decode,
        "images_per_second": {
            reader: {
                "median": round(statistics.median(found)),
                "from": round(min(found)),
                "to": round(max(found)),
                "runs that an error ended": failed[reader],
                "beside no read-ahead": round(statistics.median(found) / base, 2),
            }
            for reader, found in rates.items()
        },
    }
    text = json.dumps(results, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
