"""``list_files_by_s3``, ``load_files_by_s3``, and the fsspec forms, on a real server of S3's interface."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import s3_server
from torchpipe.iter import FSSpecFileLister, IterableWrapper, TextLineReader
from torchpipe.node.fingerprint import fingerprint
from torchpipe.testing import CountingSource, check_node


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as monkeypatch, s3_server(monkeypatch) as address:
        import s3fs

        system = s3fs.S3FileSystem(endpoint_url=address, key="test", secret="test")
        system.mkdir("bucket")
        for number in range(5):
            system.pipe(f"bucket/train/shard-{number}.tar", shard(number))
        system.pipe("bucket/train/deep/x.txt", b"x")
        system.pipe("bucket/other", b"o" * 20_000)
        yield system


def shard(number: int) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in "ab":
            info = tarfile.TarInfo(f"{name}.txt")
            info.size = 6000
            archive.addfile(info, io.BytesIO(f"{number}{name}".encode().ljust(6000)))
    return content.getvalue()


SHARDS = [f"s3://bucket/train/shard-{number}.tar" for number in range(5)]


def test_listing(bucket: Any) -> None:
    prefixes = IterableWrapper(["s3://bucket/train/sh"])
    assert list(prefixes.list_files_by_s3()) == SHARDS
    assert list(prefixes.list_files_by_s3(masks=["*-3*", "*-1*"])) == [SHARDS[1], SHARDS[3]]
    everything = ["s3://bucket/other", "s3://bucket/train/deep/x.txt", *SHARDS]
    assert list(IterableWrapper(["s3://bucket/"]).list_files_by_s3(region="us-east-1")) == everything
    assert list(IterableWrapper(["s3://bucket"]).list_files_by_s3(request_timeout_ms=9000)) == everything
    assert list(IterableWrapper(["s3://bucket/none"]).list_files_by_s3()) == []
    assert len(prefixes.list_files_by_s3(5)) == 5
    assert list(FSSpecFileLister("s3://bucket/train", "*.tar")) == SHARDS


def test_loading(bucket: Any) -> None:
    source = IterableWrapper(["s3://bucket/other"])
    for options in ({}, {"buffer_size": 1000}, {"multi_part_download": False}, {"region": "us-east-1"}):
        ((url, stream),) = source.load_files_by_s3(**options)  # type: ignore[arg-type]
        assert (url, stream.read(10), stream.seek(19_998), stream.read()) == (
            "s3://bucket/other", b"o" * 10, 19_998, b"oo",
        )  # fmt: skip
        stream.close()
    saved = IterableWrapper([("a", b"1"), ("b", b"2")]).save_by_fsspec("wb", root="s3://bucket/saved")
    assert list(saved) == ["s3://bucket/saved/a", "s3://bucket/saved/b"]
    assert bucket.cat("bucket/saved/b") == b"2"
    bucket.rm("bucket/saved", recursive=True)


@pytest.mark.nightly
def test_L2_exact_resume_of_archives_in_a_bucket(bucket: Any) -> None:
    check_node(lambda: CountingSource(["s3://bucket/train/sh"]).list_files_by_s3(), epochs=[0])

    def samples() -> Any:
        files = IterableWrapper(["s3://bucket/train/sh"]).list_files_by_s3().shuffle().sharding_filter()
        return files.load_files_by_s3().load_from_tar().map(text).batch(3)

    check_node(samples, epochs=[0])


def text(pair: Any) -> Any:
    return pair[0], pair[1].read().rstrip()


def test_globs_are_looked_up_with_the_options(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"endpoint_url": bucket.endpoint_url, "key": "test", "secret": "test"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    lines = TextLineReader("s3://bucket/ot*", storage_options=options)
    assert list(lines) == ["o" * 20_000]


def test_L3_what_the_objects_are_reached_with_is_no_part_of_the_graph(bucket: Any) -> None:
    options = {"endpoint_url": bucket.endpoint_url, "key": "test", "secret": "test"}
    folders = IterableWrapper(["s3://bucket/train/sh"])
    graphs = [
        lambda more: folders.list_files_by_s3(**more),
        lambda more: FSSpecFileLister("s3://bucket/train", "*.tar", **more),
        lambda more: folders.list_files_by_s3().open_files_by_fsspec(mode="rb", **more).load_from_tar().map(text),
        lambda more: IterableWrapper([("a", b"1")]).save_by_fsspec("wb", root="s3://bucket/saved", **more),
        lambda more: IterableWrapper(["http://localhost/x"]).read_from_http(**({"auth": ("a", "b")} if more else {})),
    ]
    for graph in graphs:
        assert fingerprint(graph({})) == fingerprint(graph(options))
    for graph in graphs[:3]:
        stream, resumed = iter(graph({})), iter(graph(options))
        next(stream)
        resumed.load_state_dict(stream.state_dict())  # type: ignore[attr-defined]
        assert list(resumed) == list(stream)


def test_L7_errors_arrive(bucket: Any) -> None:
    with pytest.raises(FileNotFoundError):
        list(IterableWrapper(["s3://bucket/missing"]).load_files_by_s3())
    with pytest.raises(FileNotFoundError):
        list(IterableWrapper(["s3://nobucket/x"]).list_files_by_s3())


def test_wrong_addresses_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    source = IterableWrapper(["/local"])
    with pytest.raises(TypeError, match="begin with s3://"):
        list(source.list_files_by_s3())
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    for form in ("list_files_by_s3", "load_files_by_s3"):
        with pytest.raises(ImportError, match="pip install s3fs$"):
            getattr(source, form)()
