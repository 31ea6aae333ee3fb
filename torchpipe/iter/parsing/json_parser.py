"""``parse_json_files``: what open JSON files say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from torchpipe.formats.places.streams import close_stream
from torchpipe.iter._shared.pairs import naming_path, path_and_stream
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input

__all__ = ["JsonParser"]


@functional_datapipe("parse_json_files")
class JsonParser(IterDataPipe[tuple[str, Any]]):
    """Takes pairs (path, stream) of JSON files, and yields pairs (path, what it says). Closes the stream.

    Other arguments are those of :func:`json.loads`.

    State: none of its own. Raises: while iterating, TypeError for items that are no pairs, and ``json.JSONDecodeError``
    with a note of the path.
    """

    def __init__(self, source_datapipe: IterDataPipe[tuple[str, Any]], **kwargs: Any) -> None:
        check_input("parse_json_files", source_datapipe)
        json.loads("0", **kwargs)  # a misspelt argument is an error here
        self.source_datapipe = source_datapipe
        self.kwargs = kwargs

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[tuple[str, Any]]:
        return _JsonIterator(self, context, self.source_datapipe)


class _JsonIterator(NodeIterator[tuple[str, Any]]):
    node: JsonParser

    def leave_out(self) -> bool:
        return True

    def run(self) -> Iterator[tuple[str, Any]]:
        for item in self.source.items():
            path, stream = path_and_stream("parse_json_files", item, binary=False)
            with naming_path(path):
                data = json.loads(stream.read(), **self.node.kwargs)
            close_stream(stream)
            del item, stream
            yield path, data
