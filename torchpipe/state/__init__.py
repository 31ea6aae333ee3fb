"""States: plain data in, bytes out, and cursors that remember a position. See ``codec``, ``cursor`` and ``inspect``."""

from torchpipe.state.codec import FORMAT_VERSION, OpaqueItem, as_text, decode, encode, from_text, opaque_notes
from torchpipe.state.cursor import Cursor, SnapshotPolicy
from torchpipe.state.inspect import inspect

__all__ = [
    "FORMAT_VERSION",
    "Cursor",
    "OpaqueItem",
    "SnapshotPolicy",
    "as_text",
    "decode",
    "encode",
    "from_text",
    "inspect",
    "opaque_notes",
]
