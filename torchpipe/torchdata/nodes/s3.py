"""``list_files_by_s3`` and ``load_files_by_s3``: objects in S3's buckets.

torchdata's nodes of these names needed a plugin in C++; these are made of s3fs (``pip install s3fs``), which
also reads the usual variables of the environment and files (``AWS_ENDPOINT_URL``, ``~/.aws``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchpipe.compat.packages import needs
from torchpipe.formats.storage.remote import file_system
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES, attempt
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.iter._shared.bases import form_on
from torchpipe.iter._shared.paths import Lister
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input

__all__ = ["S3FileLister", "S3FileLoader"]


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
