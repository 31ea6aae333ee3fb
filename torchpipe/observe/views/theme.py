"""Colours of pictures and pages, light and dark, and text that is safe to put there. Pure."""

from __future__ import annotations

import html
import re

__all__ = ["CSS", "escape", "shortened"]

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


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "\u2026"
