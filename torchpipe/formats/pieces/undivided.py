"""Why a file is one piece, and what would let it be divided: for explain(), for errors and for warnings.

Runs in the process that builds a graph, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchpipe.formats.storage.content import is_compressed
from torchpipe.formats.storage.paths import is_remote

__all__ = ["ARROW_STREAM", "COMPRESSED", "STREAM", "UNINDEXED", "UNSCANNED", "advice", "how_to_divide"]

COMPRESSED = "compressed"
STREAM = "read as a stream alone"
UNINDEXED = "without an index"
UNSCANNED = "without an index or piece_bytes="
ARROW_STREAM = "an Arrow stream"
_WHOLE_FILES = "files"

_HELP = {
    COMPRESSED: "store the files uncompressed",
    STREAM: "put the files where any part of one can be read",
    UNINDEXED: "put an index beside each file",
    UNSCANNED: "give piece_bytes= (files are scanned then), or put an index beside each file",
    ARROW_STREAM: "write Arrow's file format",
    _WHOLE_FILES: "",  # since only reading from the start tells where a record begins
}


def _reason(path: str, unit: str, compression: str | None) -> str:
    """Why the file at ``path`` is one piece, whatever it holds; empty if it may be divided."""
    if unit == _WHOLE_FILES:
        return _WHOLE_FILES
    if is_compressed(path, compression):
        return COMPRESSED
    if unit in ("samples", "records"):
        return UNINDEXED if is_remote(path) else UNSCANNED
    return ""


def how_to_divide(reasons: Collection[str]) -> str:
    """Advice on files that are one piece for these ``reasons``, for a message."""
    ways = [_HELP[reason] for reason in dict.fromkeys(reasons) if _HELP.get(reason)]
    return ", or ".join([*ways, "write the data in more files"])


def advice(reader: str, form: str, unit: str, paths: Sequence[str], compression: str | None, num_shards: int) -> str:
    """Advice by which each of ``num_shards`` shards reads a part of ``paths`` of its own with ``reader``: by ``form``,
    or by the step that lets that divide them.
    """
    reasons = [_reason(path, unit, compression) for path in paths]
    put = f"Put .{form}() right behind {reader}, in the place of .sharding_filter(), and each reads its own part of the"
    if len(paths) >= num_shards or not all(reasons):
        return f"{put} files alone"
    if set(reasons) == {UNSCANNED}:
        return f"{put} files alone: .{form}(piece_bytes={32 << 20}), unless an index stands beside each"
    return f"{reader} reads such files from their start alone, so {how_to_divide(reasons)}, then p{put[1:]} files alone"
