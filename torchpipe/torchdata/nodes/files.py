"""Files by their paths.

- ``list_files``: the paths of files in folders.
- ``check_hash``: compare the hashes of files.
- ``save_to_disk``: write files.
- ``routed_decode``: decode files by their ending, with torch's decoders.
- ``shard_expand``: many names of files out of one.
- ``read_from_stream``: the content of open files, whole or in pieces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from torch.utils.data.datapipes.utils.decoder import Decoder, basichandlers, extension_extract_fn, imagehandler

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.formats.records import ContentRecords
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.paths import expand_braces
from torchpipe.formats.storage.streams import StreamWrapper, can_seek, wrap_stream
from torchpipe.formats.storage.writing import write_whole
from torchpipe.iter._shared.bases import Itemwise, OneInput
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.files import Digest, FileSaver, check_hash_type
from torchpipe.iter._shared.paths import LIST_ENDING, Lister, naming_path, pair_of
from torchpipe.iter._shared.reading import StreamReader as Base
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_function

__all__ = ["FileLister", "HashChecker", "RoutedDecoder", "Saver", "ShardExpander", "StreamReader"]


@functional_datapipe("list_files")
class FileLister(Lister):
    """Yields the paths of the files in ``root``: a folder, a list of folders, or a node that yields folders.

    ``masks`` is a shell pattern, or a list of them, for file names; with ``recursive`` the folders inside follow, each
    after the files of the one around it. Paths begin with ``root`` as given, or are absolute with ``abspath``. They are
    sorted within each folder; with ``non_deterministic`` they come as the file system has them, which may differ
    between machines. ``length`` is what ``len()`` says, -1 if unknown. A root may also be a file.

    Each shard lists for itself, in each epoch. Where files come while shards begin, their lists differ, and a sharding
    point behind it loses some files and doubles others: for a folder that grows use ``PathList``, which looks once, in
    the process that makes the pipeline. What ``on_disk_cache`` keeps beside its files is not listed.

    State: the root being listed, the position in its list, and which files there are: their number, names below the
    root, and sizes.

    Raises: FileNotFoundError for a folder that is missing when the node is made or when it is listed;
    StateMismatchError if other files are there than when the state was saved.
    """

    local = True

    def __init__(
        self,
        root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | IterDataPipe[Any] = ".",
        masks: str | Sequence[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> None:
        roots: Any = root
        if not isinstance(root, TorchIterDataPipe):
            given: Any = root
            if isinstance(root, str | os.PathLike) or not isinstance(root, Iterable):
                given = (root,)
            roots = tuple(map(_path, given))
            for path in roots:
                if not os.path.exists(path):
                    _missing(path)
        super().__init__(roots, masks, length)
        self.recursive = recursive
        self.abspath = abspath
        self.non_deterministic = non_deterministic

    def root_of(self, item: Any) -> str:
        return _path(item)

    def relative(self, path: str, root: str) -> str:
        return os.path.relpath(path, root)

    def paths_in(self, root: str) -> Sequence[str]:
        """All paths of one root, in order."""
        if not os.path.exists(root):
            _missing(root)
        start = os.path.abspath(root) if self.abspath else root
        if not os.path.isdir(root):
            return [start] if self.matches(os.path.basename(root)) else []
        paths = []
        for folder, folders, files in os.walk(start, onerror=_raise):
            if not self.non_deterministic:
                files.sort()
                folders.sort()  # os.walk goes down in this order
            paths += [
                os.path.join(folder, name) for name in files if self.matches(name) and not name.endswith(LIST_ENDING)
            ]
            if not self.recursive:
                break
        return paths


def _path(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"list_files needs folders as paths, got {value!r} of type {type(value).__name__}")
    path = os.fspath(value)
    if "://" in path:
        raise ValueError(f"list_files reads local folders, got {path!r}: use list_files_by_fsspec")
    return path


def _missing(path: str) -> NoReturn:
    raise FileNotFoundError(f"list_files found no folder {path!r} (working directory {os.getcwd()!r})")


def _raise(error: OSError) -> NoReturn:
    raise error


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


_MODES = ("w", "wt", "wb", "x", "xt", "xb")


@functional_datapipe("save_to_disk")
class Saver(FileSaver):
    """Takes pairs (name, data), writes each to a file, and yields the paths of these.

    ``filepath_fn`` makes the path of the name; without it they are the same. With ``root`` names are within it, and one
    that leads out of it is an error. ``mode`` is ``"w"`` or ``"t"`` for text, ``"wb"`` or ``"b"`` for bytes; with
    ``"x"`` files must not be there yet. Folders are made; a file is there whole or not at all.

    State: none of its own. After a restore, the file of the item that is made again is written again.

    Raises: ValueError for another mode; while iterating, TypeError for other items and for data that do not
    fit the mode, ValueError for a name that leads out of ``root``, and OSError.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(source_datapipe, filepath_fn, root)
        self.mode = mode if "w" in mode or "x" in mode else f"w{mode}"
        if self.mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")

    def write(self, path: str, data: Any) -> None:
        write_whole(path, self.mode, [data])


@functional_datapipe("routed_decode")
class RoutedDecoder(Itemwise[tuple[str, Any]]):
    """Takes pairs (path, open stream), and yields pairs (path, what the first handler that knows the ending makes of
    it).

    A handler is a function ``(key, bytes)`` that returns None for what it does not know; ``key_fn`` makes the key of
    the path. What none knows comes as bytes. Without handlers: torch's for text, numbers and JSON, and for images as
    tensors (which needs Pillow).

    State: none of its own. Raises: TypeError for a handler that is no function; while iterating, what a handler raises,
    with a note of the path.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[tuple[str, Any]],
        *handlers: Callable[[str, bytes], Any],
        key_fn: Callable[[str], str] = extension_extract_fn,
    ) -> None:
        super().__init__(datapipe)
        for handler in handlers:
            check_function("a handler", handler)
        self.decoder = Decoder(*(handlers or (basichandlers, imagehandler("torch"))), key_fn=key_fn)  # type: ignore[no-untyped-call]

    def add_handler(self, *handler: Callable[[str, bytes], Any]) -> None:
        """Ask these as well, before the others; it changes the node."""
        self.decoder.add_handler(*handler)  # type: ignore[no-untyped-call]

    def change(self, item: Any) -> tuple[str, Any]:
        path, stream = pair_of("routed_decode", item, "(path, open stream)")
        if not isinstance(path, str):
            raise TypeError(f"routed_decode needs paths as text, got {path!r:.200}")
        with naming_path(path, "decoding"):
            return path, self.decoder((path, stream))[path]


class _ShardNameIterator(ExpandingIterator[str]):
    def expand(self, item: Any) -> Iterable[str]:
        if not isinstance(item, str):
            raise TypeError(f"shard_expand needs names as text, got {item!r:.200} of type {type(item).__name__}")
        return expand_braces(item)


@functional_datapipe("shard_expand")
class ShardExpander(OneInput[str]):
    """Takes names in which braces stand as in a shell (``"train-{000..199}.tar"``, ``"{a,b}.tar"``), and yields all
    names that they stand for.

    State: what is left of the names. Raises: while iterating, TypeError for items that are no text, ValueError for more
    than a million names of one.
    """

    iterator = _ShardNameIterator

    def __init__(self, source_datapipe: IterDataPipe[str]) -> None:
        super().__init__(source_datapipe)


@functional_datapipe("read_from_stream")
class StreamReader(Base[tuple[str, Any]]):
    """Takes pairs (path, stream), and yields pairs (path, content): the whole, or pieces of ``chunk`` bytes or letters.

    An empty file gives nothing. A stream is closed at its end.

    State: that of the input before the current file, and the position in the file. Resuming opens it again and goes
    there at once, if the stream can seek; else it reads the pieces before again, which a
    :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError for a ``chunk`` below 1; while iterating, TypeError for other items, and what the
    stream raises, with a note of the path.
    """

    binary = False

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], chunk: int | None = None) -> None:
        super().__init__(datapipe)
        self.chunk = None if chunk is None else check_count("chunk", chunk, at_least=1)

    def records(self, path: str, stream: StreamWrapper) -> _Pieces:
        return _Pieces(Content(path, None, opened=stream), self.chunk)


class _Pieces(ContentRecords[tuple[str, Any]]):
    unit = "piece"

    def __init__(self, content: Content, chunk: int | None) -> None:
        super().__init__(content)
        self._size = () if chunk is None else (chunk,)

    def __next__(self) -> tuple[str, Any]:
        piece = self.content.stream.read(*self._size)
        if not piece:
            raise StopIteration
        self.advance(len(piece))
        return self.path, piece
