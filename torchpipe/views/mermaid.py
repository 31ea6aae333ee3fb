"""The graph in Mermaid's language, which GitHub and many documentation tools draw. Pure."""

from __future__ import annotations

from torchpipe.stats import LoaderStats
from torchpipe.views.layout import groups_of
from torchpipe.views.theme import shortened

__all__ = ["graph_mermaid"]

_MOST_CHARS = 60


def graph_mermaid(stats: LoaderStats) -> str:
    """A flowchart: a box for each section, an arrow for each input."""
    lines = ["flowchart TD"]
    for group in groups_of(stats):
        lines.append(f'  subgraph {group.section}_section["{_quoted(group.where)}"]')
        lines += [f'    n{node.number}["{_quoted(node.name)}"]' for row in group.rows for node in row]
        if group.section == "main":
            lines.append('    loop(["your loop"])')
        lines.append("  end")
    read = {number for node in stats.nodes for number in node.inputs}
    for node in stats.nodes:
        lines += [f"  n{number} --> n{node.number}" for number in node.inputs]
        if node.number not in read:
            lines.append(f"  n{node.number} --> loop")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """As Mermaid wants it: entities by number, for all that it or HTML could take for its own."""
    return "".join(
        char if char.isalnum() or char in " _.,:()[]=-+*/" else f"#{ord(char)};"
        for char in shortened(text, _MOST_CHARS)
    )
