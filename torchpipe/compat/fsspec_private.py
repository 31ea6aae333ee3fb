"""fsspec: one request for a range of bytes, with what its open file asks for. Runs in any thread that reads.

``AbstractBufferedFile._fetch_range`` is what each file system defines and all of fsspec's caches call: one request,
which leaves the file's own position alone, and asks for the version that was opened (s3fs: ``If-Match``). The public
``cat_file`` asks for the newest version, and ``read`` cannot be called from several threads at once. Only files of
asynchronous file systems are read so (``async_impl``: S3, Google's, Azure's, the web): these are made for many
requests at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["range_fetcher"]


def range_fetcher(file: Any) -> Callable[[int, int], bytes] | None:
    """A function that gives the bytes of ``file`` from one to before another, thread-safe; None if it has none."""
    from fsspec.spec import AbstractBufferedFile  # takes a while, and local files do without

    if not isinstance(file, AbstractBufferedFile) or not getattr(file.fs, "async_impl", False):
        return None
    streams = getattr(file, "r", None) is not None or type(file.size) is not int  # a response, read as it comes
    fetch: Callable[[int, int], bytes] | None = None if streams else getattr(file, "_fetch_range", None)
    return fetch
