"""``webdataset``: the files of one sample together, by the common part of their names."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchpipe.errors import GraphError, StateError
from torchpipe.formats.storage.streams import StreamWrapper, wrap_stream
from torchpipe.formats.tar import MOST_ENDINGS, many_endings, split_name
from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.iter._shared.paths import pair_of
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.tolerance import arrived, forget, refuse
from torchpipe.node.traits import divides, node_name, seeded, walk

__all__ = ["WebDataset"]


class _SampleIterator(ItemIterator[dict[str, Any]]):
    keeps_items = True
    held: tuple[str, str, Any] | None = None  # key, ending and content of the next sample's first file
    broken: str | None = None  # the key of a sample of which a file was left out: further ones are passed over
    making: str | None = None  # the key of the sample whose files are being gathered
    spoilt = False  # True if a file of it was skipped

    def __init__(self, node: WebDataset, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context)
        failures = context.failures
        if failures is not None and failures.skips and not failures.travels:
            context = replace(context, failures=failures.of_group())
        self.inputs = (context.iterate(source),)

    def get_state(self) -> dict[str, Any]:
        return self._held_state() | ({} if self.broken is None else {"broken": self.broken})

    def _held_state(self) -> dict[str, Any]:
        if self.held is None:
            return {"held": None}
        key, ending, content = self.held
        if not (isinstance(content, StreamWrapper) or hasattr(content, "read")):
            return {"held": self.kept_items([key, ending, content])}
        name, data = getattr(content, "name", None), content.read()
        name = name if isinstance(name, str) else key + ending
        self.held = key, ending, _reopened(name, data)  # it has not been handed out yet
        return {"held": [key, ending], "stream": [name, data]}

    def set_state(self, state: dict[str, Any]) -> None:
        held, self.broken = state["held"], state.get("broken")
        if type(self.broken) not in (str, type(None)):
            raise StateError(f"webdataset passes over a sample by its key, and the state says {self.broken!r:.60}")
        if held is None:
            return
        if "stream" in state:
            name, data = state["stream"]
            if type(name) is not str or type(data) not in (str, bytes):
                raise StateError("the stream that webdataset holds has no name and content in the state")
            held = [*held, _reopened(name, data)]
        if len(held) != 3 or not all(type(text) is str for text in held[:2]):
            raise StateError("what webdataset holds is a key, an ending and a content, and the state has none of these")
        self.held = tuple(held)

    def run(self) -> Iterator[dict[str, Any]]:
        source = self._files()
        while self.held is not None or self._hold_next(source):
            key, ending, content = self.held  # type: ignore[misc]  # _hold_next() said so
            sample = {"__key__": key, ending: content}
            self.making, self.spoilt, self.held = key, False, None
            while self._hold_next(source) and self.held[0] == key:  # type: ignore[index]
                _, ending, content = self.held  # type: ignore[misc]
                if ending in sample:
                    raise ValueError(
                        f"the sample {key!r} has two files {ending!r}: are samples of two shards named alike, one "
                        "straight behind the other?"
                    )
                sample[ending] = content
                self.held = None
                if len(sample) > MOST_ENDINGS + 1:
                    raise many_endings(key, [name[1:] for name in sample if name != "__key__"])
            content = self.making = None  # the consumer alone decides how long streams live
            made = [sample]
            del sample
            if not self.spoilt:
                yield made.pop()

    def _hold_next(self, source: Iterator[tuple[str, str, Any]]) -> bool:
        self.held = next(source, None)
        return self.held is not None

    def _files(self) -> Iterator[tuple[str, str, Any]]:
        source = self.source.items()
        while True:
            try:
                item = next(source)
            except StopIteration:
                return
            except Exception as error:
                if not self._passes_over(error):
                    raise
                continue
            path, content = pair_of("webdataset", item, "(path, content), as from load_from_tar()")
            if not isinstance(path, str):
                raise TypeError(f"webdataset needs paths as text, got {path!r:.200}")
            found = split_name(path.replace("\\", "/"))
            if found is not None and found[0] != self.broken:
                self.broken = None
                yield found[0], f".{found[1]}", content

    def _passes_over(self, error: Exception) -> bool:
        """True if ``error`` stands for a file, or the rest of an archive, that was skipped: its sample goes as well."""
        failures, left = self.context.failures, arrived(error)
        if failures is None or failures.travels or left is None:
            return False
        path = left.path
        if path is None:
            refuse(
                error,
                f"{node_name(left.iterator.node)} has left out something that is no pair (path, content), so that "
                "webdataset() cannot tell whose sample it is of: put an on_error() of its own behind that node if "
                "samples may come without it",
            )
            return False
        key, making = (split_name(path) or (None,))[0], self.making
        if making is not None and (key == making or making.startswith(os.path.normpath(path) + "/")):
            self.spoilt, key = True, making
        if key is None or key != self.broken:  # else that sample is counted already
            failures.note(left)
        self.broken = key
        forget(error)
        return True

    def leave_out(self) -> bool:
        self.broken, self.making = self.making, None
        if self.held is not None and self.held[0] == self.broken:
            self.held = None
        return True


@functional_datapipe("webdataset")
class WebDataset(OneInput[dict[str, Any]]):
    """Takes pairs (path, content), and yields a dict for each run of paths that differ only in what follows the first
    dot of the file's name: ``{"__key__": "shard.tar/0001", ".jpg": ..., ".cls": ...}``.

    The contents may be anything: what ``load_from_tar().map(decode)`` makes, or open streams. Names are taken apart as
    ``read_webdataset`` does: endings are in lower case; paths whose last part has no dot, begins with its only dot or
    is like ``__meta__.json`` are left out.

    Under ``on_error("skip")`` a sample goes whole with one of its files, and with the rest of an archive that is cut
    off or damaged. Where what was left out is no pair (path, content), nobody can tell whose it is: it is raised.

    State: the first pair of the sample after the one handed out, which had to be read to know that this one is whole.
    If it is an open stream, its content.

    Raises: GraphError for a sharding point or a shuffle between the node that reads archives and this one, which would
    part the files of a sample; while iterating, TypeError for other items; ValueError if a sample has two files of one
    ending (are samples of several shards named alike?) or more than 60 (are there dots in their names?).
    """

    iterator = _SampleIterator

    def __init__(self, source_datapipe: IterDataPipe[tuple[str, Any]]) -> None:
        super().__init__(source_datapipe)
        for node in walk(source_datapipe):
            archive = next((item for item in walk(node) if getattr(type(item), "makes_members", False)), None)
            if archive is not None and (divides(node) or seeded(node)):
                raise GraphError(
                    f"{node_name(node)} stands between {node_name(archive)} and webdataset(), so that the files of one "
                    "sample would be parted: put it before the archives are read, or behind webdataset()"
                )


def _reopened(name: str, data: str | bytes) -> StreamWrapper:
    return wrap_stream(io.BytesIO(data) if isinstance(data, bytes) else io.StringIO(data), name=name)
