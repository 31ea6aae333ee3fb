"""``loader.report("report.html")``: one page with all that is known of an epoch. Pure, but for :func:`write_report`.

The page refers to nothing elsewhere and runs no code: it opens from a mail or an artifact store, in both themes, and on
a phone.

An epoch over time, as a picture: items a second, how much of the time the loop waited, and what happened. Pure.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torchpipe.observe.text import format_count, format_seconds, node_rows, own_shares, process_rows
from torchpipe.observe.views.svg import CSS, escape, graph_svg
from torchpipe.stats import LoaderStats, Moment

__all__ = ["check_target", "report_html", "timeline_svg", "write_report"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _STRIP = 760, 220, 56, 26, 60, 16
_SERIOUS = ("restart", "lost", "stall")


def timeline_svg(stats: LoaderStats) -> str:
    """A whole SVG document. Needs at least one moment in ``stats.timeline``."""
    spans = _spans(stats)
    end_s = max(_moments(stats)[-1].at_s, 1e-9)
    most = max((rate for _, _, rate, _ in spans), default=0.0) or 1.0
    base = _HEIGHT - _BOTTOM
    plot_w, plot_h = _WIDTH - _LEFT - 14, base - _TOP

    def x(at_s: float) -> float:
        return _LEFT + plot_w * min(1.0, max(0.0, at_s / end_s))

    points = [f"M{_LEFT} {base}"]
    strip = []
    for begin, end, rate, waited in spans:
        y = base - plot_h * rate / most
        points.append(f"L{x(begin):.1f} {y:.1f}L{x(end):.1f} {y:.1f}")
        strip.append(
            f'<rect class="wait" x="{x(begin):.1f}" y="{base + 8}" width="{max(0.5, x(end) - x(begin)):.1f}" '
            f'height="{_STRIP}" opacity="{waited:.2f}"><title>{100 * waited:.0f} % waited</title></rect>'
        )
    area = f'<path d="{"".join(points)}L{x(spans[-1][1] if spans else 0):.1f} {base}Z" class="busy" opacity="0.35"/>'
    ticks = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - 14}" y1="{base - plot_h * part:g}" y2="{base - plot_h * part:g}" '
        f'style="stroke:var(--line)"/><text class="soft" x="{_LEFT - 8}" y="{base - plot_h * part + 4:g}" '
        f'text-anchor="end">{format_count(most * part)}</text>'
        for part in (0, 0.5, 1)
    )
    times = "".join(
        f'<text class="soft" x="{x(end_s * part):.1f}" y="{base + 42}" text-anchor="{where}">'
        f"{_clock(end_s * part)}</text>"
        for part, where in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tp" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="Items a second over time"><style>{CSS}</style>'
        f'<rect class="paper" width="100%" height="100%"/><text class="soft" x="{_LEFT}" y="15">items a second; below: '
        f"how much of the time your loop waited</text>{ticks}{area}"
        f'<rect class="idle" x="{_LEFT}" y="{base + 8}" width="{plot_w}" height="{_STRIP}" opacity="0.5"/>'
        f"{''.join(strip)}{_marks(stats, end_s, x)}{times}</svg>"
    )


def _moments(stats: LoaderStats) -> list[Moment]:
    """The noted moments, and the present one: it completes the picture with all that came after the last of them."""
    moments, consumer = list(stats.timeline), stats.consumer
    now_s = (consumer.start_s or 0.0) + consumer.elapsed_s
    last, before_s = moments[-1], moments[-2].at_s if len(moments) > 1 else 0.0
    if now_s > last.at_s:
        if now_s - last.at_s < (last.at_s - before_s) / 2:  # too short for a rate of its own
            moments.pop()
        items, wait_s = max(consumer.items, last.items), max(consumer.wait_s, last.wait_s)
        moments.append(Moment(at_s=now_s, items=items, wait_s=wait_s))
    return moments


def _spans(stats: LoaderStats) -> list[tuple[float, float, float, float]]:
    """(begin, end, items a second, part of it waited) between two moments."""
    spans = []
    at_s, items, wait_s = 0.0, 0, 0.0
    for moment in _moments(stats):
        took = moment.at_s - at_s
        if took > 0:
            waited = min(1.0, max(0.0, (moment.wait_s - wait_s) / took))
            spans.append((at_s, moment.at_s, (moment.items - items) / took, waited))
        at_s, items, wait_s = moment.at_s, moment.items, moment.wait_s
    return spans


def _marks(stats: LoaderStats, end_s: float, x: Callable[[float], float]) -> str:
    marks = []
    for event in stats.events:
        at_s = event.at - (stats.began_at or event.at)
        if not 0 <= at_s <= end_s * 1.05:
            continue
        colour = "var(--bad)" if event.kind in _SERIOUS else "var(--soft)"
        at = x(at_s)
        line = (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 4}" y2="{_HEIGHT - _BOTTOM + 24}" stroke-width="2" '
            f'stroke-dasharray="4 3"/>'
        )
        marks.append(
            f'<g style="stroke:{colour}"><title>{escape(f"{event.kind}: {event.process}: {event.text}")}</title>'
            f"{'' if event.kind == 'skip' else line}"  # there may be a hundred of these
            f'<circle cx="{at:.1f}" cy="{_TOP - 4}" r="4" style="fill:{colour}"/></g>'
        )
    return "".join(marks)


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 120 else f"{minutes / 60:.1f} h"


_PAGE_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
 font:16px/1.5 ui-sans-serif,system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 18px 60px}
h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 10px}
h2{font-size:18px;margin:38px 0 10px}
.sentence{font-size:24px;line-height:1.3;margin:0 0 8px;font-weight:600}
.change{font-size:18px;margin:0 0 20px;color:var(--good)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;
 margin:20px 0;padding:0;list-style:none}
.facts li{background:var(--group);border:1px solid var(--line);border-radius:8px;padding:8px 14px}
.facts b{display:block;font-size:19px;font-weight:600}
.facts span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto;-webkit-overflow-scrolling:touch}
.picture svg{max-width:100%;height:auto;display:block;margin:0 auto}
table{border-collapse:collapse;font-size:14px;width:100%;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:500;border-bottom:1px solid var(--line)}
th,td{padding:6px 10px;text-align:right;white-space:nowrap}
th.left,td.left{text-align:left}
td.left{font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace}
td.left{max-width:340px;overflow:hidden;text-overflow:ellipsis}
td.text{white-space:normal;min-width:240px;text-align:left}
.wide svg{min-width:560px}
tbody tr:nth-child(even){background:var(--group)}
tr.slowest td{color:var(--bad);font-weight:600}
.bar{display:inline-block;vertical-align:middle;height:9px;background:var(--busy);border-radius:2px;margin-right:8px}
.legend{color:var(--soft);font-size:13px;margin:6px 0 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 5px 0 14px;vertical-align:-1px}
.legend i:first-child{margin-left:0}
footer{color:var(--soft);font-size:13px;margin-top:44px}
"""
_LEGEND = (
    '<p class="legend"><i style="background:var(--busy)"></i>making<i style="background:var(--send)"></i>sending'
    '<i style="background:var(--idle)"></i>waits for the loop<i style="background:var(--wait)"></i>waits for input</p>'
)


def report_html(stats: LoaderStats, title: str = "torchpipe") -> str:
    """The page."""
    advice = stats.advice
    change = f'<p class="change">{_sentence(advice.change)}</p>' if advice.change else ""
    parts = [
        f'<h1>{escape(title)}</h1><p class="sentence">{_sentence(advice.sentence)}</p>{change}',
        _facts(stats),
        f'<h2>What runs where</h2><div class="picture">{graph_svg(stats)}</div>{_LEGEND}',
    ]
    if stats.timeline:
        parts.append(f'<h2>Over time</h2><div class="picture wide">{timeline_svg(stats)}</div>')
    if stats.events:
        parts.append("<h2>What happened</h2>" + _events(stats))
    if stats.nodes:
        parts.append("<h2>Nodes</h2>" + _nodes(stats))
    parts.append("<h2>Processes</h2>" + _processes(stats))
    if advice.predictions:
        parts.append("<h2>With another number of workers</h2>" + _predictions(stats))
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{escape(title)}</title><style>{CSS}{_PAGE_CSS}</style></head>"
        f'<body class="tp"><main>{"".join(parts)}<footer>Made by torchpipe, {escape(made)}. An item is what your '
        "loop gets: a batch, where the graph makes batches. A chunk is what a worker hands over at once. "
        "~ marks estimates.</footer></main></body></html>\n"
    )


def write_report(stats: LoaderStats, path: str | os.PathLike[str], title: str = "torchpipe") -> Path:
    """Write the page, whole or not at all. Raises: FileNotFoundError or another OSError, naming the path.

    Who may read it is as with ``open()``: as the umask says, or as the file that was there.
    """
    target = check_target(path)
    text = report_html(stats, title)
    name = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(8)}")
    try:
        handle = open(name, "x", encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, f"nothing can be written there ({error.strerror})", str(target)) from None
    try:
        with handle as file:
            if target.exists():
                shutil.copymode(target, name)
            file.write(text)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target


def check_target(path: str | os.PathLike[str]) -> Path:
    """``path``, if a file may be there. Raises: FileNotFoundError or IsADirectoryError, saying what to do."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: name a file in it, such as {target / 'report.html'}")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {target.parent} does not exist, so {target.name} cannot be written: make it"
        )
    return target


def _sentence(text: str) -> str:
    """The text as HTML: the part between backticks is code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(text))


def _facts(stats: LoaderStats) -> str:
    consumer = stats.consumer
    of = "" if stats.total is None else f" of {stats.total:,}"
    facts = [
        (f"{stats.delivered:,}{of}", f"items of epoch {stats.epoch}, {stats.state}"),
        (f"{format_count(consumer.items_per_s)}/s", "items"),
        (f"{100 * consumer.wait_share:.0f} %", f"of {format_seconds(consumer.elapsed_s)} spent waiting"),
        (format_seconds(consumer.start_s), "until the first item"),
        (f"{stats.workers or 'none'}", f"workers ({stats.method}), {stats.shards} shards, {stats.cores} cores"),
        (str(stats.restarts), "restarts"),
    ]
    return f'<ul class="facts">{"".join(f"<li><b>{escape(a)}</b><span>{escape(b)}</span></li>" for a, b in facts)}</ul>'


def _table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], left: int = 1, *, text: bool = False) -> str:
    """``rows``: (class, cells that are HTML already). ``text``: the last ones are text, not figures."""

    def line(kind: str, cells: Sequence[str]) -> str:
        classes = [' class="left"'] * left + [' class="text"' if text else ""] * (len(cells) - left)
        return "".join(f"<{kind}{name}>{cell}</{kind}>" for name, cell in zip(classes, cells))

    body = "".join(f'<tr class="{name}">{line("td", cells)}</tr>' for name, cells in rows)
    return f'<div class="wide"><table><thead><tr>{line("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(share: float) -> str:
    return f'<span class="bar" style="width:{70 * min(1.0, share):.0f}px"></span>{100 * share:.0f} %'


def _nodes(stats: LoaderStats) -> str:
    shares, rows = own_shares(stats), []
    for node, row in zip(stats.nodes, node_rows(stats)):
        cells = {head: escape(cell) for head, cell in row.items() if head}  # without its number
        if node.number in shares:
            cells["own time"] = _bar(shares[node.number])
        rows.append(("slowest" if node.number == stats.advice.node else "", [*cells.values()]))
    return _table([*cells], rows, left=2)


def _processes(stats: LoaderStats) -> str:
    rows = process_rows(stats)
    return _table([*rows[0]] if rows else [], [("", [*map(escape, row.values())]) for row in rows])


def _events(stats: LoaderStats) -> str:
    began = stats.began_at or (stats.events[0].at if stats.events else 0.0)
    rows = [
        ("", [f"{event.at - began:+.1f} s", escape(event.kind), escape(event.process), escape(event.text)])
        for event in stats.events
    ]
    return _table(("when", "what", "process", ""), rows, left=3, text=True)


def _predictions(stats: LoaderStats) -> str:
    most = max(item.items_per_s for item in stats.advice.predictions) or 1.0
    rows = []
    for item in stats.advice.predictions:
        bar = f'<span class="bar" style="width:{120 * item.items_per_s / most:.0f}px"></span>'
        cells = [
            f"{item.workers}{' (now)' if item.workers == stats.workers else ''}",
            f"{bar}{format_count(item.items_per_s)}/s",
            f"{100 * item.wait_share:.0f} %",
        ]
        rows.append(("", cells))
    return _table(("workers", "items, as predicted", "you would wait"), rows)
