"""States: plain data in, bytes out, and cursors that remember a position. See ``codec``, ``cursor`` and ``inspect``.

``merge`` makes one state of those that the ranks of a run have saved.
"""

from torchpipe.state.codec import FORMAT_VERSION, OpaqueItem, as_text, decode, encode, from_text, opaque_notes
from torchpipe.state.cursor import Cursor, SnapshotPolicy
from torchpipe.state.inspect import inspect
from torchpipe.state.left_out import LeftOut, left_out
from torchpipe.state.ranks import merge

__all__ = [
    "FORMAT_VERSION",
    "Cursor",
    "LeftOut",
    "OpaqueItem",
    "SnapshotPolicy",
    "as_text",
    "decode",
    "encode",
    "from_text",
    "inspect",
    "left_out",
    "merge",
    "opaque_notes",
]
