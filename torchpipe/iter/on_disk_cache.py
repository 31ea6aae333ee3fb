"""``on_disk_cache`` ... ``end_caching``: files that are made once, whatever is between the two.

Several processes, and machines that share the folder, agree by leases.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from torchpipe.errors import GraphError
from torchpipe.formats.storage.streams import StreamWrapper, close_stream
from torchpipe.formats.storage.writing import Lease, write_whole
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.files import Digest, check_hash_type, pieces_of
from torchpipe.iter._shared.paths import LIST_ENDING, naming_path, pair_of
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, divides, inputs_of, node_name, traits_of
from torchpipe.node.validate import check_columns, check_input
from torchpipe.randomness.global_random import GlobalRandom

__all__ = ["EndOnDiskCacheHolder", "OnDiskCacheHolder"]

_LIST = LIST_ENDING  # beside a path: a file with the names of all that was made for it


@functional_datapipe("on_disk_cache")
class OnDiskCacheHolder(IterDataPipe[Any]):
    """Begins a part of a pipeline whose results are kept in files; ``end_caching`` ends it.

    ``filepath_fn`` says which file is made of an item (by default the item is its path). An item whose file is there
    skips all that is between the two, so two items need two paths: the second of one path gets the first one's file.
    With ``hash_dict`` (path -> hash in hexadecimal, ``hash_type`` ``"sha256"`` or ``"md5"``) each file that was made
    must have that hash, and with ``extra_check_fn(path)`` that function must say yes of it, or the item's files are
    made anew. Paths are those that ``end_caching`` yields. Not iterated itself.

    State: none of its own. Raises: ValueError for another ``hash_type``; TypeError for an argument that is no function.
    """

    shared = True  # end_caching reads its input, and the part begins with it: one pass

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        filepath_fn: Callable[[Any], str] | None = None,
        hash_dict: Mapping[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> None:
        check_input("on_disk_cache", source_datapipe)
        for name, fn in (("filepath_fn", filepath_fn), ("extra_check_fn", extra_check_fn)):
            if fn is not None:
                check_columns(name, fn, None)
        self.source = source_datapipe
        self.filepath_fn = filepath_fn
        self.hash_dict = hash_dict
        self.hash_type = check_hash_type(hash_type)
        self.extra_check_fn = extra_check_fn

    def path_of(self, item: Any) -> str:
        path = item if self.filepath_fn is None else self.filepath_fn(item)
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"on_disk_cache needs one path for each item, got {path!r:.200} for {item!r:.200}")
        return os.fspath(path)

    def is_right(self, path: str) -> bool:
        """True if the file has the hash, and passes the check, that the arguments demand."""
        if self.hash_dict is not None:
            expected = self.hash_dict.get(path)
            if expected is None:
                return False
            with open(path, "rb") as file:
                if Digest(self.hash_type).of(file) != expected.lower():
                    return False
        return self.extra_check_fn is None or bool(self.extra_check_fn(path))

    def iterate(self, context: Context) -> NodeIterator[Any]:
        raise RuntimeError("Please call `end_caching()` before iteration.")


@functional_datapipe("end_caching")
class EndOnDiskCacheHolder(IterDataPipe[str]):
    """Ends the part that ``on_disk_cache`` began, and yields the paths of the files, in the order of its input.

    The part yields pairs (name, content) of the files to write: one for an item, of the name that ``on_disk_cache``
    gives it, or several of any names. ``filepath_fn`` makes a path of a name; ``same_filepath_fn`` takes that of
    ``on_disk_cache``. The content is an open stream, an iterable of pieces, or (with ``skip_read`` in any case) what is
    written as it is; ``mode`` is that of the files, ``"wb"`` or ``"t"`` for text.

    An item's files are made by one process (or machine) at a time; others wait for it, at most ``timeout`` seconds. A
    file is there whole or not at all, and if its maker dies, however it dies, the next one makes it. The part runs once
    for each item, with random streams that are a function of the seed and the path: what the files are, and what
    follows, does not depend on what was cached, when and by whom.

    State: the names that are left of the current item's. Raises: RuntimeError without ``on_disk_cache`` before it;
    ValueError for two functions; GraphError for a sharding point within the part; while iterating, TimeoutError, which
    names the process that is waited for, RuntimeError for a file with another hash, and what the part raises.
    """

    fingerprint_ignores = ("timeout",)

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        mode: str = "wb",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        same_filepath_fn: bool = False,
        skip_read: bool = False,
        timeout: float = 300,
    ) -> None:
        check_input("end_caching", datapipe)
        if filepath_fn is not None and same_filepath_fn:
            raise ValueError("`filepath_fn` is mutually exclusive with `same_filepath_fn`: give one of them")
        if filepath_fn is not None:
            check_columns("filepath_fn", filepath_fn, None)
        self.mode = mode if "w" in mode else f"w{mode}"
        if self.mode not in ("w", "wt", "wb"):
            raise ValueError(f"mode must be one of 'wb', 'b', 'w', 'wt' and 't', got {mode!r}")
        self.source = datapipe
        self.holder = _begin_of(datapipe)
        self.filepath_fn = self.holder.filepath_fn if same_filepath_fn else filepath_fn
        self.skip_read = skip_read
        self.set_timeout(timeout)

    def set_timeout(self, timeout: float) -> None:
        """Wait so many seconds for other processes. For adapters; it changes the node."""
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        self.timeout = timeout

    def iterate(self, context: Context) -> NodeIterator[str]:
        return _CacheIterator(self, context, self.holder.source)


def _begin_of(datapipe: DataPipe) -> OnDiskCacheHolder:
    """The nearest ``on_disk_cache`` before ``datapipe`` that has no end yet."""
    waiting, seen, ended = [datapipe], set(), False
    while waiting:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, OnDiskCacheHolder):
            return node
        if divides(node) or traits_of(node).dispatches:
            raise GraphError(
                f"{node_name(node)} stands between on_disk_cache() and end_caching(), which run what is between them "
                "for one item at a time: divide the stream before or after"
            )
        if isinstance(node, EndOnDiskCacheHolder):  # that part is whole
            ended = True
            waiting.append(node.holder.source)
        else:
            waiting.extend(inputs_of(node))
    if ended:
        raise RuntimeError(
            "`end_caching` can only be invoked once per `OnDiskCacheHolder`: there is none without an end"
        )
    raise RuntimeError("Expected `OnDiskCacheHolder` existing in pipeline when `end_caching` is invoked")


class _OneItem(NodeIterator[Any]):
    """Stands for ``on_disk_cache`` while the part runs for one item."""

    def __init__(self, node: OnDiskCacheHolder, context: Context, item: Any) -> None:
        super().__init__(node, context)
        self.item = item

    def run(self) -> Iterator[Any]:
        yield self.item


class _CacheIterator(ExpandingIterator[str]):
    node: EndOnDiskCacheHolder

    def expand(self, item: Any) -> list[str]:
        path = self.node.holder.path_of(item)
        names = self._cached(path)
        if names is None:
            names = self._made_with_lease(path, item)
        return names

    def _made_with_lease(self, path: str, item: Any) -> list[str]:
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        lease = Lease(f"{path}.lease")
        if not lease.take(self.node.timeout):
            raise TimeoutError(
                f"{path} is being made by {lease.owner()}, and was not ready after {self.node.timeout:g} s. If that "
                "takes longer, raise the timeout (of end_caching(); CacheTimeout(seconds) does so for a whole graph)"
            )
        try:
            names = self._cached(path)  # made by the one before
            return self._made(path, item) if names is None else names
        finally:
            lease.give_back(remove=True)

    def _cached(self, path: str) -> list[str] | None:
        try:
            with open(path + _LIST) as file:
                names = json.load(file)
        except FileNotFoundError:
            names = [path]
        except ValueError:
            return None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        return names if all(os.path.isfile(name) and self.node.holder.is_right(name) for name in names) else None

    def _made(self, path: str, item: Any) -> list[str]:
        number = int.from_bytes(hashlib.sha256(path.encode(errors="surrogateescape")).digest()[:8])
        holder = self.node.holder
        context = replace(  # the same in every process, at any time
            self.context.for_round(number),
            epoch=0,
            shard=0,
            num_shards=1,
            world_size=1,
            substitutes={**self.context.substitutes, id(holder): lambda inner: _OneItem(holder, inner, item)},
            host=replace(self.context.host, threads=False),
            shared=replace(self.context.shared, replays=WeakValueDictionary(), passes={}),
        )
        names: list[str] = []
        with (
            GlobalRandom(context.stream_key(self.node)),
            naming_path(path, "making"),
            context.iterate(self.node.source) as part,
        ):
            for pair in part:
                names.append(self._written(pair))
        if names not in ([], [path]):
            write_whole(path + _LIST, "w", [json.dumps(names)])
        return names

    def _written(self, pair: Any) -> str:
        node, (name, content) = self.node, pair_of("end_caching", pair, "(name, content)")
        path = os.fspath(name if node.filepath_fn is None else node.filepath_fn(name))
        hashes = node.holder.hash_dict
        if hashes is not None and path not in hashes:
            raise RuntimeError(f"Unspecified hash for file {path}: is it in hash_dict under another name?")
        digest = Digest(node.holder.hash_type)

        def pieces() -> Iterator[Any]:
            for piece in [content] if node.skip_read else pieces_of(content):
                if hashes is not None:
                    digest.add(piece)
                yield piece
            if hashes is not None and digest.text() != hashes[path].lower():
                raise RuntimeError(
                    f"The computed hash {digest.text()} of {path} does not match the expected hash {hashes[path]}: is "
                    "the source damaged, or hash_dict of another version?"
                )

        write_whole(path, node.mode, pieces(), part=f".{hashlib.sha256(path.encode()).hexdigest()[:32]}.part")
        if hasattr(content, "read") and not node.skip_read:
            close_stream(content) if isinstance(content, StreamWrapper) else content.close()
        return path
