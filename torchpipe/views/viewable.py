"""What every loader has to be looked at: pictures, pages, live tables, traces. Runs in the user's process."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torchpipe.stats import LoaderStats

__all__ = ["GraphFormat", "Viewable"]

GraphFormat: TypeAlias = Literal["text", "svg", "mermaid"]


class Viewable:
    """Mixed into the loaders. All of it draws from :meth:`stats`, asks no process and changes nothing in the stream."""

    def stats(self) -> LoaderStats:
        """What the loader is doing."""
        raise NotImplementedError

    def _explain(self) -> str:
        from torchpipe.views.layout import graph_text

        return graph_text(self.stats())

    def explain(self, format: GraphFormat = "text") -> str:
        """Which node runs where, and what reads what.

        As ``"text"``; as ``"svg"``, a document of its own that shows processes as boxes, in the reader's theme, with
        what is known of their time just now; or as ``"mermaid"``, for a Markdown page.

        Raises: ValueError for another format.
        """
        if format == "text":
            return self._explain()
        if format == "svg":
            from torchpipe.views.svg import graph_svg

            return graph_svg(self.stats())
        if format == "mermaid":
            from torchpipe.views.mermaid import graph_mermaid

            return graph_mermaid(self.stats())
        raise ValueError(f'format must be "text", "svg" or "mermaid", got {format!r}')
