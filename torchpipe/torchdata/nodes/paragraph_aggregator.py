"""``lines_to_paragraphs``: lines up to the next empty one, together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.iter._shared.paths import pair_of
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_columns

__all__ = ["ParagraphAggregator"]


def _joined(lines: list[str]) -> str:
    return "\n".join(lines)


class _ParagraphIterator(ItemIterator[tuple[str, Any]]):
    saved = ("path", "lines")

    def __init__(self, node: ParagraphAggregator, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.joiner = self.with_retries(node.joiner)
        self.path: Any = None  # of the lines
        self.lines: list[Any] = []

    def run(self) -> Iterator[tuple[str, Any]]:
        for item in self.source.items():
            path, line = pair_of("lines_to_paragraphs", item, "(path, line), as from readlines()")
            before, lines = self.path, self.lines
            if line and (path == before or not lines):
                self.path = path
                lines.append(line)
                continue
            self.path, self.lines = path, [line] if line else []
            if lines:
                yield before, self.joiner(lines)
        if self.lines:
            lines, self.lines = self.lines, []
            yield self.path, self.joiner(lines)


@functional_datapipe("lines_to_paragraphs")
class ParagraphAggregator(OneInput[tuple[str, Any]]):
    """Takes pairs (path, line), and yields pairs (path, paragraph): the lines up to an empty one, or to the next path.

    ``joiner`` makes a paragraph of a list of lines, by default one text.

    State: the lines of the paragraph that has begun. Raises: TypeError if ``joiner`` is no function or, while
    iterating, for items that are no pairs.
    """

    iterator = _ParagraphIterator

    def __init__(
        self, source_datapipe: IterDataPipe[tuple[str, Any]], joiner: Callable[[list[Any]], Any] = _joined
    ) -> None:
        super().__init__(source_datapipe)
        check_columns("joiner", joiner, None)
        self.joiner = joiner
