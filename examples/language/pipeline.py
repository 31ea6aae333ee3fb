"""The data: Python's sources and its documentation, byte by byte, mixed 7 to 3 and packed into sequences of one length.

Both come with every Python, so there is nothing to download.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from torchpipe.iter import IterableWrapper

__all__ = ["BATCH_SIZE", "CODE", "LENGTH", "PROSE", "SHARES", "language_graph"]

LENGTH = 512  # bytes in a sequence
BATCH_SIZE = 4  # sequences in a batch
SHARES = [0.7, 0.3]  # of the bytes: code, prose
CODE, PROSE = 1, 2  # as ``source`` says of each byte

_SOURCES = Path(sysconfig.get_paths()["stdlib"])
_END_OF_TEXT = b"\0"


def read_source(name: str) -> dict[str, Any]:
    return labelled((_SOURCES / name).read_bytes(), CODE)


def encode_topic(text: str) -> dict[str, Any]:
    return labelled(text.encode(), PROSE)


def labelled(text: bytes, source: int) -> dict[str, Any]:
    """A sample: the bytes are the tokens; ``source`` says of each where it comes from."""
    tokens = text + _END_OF_TEXT
    return {"tokens": tokens, "source": np.full(len(tokens), source, dtype=np.uint8)}


def language_graph() -> Any:
    """Batches without end: tokens, source, segment_ids and positions, each of shape (BATCH_SIZE, LENGTH)."""
    names = sorted(path.name for path in _SOURCES.glob("*.py"))
    code = IterableWrapper(names).shuffle().sharding_filter().map(read_source)
    prose = IterableWrapper(list(topics.values())).shuffle().sharding_filter().map(encode_topic)
    mixed = code.mix(prose, weights=SHARES, by="tokens", stop="never")
    return mixed.pack(LENGTH).batch(BATCH_SIZE).collate()
