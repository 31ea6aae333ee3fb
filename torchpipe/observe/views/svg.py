"""The graph as a picture: processes as boxes, their nodes in them, what is known of their time and queues. Pure.

The positions of a graph's nodes in a picture: in rows from the top down, the sections one below the other. Pure.

Two pictures are text themselves: lines, and Mermaid's language, which GitHub and many documentation tools draw.

Colours of pictures and pages, light and dark, and text that is safe to put there. Pure.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchpipe.observe.text import format_count, format_seconds, own_shares, spent_s
from torchpipe.stats import LoaderStats, NodeStats, ProcessStats, QueueStats
from torchpipe.stats.model import Section

__all__ = [
    "CSS",
    "Group",
    "escape",
    "graph_as",
    "graph_mermaid",
    "graph_svg",
]

_LIGHT = {
    "paper": "#ffffff",
    "group": "#f4f6f8",
    "box": "#ffffff",
    "line": "#c9d1d9",
    "ink": "#1f2328",
    "soft": "#59636e",
    "busy": "#2f6fde",
    "send": "#8a63d2",
    "wait": "#d9822b",
    "idle": "#d5dbe1",
    "good": "#1a7f4b",
    "bad": "#cf222e",
}
_DARK = {
    "paper": "#0d1117",
    "group": "#151b23",
    "box": "#1c232c",
    "line": "#3d444d",
    "ink": "#e6edf3",
    "soft": "#9aa4af",
    "busy": "#5b9bff",
    "send": "#b392f0",
    "wait": "#f0a04b",
    "idle": "#363e48",
    "good": "#4ac284",
    "bad": "#ff7b72",
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


CSS = f""".tp{{{_variables(_LIGHT)}}}
@media (prefers-color-scheme:dark){{.tp{{{_variables(_DARK)}}}}}
.tp text{{font:13px ui-sans-serif,system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}}
.tp .strong{{font-weight:600}}
.tp .name{{font:13px ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace}}
.tp .soft{{fill:var(--soft);font-size:12px}}
.tp .over{{paint-order:stroke;stroke:var(--group);stroke-width:5px}}
.tp .group{{fill:var(--group);stroke:var(--line)}}
.tp .box{{fill:var(--box);stroke:var(--line)}}
.tp .slowest{{stroke:var(--bad);stroke-width:2}}
.tp .edge{{fill:none;stroke:var(--soft);stroke-width:1.3}}
.tp .tip{{fill:var(--soft)}}
.tp .paper{{fill:var(--paper)}}
.tp .busy{{fill:var(--busy)}}
.tp .send{{fill:var(--send)}}
.tp .wait{{fill:var(--wait)}}
.tp .idle{{fill:var(--idle)}}
.tp .bad{{fill:var(--bad)}}
"""
"""The style of all pictures: a page that holds several may have it once or often."""


def escape(text: object) -> str:
    """``text`` for HTML, SVG and their attributes: without what XML cannot hold."""
    return html.escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", str(text)))


def _shortened(text: str, most: int) -> str:
    """At most ``most`` characters, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "\u2026"


_MOST_CHARS = 60  # of a name in Mermaid
_SECTIONS: tuple[Section, ...] = ("dispatch", "shard", "main")


@dataclass(frozen=True)
class Group:
    """The nodes of a section, row by row: each stands below all of those that it reads."""

    section: Section
    where: str  # who runs it
    kinds: tuple[str, ...]  # of the processes that do
    rows: tuple[tuple[NodeStats, ...], ...]


def _groups_of(stats: LoaderStats) -> list[Group]:
    """The sections that have nodes, and the main one, where the loop is, in any case."""
    return [
        Group(section, _where(section, stats), _kinds(section, stats), rows)
        for section in _SECTIONS
        if (rows := _rows([node for node in stats.nodes if node.section == section])) or section == "main"
    ]


def _graph_text(stats: LoaderStats) -> str:
    """The sections one below the other, one line a node with the numbers of its inputs."""
    lines = []
    for group in _groups_of(stats):
        lines.append(f"{group.section} section: {group.where}")
        for node in (node for row in group.rows for node in row):
            source = f"  <- {', '.join(map(str, node.inputs))}" if node.inputs else ""
            lines.append(f"  {node.number:>3} {node.name}{source}")
    return "\n".join(lines)


def graph_mermaid(stats: LoaderStats) -> str:
    """A flowchart: a box for each section, an arrow for each input."""
    lines = ["flowchart TD"]
    for group in _groups_of(stats):
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
        for char in _shortened(text, _MOST_CHARS)
    )


_BOX_W, _BOX_H, _GAP_X, _GAP_Y = 290, 46, 18, 26
_PAD, _TITLE_H, _LINE_H = 14, 26, 20
_MOST_LINES = 8  # of processes, and of queues
_BETWEEN = 30  # two groups
_NAME_CHARS, _FACT_CHARS = 34, 44


@dataclass(frozen=True)
class _Spot:
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.x + _BOX_W / 2


def graph_as(stats: LoaderStats, format: str) -> str:
    """The graph as ``"text"``, ``"svg"`` or ``"mermaid"``. Raises: ValueError for another format."""
    ways = {"text": _graph_text, "svg": graph_svg, "mermaid": graph_mermaid}
    if format not in ways:
        raise ValueError(f'format must be "text", "svg" or "mermaid", got {format!r}')
    return ways[format](stats)


def graph_svg(stats: LoaderStats) -> str:
    """A whole SVG document, without any reference to elsewhere, that follows the reader's theme."""
    groups = _groups_of(stats)
    widest = max((len(row) for group in groups for row in group.rows), default=1)
    width = max(widest * (_BOX_W + _GAP_X) - _GAP_X + 4 * _PAD, _BOX_W + 8 * _PAD)
    spots: dict[int, _Spot] = {}
    below: list[str] = []  # groups, which lie under all else
    parts: list[str] = []
    y: float = _PAD
    for group in groups:
        height = _draw_group(group, stats, y, width, spots, parts)
        below.append(
            f'<rect class="group" x="{_PAD}" y="{y:g}" width="{width - 2 * _PAD:g}" height="{height:g}" rx="8"/>'
        )
        y += height + _BETWEEN
    loop_y = y - _BETWEEN + _GAP_Y
    parts += _loop(stats, spots, loop_y, width)
    height = loop_y + _BOX_H + _PAD
    edges = list(_edges(stats, spots))
    label = escape(f"Graph of {len(stats.nodes)} nodes. {stats.advice.sentence}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tp" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{label}"><style>{CSS}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{"".join([*below, *edges, *parts])}</svg>'
    )


def _draw_group(
    group: Group, stats: LoaderStats, top: float, width: float, spots: dict[int, _Spot], parts: list[str]
) -> float:
    """Add what is in the group, which begins at ``top``: how high it is."""
    y = top + _TITLE_H
    parts.append(f'<text class="strong" x="{2 * _PAD}" y="{top + 18:g}">{escape(group.where)}</text>')
    processes = [process for process in stats.processes if process.kind in group.kinds and process.kind != "main"]
    for process in processes[:_MOST_LINES]:
        parts.append(_process(process, 2 * _PAD, y, width - 4 * _PAD))
        y += _LINE_H
    names = {process.name for process in processes} | ({"main"} if group.section == "main" else set())
    queues = [queue for queue in stats.queues if queue.source in names or queue.target in names]
    if len(processes) > _MOST_LINES:
        parts.append(f'<text class="soft" x="{2 * _PAD}" y="{y + 12:g}">{len(processes) - _MOST_LINES} more</text>')
        y += _LINE_H
    if group.section == "main":
        for queue in queues[:_MOST_LINES]:
            parts.append(_queue(queue, 2 * _PAD, y, width - 4 * _PAD))
            y += _LINE_H
    for row in group.rows:
        y += _GAP_Y if row is not group.rows[0] else 6
        left = (width - len(row) * (_BOX_W + _GAP_X) + _GAP_X) / 2
        for index, node in enumerate(row):
            spots[node.number] = _Spot(left + index * (_BOX_W + _GAP_X), y)
            parts.append(_node(node, stats, spots[node.number]))
        y += _BOX_H
    return y + _PAD - top


def _node(node: NodeStats, stats: LoaderStats, spot: _Spot) -> str:
    """A box with the node's name; where it is measured, a bar as wide as its share of all nodes' time."""
    share = own_shares(stats).get(node.number, 0.0)
    slowest = " slowest" if stats.advice.node == node.number else ""
    about = "" if node.exact else "~"
    facts = [] if node.items is None else [f"{about}{format_count(node.items)} items"]
    if share:
        facts.append(f"{100 * share:.0f} % of the time")
    if node.mean_s is not None:
        facts.append(format_seconds(node.mean_s))
    if node.repeated and stats.shards > 1:
        facts.append("by every shard")
    if node.errors:
        facts.append(f"{node.errors} errors")
    y_name = spot.y + (18 if facts else 27)
    bar = f'<rect class="busy" x="{spot.x:g}" y="{spot.y + _BOX_H - 5:g}" width="{_BOX_W * share:.1f}" height="5"/>'
    shown = escape(_shortened(", ".join(facts), _FACT_CHARS))
    return (
        f"<g><title>{escape(', '.join([f'{node.number} {node.name}', *facts]))}</title>"
        f'<rect class="box{slowest}" x="{spot.x:g}" y="{spot.y:g}" width="{_BOX_W}" height="{_BOX_H}" rx="5"/>'
        f"{bar if share else ''}"
        f'<text class="name" x="{spot.x + 9:g}" y="{y_name:g}">{escape(_shortened(node.name, _NAME_CHARS))}</text>'
        f'<text class="soft" x="{spot.x + 9:g}" y="{spot.y + 35:g}">{shown}</text></g>'
    )


def _process_bar(process: ProcessStats, x: float, y: float, width: float) -> str:
    """The time of a process, as the parts of a bar."""
    spent = spent_s(process)
    whole = sum(spent.values())
    text = ", ".join(f"{doing} {100 * part / whole:.0f} %" for doing, part in spent.items()) if whole else "no time yet"
    parts = [f"<g><title>{escape(f'{process.name}: {text}')}</title>"]
    parts.append(f'<rect class="idle" x="{x:g}" y="{y:g}" width="{width:g}" height="10"/>')
    for kind, time_s in zip(("busy", "send", "idle", "wait"), spent.values()) if whole else ():
        part = width * time_s / whole
        if part >= 0.5:
            parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" width="{part:.1f}" height="10"/>')
        x += part
    return "".join([*parts, "</g>"])


def _process(process: ProcessStats, x: float, y: float, width: float) -> str:
    text = process.name + (f", {process.restarts} restarts" if process.restarts else "")
    label = f'<text class="soft over" x="{x:g}" y="{y + 12:g}">{escape(text)}</text>'
    return label + _process_bar(process, x + 130, y + 3, width - 130)


def _queue(queue: QueueStats, x: float, y: float, width: float) -> str:
    of = "" if queue.limit is None else f" of {queue.limit}"
    text = f"{queue.name}: {queue.fill}{of} {queue.unit}"
    label = f'<text class="soft over" x="{x:g}" y="{y + 12:g}">{escape(text)}</text>'
    if not queue.limit:
        return label
    x, width = x + 190, width - 190
    full = width * min(1.0, queue.fill / queue.limit)
    return (
        f'{label}<rect class="idle" x="{x:g}" y="{y + 5:g}" width="{width:g}" height="6" rx="3"/>'
        f'<rect class="busy" x="{x:g}" y="{y + 5:g}" width="{full:.1f}" height="6" rx="3"/>'
    )


def _loop(stats: LoaderStats, spots: dict[int, _Spot], y: float, width: float) -> Iterator[str]:
    """The user's own loop, which reads the last node."""
    spot = _Spot((width - _BOX_W) / 2, y)
    spots[0] = spot
    consumer = stats.consumer
    waited = f"waited {100 * consumer.wait_share:.0f} %" if consumer.elapsed_s else f"epoch {stats.epoch}"
    slowest = " slowest" if stats.advice.bottleneck == "consumer" else ""
    bar = _BOX_W * consumer.wait_share
    yield (
        f'<rect class="box{slowest}" x="{spot.x:g}" y="{y:g}" width="{_BOX_W}" height="{_BOX_H}" rx="23"/>'
        f'<text class="strong" x="{spot.middle:g}" y="{y + 19:g}" text-anchor="middle">your loop</text>'
        f'<text class="soft" x="{spot.middle:g}" y="{y + 35:g}" text-anchor="middle">{escape(waited)}, '
        f"{format_count(consumer.items_per_s)} items/s</text>"
    )
    if bar >= 1:
        yield f'<rect class="wait" x="{spot.x:g}" y="{y + _BOX_H + 3:g}" width="{bar:.1f}" height="4" rx="2"/>'


def _edges(stats: LoaderStats, spots: dict[int, _Spot]) -> Iterator[str]:
    read = {number for node in stats.nodes for number in node.inputs}
    for node in stats.nodes:
        for number in node.inputs:
            if number in spots:
                yield _edge(spots[number], spots[node.number])
        if node.number not in read:
            yield _edge(spots[node.number], spots[0])


def _edge(start: _Spot, end: _Spot) -> str:
    x, y, to_x, to_y = start.middle, start.y + _BOX_H, end.middle, end.y - 6
    bend = min(40.0, (to_y - y) / 2)
    return (
        f'<path class="edge" d="M{x:g} {y:g}C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}"/>'
        f'<path class="tip" d="M{to_x - 4:g} {to_y - 1:g}L{to_x + 4:g} {to_y - 1:g}L{to_x:g} {to_y + 6:g}Z"/>'
    )
