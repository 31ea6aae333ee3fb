"""Files on web servers, by the standard library: read as streams that go on where they stood.

Reading goes on with a request for the rest (RFC 9110, 14), after an error that passes and after a ``seek``; a server
that answers these requests with the whole file is read from the start and passed over.

A redirect to another host tells it nothing that was meant for the first: no password, no cookie, and no header of the
user's but those that say what is wanted (``_TOLD_TO_ALL``).
"""

from __future__ import annotations

import base64
import io
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.retrying import DEFAULT_RETRIES, ReopenedFile

__all__ = ["DEFAULT_TIMEOUT_S", "OPTIONS", "WebFile", "check_options", "open_web"]

DEFAULT_TIMEOUT_S = 60.0

_BUFFER_BYTES = 1 << 18
_PORTS = {"http": 80, "https": 443}
_TOLD_TO_ALL = {"accept", "accept-encoding", "accept-language", "if-range", "range", "user-agent"}
OPTIONS = ("allow_redirects", "auth", "cookies", "headers", "params", "proxies", "verify")
"""The options of a request, with the names that the package ``requests`` gives them."""


class WebFile(io.BufferedReader):
    """A response as a stream; ``headers`` are those of the first one."""

    headers: Mapping[str, str]


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: urllib.request.Request, *args: Any) -> urllib.request.Request | None:
        request = super().redirect_request(req, *args)
        if request is not None and not _may_have_credentials(request.full_url, req.full_url):
            for name in list(request.headers):
                if name.lower() not in _TOLD_TO_ALL:
                    request.remove_header(name)
        return request


def _may_have_credentials(url: str, before: str) -> bool:
    """True for the same host, protocol and port, or the encrypted protocol in place of the plain one."""
    (scheme, host, port), (old_scheme, old_host, old_port) = (
        (parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme))
        for parts in map(urllib.parse.urlsplit, (url, before))
    )
    encrypted = (old_scheme, old_port, scheme, port) == ("http", 80, "https", 443)
    return host == old_host and (encrypted or (scheme, port) == (old_scheme, old_port))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def check_options(form: str, options: Mapping[str, Any]) -> None:
    """Raises: TypeError for an option that is none of ``OPTIONS``."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"{form} has no option {unknown[0]!r}: there are {', '.join(OPTIONS)}")


def open_web(
    url: str, timeout: float | None = None, options: Mapping[str, Any] | None = None, retries: int = DEFAULT_RETRIES
) -> WebFile:
    """Open ``url``; ``timeout`` in seconds (None: 60) is for each wait on the server.

    Raises: ValueError for another protocol; ``urllib.error.HTTPError``, whose text has the status
    and the URL, ``urllib.error.URLError``.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"{url!r:.200} is no URL of a web server: it begins neither with http:// nor https://")
    options = options or {}
    opener = _opener(options)
    full = url + ("&" if "?" in url else "?") + _query(options["params"]) if options.get("params") else url
    headers = _headers(options)
    first: list[Mapping[str, str]] = []

    def open_at(offset: int) -> tuple[Any, int | None, str | None]:
        request = urllib.request.Request(full, headers=headers | _range(offset, first))
        try:
            response: Any = opener.open(request, timeout=DEFAULT_TIMEOUT_S if timeout is None else timeout)
        except urllib.error.HTTPError as error:
            error.close()  # it is the response as well
            raise urllib.error.HTTPError(url, error.code, f"{error.msg} for url: {url}", error.headers, None) from None
        first.append(response.headers)
        length = response.headers.get("Content-Length")
        if response.status == 206:
            return response, None if length is None else int(length) + offset, _version(response.headers)
        for _ in range(0, offset, _BUFFER_BYTES):
            response.read(min(_BUFFER_BYTES, offset - _))
        return response, None if length is None else int(length), _version(response.headers)

    file = WebFile(ReopenedFile(url, open_at, retries), _BUFFER_BYTES)
    file.headers = first[0]
    return file


def _version(headers: Mapping[str, str]) -> str | None:
    """The version that tells this file from another one (RFC 9110, 8.8)."""
    return headers.get("ETag") or headers.get("Last-Modified")


def _range(offset: int, first: list[Mapping[str, str]]) -> dict[str, str]:
    """The rest of the file, if it is the same as before."""
    if not offset:
        return {}
    tag = first[0].get("ETag") if first else None
    return {"Range": f"bytes={offset}-"} | ({} if tag is None or tag.startswith("W/") else {"If-Range": tag})


def _query(params: Any) -> str:
    return params if isinstance(params, str) else urllib.parse.urlencode(params, doseq=True)


def _headers(options: Mapping[str, Any]) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", **options.get("headers", {})}
    if "auth" in options:
        user, password = options["auth"]
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    if "cookies" in options:
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in options["cookies"].items())
    return headers


def _opener(options: Mapping[str, Any]) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_Redirects if options.get("allow_redirects", True) else _NoRedirects]
    if "proxies" in options:
        handlers.append(urllib.request.ProxyHandler(options["proxies"]))
    verify = options.get("verify", True)
    if verify is not True:
        trust = ssl.create_default_context(cafile=verify or None)
        if verify is False:
            trust.check_hostname = False
            trust.verify_mode = ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=trust))
    return urllib.request.build_opener(*handlers)
