"""``read_from_http``: files on web servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.retrying import DEFAULT_RETRIES
from torchpipe.formats.storage.web import WebFile, check_options, open_web
from torchpipe.iter._shared.files import Opener
from torchpipe.iter._shared.paths import made_of_files
from torchpipe.node.content_digest import Unseen
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_seconds

__all__ = ["HttpReader"]


@functional_datapipe("read_from_http")
class HttpReader(Opener):
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

    fingerprint_ignores = ("timeout", "retries", "query_params")  # how a file is reached, tokens among it

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        timeout: float | None = None,
        skip_on_error: bool = False,
        *,
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
