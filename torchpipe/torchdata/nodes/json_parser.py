"""``parse_json_files``: the values in open JSON files."""

from __future__ import annotations

import json
from typing import Any

from torchpipe.formats.storage.streams import close_stream
from torchpipe.iter._shared.bases import Itemwise
from torchpipe.iter._shared.paths import naming_path, path_and_stream
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["JsonParser"]


@functional_datapipe("parse_json_files")
class JsonParser(Itemwise[tuple[str, Any]]):
    """Takes pairs (path, stream) of JSON files, and yields pairs (path, value). Closes the stream.

    Other arguments are those of :func:`json.loads`.

    State: none of its own. Raises: while iterating, TypeError for other items, and ``json.JSONDecodeError``
    with a note of the path.
    """

    def __init__(self, source_datapipe: IterDataPipe[tuple[str, Any]], **kwargs: Any) -> None:
        super().__init__(source_datapipe)
        json.loads("0", **kwargs)  # a misspelt argument is an error here
        self.kwargs = kwargs

    def change(self, item: Any) -> tuple[str, Any]:
        path, stream = path_and_stream("parse_json_files", item, binary=False)
        with naming_path(path):
            data = json.loads(stream.read(), **self.kwargs)
        close_stream(stream)
        return path, data
