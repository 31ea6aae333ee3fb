"""Hashes of files and streams, as ``check_hash`` and ``on_disk_cache`` compare them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

__all__ = ["Digest", "check_hash_type", "pieces_of"]

_PIECE_BYTES = 1 << 20


def check_hash_type(hash_type: str) -> str:
    """``hash_type``. Raises: ValueError unless it is "sha256" or "md5"."""
    if hash_type not in ("sha256", "md5"):
        raise ValueError(f"Invalid hash_type {hash_type!r}: it is 'sha256' or 'md5'")
    return hash_type


def pieces_of(content: Any) -> Iterator[Any]:
    """The pieces of an open stream, or of another iterable; text and bytes are one piece."""
    if isinstance(content, str | bytes | bytearray):
        yield content
    elif hasattr(content, "read"):
        while piece := content.read(_PIECE_BYTES):
            yield piece
    else:
        yield from content


class Digest:
    """A hash of pieces of bytes or text (as UTF-8)."""

    def __init__(self, hash_type: str) -> None:
        self._hash = hashlib.new(hash_type, usedforsecurity=False)

    def add(self, piece: Any) -> None:
        self._hash.update(piece.encode() if isinstance(piece, str) else piece)

    def of(self, content: Any) -> str:
        """The hash of all pieces of ``content``, in hexadecimal."""
        for piece in pieces_of(content):
            self.add(piece)
        return self.text()

    def text(self) -> str:
        return self._hash.hexdigest()
