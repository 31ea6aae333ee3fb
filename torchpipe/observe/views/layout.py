"""The positions of a graph's nodes in a picture: in rows from the top down, the sections one below the other. Pure.

Two pictures are text themselves: lines, and Mermaid's language, which GitHub and many documentation tools draw.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchpipe.observe.views.theme import shortened
from torchpipe.stats import LoaderStats, NodeStats
from torchpipe.stats.model import Section

__all__ = ["Group", "graph_mermaid", "graph_text", "groups_of"]

_MOST_CHARS = 60  # of a name in Mermaid
_SECTIONS: tuple[Section, ...] = ("dispatch", "shard", "main")


@dataclass(frozen=True)
class Group:
    """The nodes of a section, row by row: each stands below all of those that it reads."""

    section: Section
    where: str  # who runs it
    kinds: tuple[str, ...]  # of the processes that do
    rows: tuple[tuple[NodeStats, ...], ...]


def groups_of(stats: LoaderStats) -> list[Group]:
    """The sections that have nodes, and the main one, where the loop is, in any case."""
    return [
        Group(section, _where(section, stats), _kinds(section, stats), rows)
        for section in _SECTIONS
        if (rows := _rows([node for node in stats.nodes if node.section == section])) or section == "main"
    ]


def graph_text(stats: LoaderStats) -> str:
    """The sections one below the other, one line a node with the numbers of its inputs."""
    lines = []
    for group in groups_of(stats):
        lines.append(f"{group.section} section: {group.where}")
        for node in (node for row in group.rows for node in row):
            source = f"  <- {', '.join(map(str, node.inputs))}" if node.inputs else ""
            lines.append(f"  {node.number:>3} {node.name}{source}")
    return "\n".join(lines)


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


def _rows(nodes: list[NodeStats]) -> tuple[tuple[NodeStats, ...], ...]:
    level: dict[int, int] = {}
    for node in nodes:  # inputs stand before what reads them
        level[node.number] = 1 + max((level[number] for number in node.inputs if number in level), default=-1)
    rows: list[list[NodeStats]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for node in nodes:
        rows[level[node.number]].append(node)
    return tuple(tuple(row) for row in rows)


def _where(section: Section, stats: LoaderStats) -> str:
    if section == "main" or not stats.workers:
        shards = "" if section == "main" or stats.shards == 1 else f", {stats.shards} shards"
        return f"your process{shards}"
    if section == "dispatch":
        return "dispatcher process" if stats.dispatcher and stats.method != "thread" else "your process"
    what = "thread" if stats.method == "thread" else "worker process"
    plural = "" if stats.workers == 1 else "s" if stats.method == "thread" else "es"
    method = "" if stats.method == "thread" else f" ({stats.method})"
    shards = "" if stats.shards == stats.workers else f", {stats.shards} shards"
    return f"{stats.workers} {what}{plural}{method}{shards}"


def _kinds(section: Section, stats: LoaderStats) -> tuple[str, ...]:
    if section == "main" or not stats.workers:
        return ("main",) if section == "main" else ()
    return ("dispatcher",) if section == "dispatch" else ("worker", "thread")


def _quoted(text: str) -> str:
    """The text as Mermaid wants it: entities by number, for all that it or HTML could take for its own."""
    return "".join(
        char if char.isalnum() or char in " _.,:()[]=-+*/" else f"#{ord(char)};"
        for char in shortened(text, _MOST_CHARS)
    )
