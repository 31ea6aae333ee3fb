"""Which chains with torchdata's other nodes are refused: rows for ``tests/pairs/form_rules.py``."""

from __future__ import annotations

from typing import Any

from torchpipe.errors import GraphError

__all__ = ["REFUSALS"]

_ARCHIVES = {"load_from_tar", "load_from_zip", "load_from_rar"}


def _has_samples(chain: Any) -> bool:
    return any(key == "webdataset" for key, _ in chain)


REFUSALS: list[dict[str, Any]] = [
    {
        "what": "a sharding point or a shuffle between the node that reads archives and `webdataset`",
        "when": lambda chain: _has_samples(chain) and bool(_ARCHIVES & {key for key, _ in chain}),
        "example": "PathList/tar:0 | open_files:0 | load_from_tar:0 | read_from_stream:0 | shuffle:0 | webdataset:0",
        "error": GraphError,
        "text": "the files of one sample would be parted",
        "always": False,
    },
    {
        "what": "`webdataset` over files that come twice one behind the other",
        "when": _has_samples,
        "example": "PathList:0 | repeat:0 | open_files:0 | read_from_stream:0 | webdataset:0",
        "error": ValueError,
        "text": "has two files",
        "always": False,
    },
]
