"""Data that lie on the network.

- ``HuggingFaceHubReader``: a dataset of the Hugging Face hub, by its name.
- ``read_from_gdrive`` and ``read_from_remote``: files in Google Drive, and on any web server.

IoPath's three nodes by their names: fsspec takes IoPath's place, and takes none of what IoPath's users gave.

``list_files_by_s3`` and ``load_files_by_s3``: objects in S3's buckets.

torchdata's nodes of these names needed a plugin in C++; these are made of s3fs (``pip install s3fs``), which
also reads the usual variables of the environment and files (``AWS_ENDPOINT_URL``, ``~/.aws``).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from torchpipe.compat.packages import needs
from torchpipe.formats.storage.remote import file_system
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES, attempt
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.formats.storage.web import WebFile
from torchpipe.iter._shared.bases import form_on
from torchpipe.iter._shared.paths import Lister
from torchpipe.iter.files import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from torchpipe.iter.hugging_face import HuggingFaceReader
from torchpipe.iter.web import HttpReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input

__all__ = [
    "GDriveReader",
    "HuggingFaceHubReader",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "OnlineReader",
    "S3FileLister",
    "S3FileLoader",
]


class HuggingFaceHubReader(IterDataPipe[Any]):
    """Reads ``datasets.load_dataset(dataset, **config_kwargs)``, streamed unless ``streaming=False``.

    Raises: ImportError without ``datasets``; what ``load_dataset`` raises; TypeError without a ``split``, where the
    dataset has several.
    """

    def __new__(cls, dataset: str, **config_kwargs: Any) -> IterDataPipe[Any]:  # type: ignore[misc]
        datasets = needs("datasets", "HuggingFaceHubReader")
        return HuggingFaceReader(datasets.load_dataset(path=dataset, **{"streaming": True, **config_kwargs}))


@functional_datapipe("list_files_by_iopath")
class IoPathFileLister(FSSpecFileLister):
    """``list_files_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    def __init__(
        self,
        root: str | Sequence[str] | IterDataPipe[Any],
        masks: str | Sequence[str] = "",
        *,
        pathmgr: None = None,
        handler: None = None,
    ) -> None:
        _check_no_manager(pathmgr, handler)
        super().__init__(root, masks)


@functional_datapipe("open_files_by_iopath")
class IoPathFileOpener(FSSpecFileOpener):
    """``open_files_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    def __init__(
        self, source_datapipe: IterDataPipe[Any], mode: str = "r", pathmgr: None = None, handler: None = None
    ) -> None:
        _check_no_manager(pathmgr, handler)
        super().__init__(source_datapipe, mode)


@functional_datapipe("save_by_iopath")
class IoPathSaver(FSSpecSaver):
    """``save_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath.

    Raises: TypeError for a path manager or handler: fsspec takes their place.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        pathmgr: None = None,
        handler: None = None,
    ) -> None:
        _check_no_manager(pathmgr, handler)
        super().__init__(source_datapipe, mode, filepath_fn)


def _check_no_manager(pathmgr: object, handler: object) -> None:
    """Raises: TypeError if either is given."""
    if pathmgr is not None or handler is not None:
        raise TypeError(
            f"pathmgr={pathmgr!r} and handler={handler!r} are IoPath's, in whose place fsspec is used: register a file "
            "system with fsspec.register_implementation(), or give its options to the ..._by_fsspec form"
        )


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
class OnlineReader(GDriveReader):
    """``read_from_gdrive`` for links to Google Drive, ``read_from_http`` for other URLs.

    State: none of its own. Raises: as these.
    """

    def opened(self, path: str) -> tuple[str, WebFile]:
        if _OF_DRIVE.match(urllib.parse.urlparse(path).netloc):
            return super().opened(path)
        return HttpReader.opened(self, path)


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


def _options(form: str, request_timeout_ms: int, region: str, storage_options: dict[str, Any]) -> dict[str, Any]:
    """The options by s3fs's names. Raises: ImportError without it, ValueError for a timeout that is none."""
    needs("s3fs", form)
    if check_count("request_timeout_ms", request_timeout_ms, at_least=-1) == 0:
        raise ValueError("request_timeout_ms=0 would let every request fail: pass -1 for the usual time")
    options = dict(storage_options)
    if region:
        options["client_kwargs"] = {"region_name": region, **options.get("client_kwargs", {})}
    if request_timeout_ms > 0:
        seconds = request_timeout_ms / 1000
        options["config_kwargs"] = {
            "connect_timeout": seconds, "read_timeout": seconds, **options.get("config_kwargs", {}),
        }  # fmt: skip
    return options


def _checked_url(form: str, item: Any) -> str:
    if not isinstance(item, str) or not item.startswith(("s3://", "s3a://")):
        raise TypeError(f"{form} needs URLs that begin with s3://, got {item!r:.200}")
    return item


@functional_datapipe("list_files_by_s3")
class S3FileLister(Lister):
    """Takes prefixes (``"s3://bucket/train/shard-"``), and yields the URLs of all objects that begin so, sorted.

    ``length`` is what ``len()`` says, -1 if unknown. ``request_timeout_ms`` (-1: the usual time) and ``region`` are for
    the connection, and so are ``storage_options``, which s3fs takes (``endpoint_url``, ``anon``, ``key`` ...).
    ``masks`` is a shell pattern, or a list of them, for the last part of a name.

    State: the prefix being listed, the position in its list, and which names there are.

    Raises: ImportError without s3fs; while iterating, TypeError for other items, what s3fs raises, and
    StateMismatchError if other names are there than when the state was saved.
    """

    fingerprint_ignores = ("roots", "storage_options")  # how it is reached

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        length: int = -1,
        request_timeout_ms: int = -1,
        region: str = "",
        masks: str | Sequence[str] = "",
        **storage_options: Any,
    ) -> None:
        check_input(self.form, source_datapipe)
        self.storage_options = _options(self.form, request_timeout_ms, region, storage_options)
        super().__init__(source_datapipe, masks, length)

    def root_of(self, item: Any) -> str:
        return _checked_url(self.form, item)

    def relative(self, path: str, root: str) -> str:
        return path.removeprefix(root)

    def paths_in(self, root: str) -> Sequence[str]:
        scheme, _, rest = root.partition("://")
        folder, _, prefix = rest.rpartition("/")
        if not folder:  # a bucket alone
            folder, prefix = prefix, ""

        def find() -> list[str]:
            system, _ = file_system(f"{scheme}://{folder}", self.storage_options)
            system.invalidate_cache()
            return sorted(system.find(folder, prefix=prefix))

        names = attempt(find, f"listing {root}", DEFAULT_RETRIES)
        return [f"{scheme}://{name}" for name in names if self.matches(name.rpartition("/")[2])]


@functional_datapipe("load_files_by_s3")
class S3FileLoader(IterDataPipe[tuple[str, StreamWrapper]]):
    """Takes URLs of objects, and yields pairs (URL, open binary stream): ``open_files_by_fsspec`` with s3fs.

    ``request_timeout_ms`` (-1: the usual time) and ``region`` are for the connection, and so are ``storage_options``,
    which s3fs takes. An object is read in pieces of ``buffer_size`` bytes (None: 5 MiB or more), each a request of its
    own, or at once with ``multi_part_download=False``.

    State: none of its own. Raises: ImportError without s3fs; while iterating, TypeError for items that are no URLs, and
    what s3fs raises.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[str],
        request_timeout_ms: int = -1,
        region: str = "",
        buffer_size: int | None = None,
        multi_part_download: bool | None = None,
        **storage_options: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        check_input("load_files_by_s3", source_datapipe)
        options = _options("load_files_by_s3", request_timeout_ms, region, storage_options)
        reading: dict[str, Any] = {"cache_type": "all"} if multi_part_download is False else {}
        if buffer_size is not None:
            reading["block_size"] = check_count("buffer_size", buffer_size, at_least=1)
        form = form_on(source_datapipe, "open_files_by_fsspec")
        return form("rb", kwargs_for_open=reading, **options)  # type: ignore[no-any-return]
