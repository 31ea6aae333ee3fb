"""What has arrived from a process, turned back into what the main process works with.

Runs in the main process. Imports ``items``, ``messages`` and ``remote_error``.
"""

from __future__ import annotations

from reading_services._runtime.items import load_items
from reading_services._runtime.messages import ChunkMessage
from reading_services._runtime.remote_error import load_error
from torchpipe.errors import ReplayWarning
from torchpipe.failure import add_note
from torchpipe.shard import Chunk

__all__ = ["chunk_of", "warning_category"]


def chunk_of(message: ChunkMessage, payload: memoryview, shard: int) -> Chunk:
    """The chunk that a message carries. Items that cannot be rebuilt become an error in their place."""
    try:
        items = load_items(payload)
    except Exception as error:
        add_note(error, f"torchpipe: items of shard {shard} could not be rebuilt in the main process")
        return Chunk(error=error)
    failure = None if message.error is None else load_error(message.error)
    return Chunk(items=items, snapshot=message.snapshot, ended=message.ended, error=failure)


def warning_category(name: str) -> type[Warning]:
    return ReplayWarning if name == ReplayWarning.__name__ else UserWarning
