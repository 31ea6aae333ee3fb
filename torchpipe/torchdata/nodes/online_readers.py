"""``read_from_gdrive`` and ``read_from_remote``: files in Google Drive, and on any web server."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

from torchpipe.formats.storage.retrying import DEFAULT_RETRIES
from torchpipe.formats.storage.web import WebFile
from torchpipe.iter.web import HttpReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["GDriveReader", "OnlineReader"]

_TITLE = re.compile(r"<title>Google Drive - (.+?)</title>")
_FILENAME = re.compile(r'filename="(.+?)"')
_OF_DRIVE = re.compile(r"(drive|docs)[.]google[.]com")
_PAGE_BYTES = 1 << 20


@functional_datapipe("read_from_gdrive")
class GDriveReader(HttpReader):
    """Takes links to files in Google Drive that anybody may download, and yields pairs (file name, open binary stream).

    Where Google asks whether a large file is to be had without a scan for viruses, the answer is yes. Arguments as with
    ``read_from_http``.

    State: none of its own. Raises: as ``read_from_http``; while iterating, RuntimeError where Google gives no file: the
    quota is exceeded, or the link is one for viewing.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        timeout: float | None = None,
        skip_on_error: bool = False,
        retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe, timeout, skip_on_error, retries=retries, **kwargs)

    def opened(self, path: str) -> tuple[str, WebFile]:
        return _of_drive(self, path)


@functional_datapipe("read_from_remote")
class OnlineReader(HttpReader):
    """``read_from_gdrive`` for links to Google Drive, ``read_from_http`` for other URLs.

    State: none of its own. Raises: as these.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        timeout: float | None = None,
        skip_on_error: bool = False,
        retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe, timeout, skip_on_error, retries=retries, **kwargs)

    def opened(self, path: str) -> tuple[str, WebFile]:
        if _OF_DRIVE.match(urllib.parse.urlparse(path).netloc):
            return _of_drive(self, path)
        return super().opened(path)


def _of_drive(node: HttpReader, url: str) -> tuple[str, WebFile]:
    _, file = HttpReader.opened(node, url)
    token = next(
        (cookie.partition("=")[2].partition(";")[0] for cookie in file.headers.get_all("Set-Cookie") or ()  # type: ignore[attr-defined]
         if cookie.startswith("download_warning")), None,
    )  # fmt: skip
    if "Content-Disposition" not in file.headers and token is None:
        found = _TITLE.search(file.read(_PAGE_BYTES).decode(errors="replace"))
        file.close()
        title = None if found is None else found[1]
        if title == "Quota exceeded":
            raise RuntimeError(f"Google drive link {url} is currently unavailable, because the quota was exceeded.")
        token = "t" if title == "Virus scan warning" else None
    if token is not None:
        file.close()
        _, file = HttpReader.opened(node, f"{url}&confirm={token}")
    name = _FILENAME.search(file.headers.get("Content-Disposition", ""))
    if name is None:
        file.close()
        raise RuntimeError(
            f"Google drive link {url} gives no file: is it one for viewing or sharing? Take that of the download page"
        )
    return name[1], file
