"""``read_from_http``, ``read_from_gdrive`` and ``read_from_remote``: files on web servers."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from torchpipe.formats.places.retrying import DEFAULT_RETRIES
from torchpipe.formats.places.web import WebFile, check_options, open_web
from torchpipe.iter._shared.opening import Opener
from torchpipe.iter._shared.paths import made_of_files
from torchpipe.node.content_digest import Unseen
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_seconds

__all__ = ["GDriveReader", "HttpReader", "OnlineReader"]

_TITLE = re.compile(r"<title>Google Drive - (.+?)</title>")
_FILENAME = re.compile(r'filename="(.+?)"')
_OF_DRIVE = re.compile(r"(drive|docs)[.]google[.]com")
_PAGE_BYTES = 1 << 20


class _WebReader(Opener):
    fingerprint_ignores = ("timeout", "retries", "query_params")  # how a file is reached, tokens among it

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        timeout: float | None = None,
        skip_on_error: bool = False,
        retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe)
        check_options(self.form, kwargs)
        if timeout is not None and not check_seconds("timeout", timeout) > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, or None for 60, got {timeout!r}")
        self.timeout = timeout
        self.skip_on_error = skip_on_error
        self.retries = check_count("retries", retries, at_least=0)
        self.query_params = kwargs

    def made_of(self) -> Mapping[str, Any]:
        return made_of_files(self, Unseen("what a web server gives may change unseen"))

    def opened(self, path: str) -> tuple[str, WebFile]:
        return path, open_web(path, self.timeout, self.query_params, self.retries)


@functional_datapipe("read_from_http")
class HttpReader(_WebReader):
    """Takes URLs (``http://``, ``https://``), and yields pairs (URL, open binary stream).

    ``timeout`` in seconds (None: 60) is for each wait on the server. What cannot be opened is left out with
    ``skip_on_error``, and a warning. Opening and reading are tried again up to ``retries`` times after errors that
    pass; a stream goes on where it stood, and can seek. ``kwargs`` are ``headers``, ``params``, ``auth`` (name,
    password), ``cookies``, ``proxies``, ``verify``, ``allow_redirects``, with the meanings that they have in
    ``requests``. Another host, to which the server redirects, is told neither ``auth`` nor ``cookies``, nor any of
    ``headers`` but ``User-Agent`` and ``Accept``.

    State: none of its own. Raises: TypeError for other arguments; while iterating, ``urllib.error.HTTPError`` with the
    status and the URL, ``urllib.error.URLError``, and ValueError for another URL; EOFError or ConnectionError
    while reading a stream that breaks off.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        timeout: float | None = None,
        skip_on_error: bool = False,
        *,
        retries: int = DEFAULT_RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe, timeout=timeout, skip_on_error=skip_on_error, retries=retries, **kwargs)


@functional_datapipe("read_from_gdrive")
class GDriveReader(_WebReader):
    """Takes links to files in Google Drive that anybody may download, and yields pairs (file name, open binary stream).

    Where Google asks whether a large file is to be had without a scan for viruses, the answer is yes. Arguments as with
    ``read_from_http``.

    State: none of its own. Raises: as ``read_from_http``; while iterating, RuntimeError where Google gives no file: the
    quota is exceeded, or the link is one for viewing.
    """

    def opened(self, path: str) -> tuple[str, WebFile]:
        return _of_drive(self, path)


@functional_datapipe("read_from_remote")
class OnlineReader(_WebReader):
    """``read_from_gdrive`` for links to Google Drive, ``read_from_http`` for other URLs.

    State: none of its own. Raises: as these.
    """

    def opened(self, path: str) -> tuple[str, WebFile]:
        if _OF_DRIVE.match(urllib.parse.urlparse(path).netloc):
            return _of_drive(self, path)
        return super().opened(path)


def _of_drive(node: _WebReader, url: str) -> tuple[str, WebFile]:
    _, file = _WebReader.opened(node, url)
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
        _, file = _WebReader.opened(node, f"{url}&confirm={token}")
    name = _FILENAME.search(file.headers.get("Content-Disposition", ""))
    if name is None:
        file.close()
        raise RuntimeError(
            f"Google drive link {url} gives no file: is it one for viewing or sharing? Take that of the download page"
        )
    return name[1], file
