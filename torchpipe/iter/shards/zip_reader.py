"""``read_zip``: the files in zip archives, from any of them on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.zip import ZipFiles
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["ZipReader"]


@functional_datapipe("read_zip")
class ZipReader(FileReader[tuple[str, bytes]]):
    """Yields pairs (archive/name, content) of the files in zip archives, in the order of the archive's table.

    ``datapipe`` yields paths; or give paths themselves, in which braces and globs may stand. URLs are opened by
    fsspec with ``storage_options``. ``mask`` is a shell pattern for the names within the archive (``"train/*.png"``).

    State: the number of the file in the table, to which resuming goes at once. A sharding point straight after it reads
    the shard's own files alone. torchdata's ``load_from_zip`` gives streams, of streams.

    Raises: while iterating, ValueError for a file that is no zip archive, and for one in it that is damaged or
    encrypted, with the archive and the name; StateError where an archive has changed.
    """

    begins_at = -(1 << 16)  # where the table of what is in it stands

    def __init__(self, datapipe: Paths, mask: str = "", *, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(datapipe, storage_options)
        if not isinstance(mask, str):
            raise TypeError(f"mask must be a shell pattern such as '*.png', got {mask!r} of type {type(mask).__name__}")
        self.mask = mask

    def records(self, item: Any) -> ZipFiles:
        return ZipFiles(self.path_of(item), self.mask, self.storage_options)
