"""Open streams as items: torch's ``StreamWrapper``, which closes a file when nobody refers to it, with types.

Runs wherever its nodes run.
"""

from __future__ import annotations

from typing import Any

from torchpipe.compat.torch_datapipes import StreamWrapper

__all__ = ["StreamWrapper", "close_stream", "close_stream_after_parts", "close_streams", "wrap_stream"]


def wrap_stream(file: Any, *, parent: StreamWrapper | None = None, name: str) -> StreamWrapper:
    """``file`` as an item; ``parent`` is the stream that it reads from, if it is a part of one."""
    return StreamWrapper(file, parent, name)  # type: ignore[no-untyped-call]


def close_stream(stream: StreamWrapper) -> None:
    """Idempotent."""
    stream.close()  # type: ignore[no-untyped-call]


def close_stream_after_parts(stream: StreamWrapper) -> None:
    """Close it as soon as all streams that have it as their parent are closed."""
    stream.autoclose()  # type: ignore[no-untyped-call]


def close_streams(item: Any) -> None:
    """Close the streams in an item that is thrown away."""
    if isinstance(item, tuple | dict | StreamWrapper):  # not lists: they are batches, long and without streams
        StreamWrapper.close_streams(item)  # type: ignore[no-untyped-call]
