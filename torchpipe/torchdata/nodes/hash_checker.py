"""``check_hash``: compare the hashes of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.streams import StreamWrapper, can_seek, wrap_stream
from torchpipe.iter._shared.bases import Itemwise
from torchpipe.iter._shared.files import Digest, check_hash_type
from torchpipe.iter._shared.paths import naming_path, pair_of
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["HashChecker"]


@functional_datapipe("check_hash")
class HashChecker(Itemwise[tuple[str, Any]]):
    """Hands on pairs (path, content) whose content has the hash that ``hash_dict`` has for the path, in hexadecimal.

    The content is an open binary stream, bytes or text (as UTF-8). ``hash_type`` is ``"sha256"`` or ``"md5"``. Streams
    are read to their end, and stand at their beginning again with ``rewind``.

    State: none of its own. Raises: ValueError for another ``hash_type``; while iterating, RuntimeError for a path that
    ``hash_dict`` lacks and for content with another hash; TypeError for other items, ValueError for a
    stream that cannot go back.
    """

    fingerprint_data = ("hash_dict",)

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        hash_dict: Mapping[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
    ) -> None:
        super().__init__(source_datapipe)
        self.hash_dict = hash_dict
        self.hash_type = check_hash_type(hash_type)
        self.rewind = rewind

    def change(self, item: Any) -> tuple[str, Any]:
        path, content = pair_of("check_hash", item, "(path, content)")
        if path not in self.hash_dict:
            raise RuntimeError(f"Unspecified hash for file {path}: is it in hash_dict under another name?")
        expected = self.hash_dict[path]
        found = self._digest(path, content)
        if found != expected.lower():
            raise RuntimeError(
                f"The computed hash {found} of {path} does not match the expected hash {expected}. Delete the file and "
                "get it again, or correct hash_dict"
            )
        if isinstance(content, str | bytes | bytearray | StreamWrapper):
            return path, content
        return path, wrap_stream(content, name=path)

    def _digest(self, path: str, content: Any) -> str:
        digest = Digest(self.hash_type)
        if isinstance(content, str | bytes | bytearray):
            return digest.of(content)
        if not hasattr(content, "read"):
            raise TypeError(f"check_hash needs an open stream, bytes or text for {path!r}, got {content!r:.200}")
        if self.rewind and not can_seek(content):
            raise ValueError(f"the stream of {path} cannot go back to its beginning: pass rewind=False")
        with naming_path(path):
            found = digest.of(content)
            if self.rewind:
                content.seek(0)
        return found
