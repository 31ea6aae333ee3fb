"""``open_files``: open the files whose paths the input gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.remote import open_url
from torchpipe.iter._shared.opening import Opener
from torchpipe.iter._shared.paths import made_of_files, named_files
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_length

__all__ = ["FileOpener"]

_MODES = {"r": "r", "t": "rt", "rt": "rt", "b": "rb", "rb": "rb"}


@functional_datapipe("open_files")
class FileOpener(Opener):
    """Yields pairs (path, open stream) for the paths of the input.

    ``mode`` is ``"r"``, ``"t"`` or ``"rt"`` for text and ``"b"`` or ``"rb"`` for bytes. Paths with a scheme
    (``s3://...``) are opened by fsspec, as ``open_files_by_fsspec`` does. A stream is closed when the last reference to
    it goes, and at the latest by ``close()``, at the end of the pass. ``length`` is what ``len()`` says, -1 if unknown.

    State: none of its own. An open stream cannot be saved: put ``shuffle`` and ``batch`` before this node, or after
    one that reads.

    Raises: ValueError for other modes, or ``encoding`` with a binary one; while iterating, TypeError for
    other items and the OSError of a file that cannot be opened.
    """

    def __init__(
        self, datapipe: IterDataPipe[Any], mode: str = "r", encoding: str | None = None, length: int = -1
    ) -> None:
        super().__init__(datapipe)
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        if "b" in mode and encoding is not None:
            raise ValueError(f"encoding={encoding!r} needs a text mode, got mode={mode!r}")
        self.mode = mode
        self.encoding = encoding
        self.length = check_length(length)

    def made_of(self) -> Mapping[str, Any]:
        return made_of_files(self, named_files(self.source))

    def __len__(self) -> int:
        return len(self.source) if self.length < 0 else self.length

    def opened(self, path: str) -> tuple[str, Any]:
        mode = _MODES[self.mode]
        if is_remote(path):
            options = {} if self.encoding is None else {"encoding": self.encoding}
            return path, open_url(path, mode, open_options=options)
        return path, open(path, mode, encoding=self.encoding)
