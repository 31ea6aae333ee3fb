"""The findings of an audit: rows, one for each check, and the likely causes. As text, JSON and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

__all__ = ["AuditReport", "Row", "Verdict"]

Verdict = Literal["ok", "unseeded", "refused", "FAULT", "-"]
_COLUMNS = ("lost", "repeated", "reordered", "changed", "hang", "left over")


@dataclass
class Row:
    """One check. ``verdict``: "unseeded": two whole runs have other orders, as nobody seeds what draws them;
    "refused": the loader raised an error instead of going on; "-": was not checked.

    Numbers are of samples (``left_over``: of processes), None where nothing could be counted; of a run that ended early
    they are of the part before. ``hang``: it gave nothing for the time limit. ``text``: the error, or what else is to
    be said.
    """

    check: str
    verdict: Verdict = "ok"
    lost: int | None = None
    repeated: int | None = None
    reordered: int | None = None
    changed: int | None = None
    hang: bool = False
    left_over: int = 0
    text: str = ""

    @property
    def cells(self) -> list[str]:
        numbers = (self.lost, self.repeated, self.reordered, self.changed)
        counted = ["" if number is None else str(number) for number in numbers]
        nothing = self.verdict == "-"
        return [*counted, "" if nothing else "yes" if self.hang else "0", "" if nothing else str(self.left_over)]


@dataclass
class AuditReport:
    """The findings of :func:`audit`. ``str()`` of it is the table."""

    target: str
    loader: str
    batches: int
    samples: int
    epochs: int
    rows: list[Row] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if no check found a fault. What was refused with an error lost nothing unseen, and is none."""
        return not any(row.verdict == "FAULT" for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}

    def head(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.target}: {self.loader}\n"
            f"{self.samples} samples in {self.batches} batches, epochs: {self.epochs}; {versions}"
        )

    def __str__(self) -> str:
        table = [["check", "", *_COLUMNS], *([row.check, row.verdict, *row.cells] for row in self.rows)]
        widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
        lines = [self.head(), ""]
        for number, line in enumerate(table):
            told = [line[0].ljust(widths[0]), line[1].ljust(widths[1])]
            told += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:])]
            lines.append("  ".join(told).rstrip())
            if number and self.rows[number - 1].text:
                lines.append("    " + self.rows[number - 1].text)
        lines += ["", *(f"- {finding}" for finding in self.findings)] if self.findings else []
        lines += ["", self.verdict()]
        return "\n".join(lines)

    def verdict(self) -> str:
        faults = sum(row.verdict == "FAULT" for row in self.rows)
        refused = sum(row.verdict == "refused" for row in self.rows)
        told = f"{faults} of {len(self.rows)} checks found a fault" if faults else "no check found a fault"
        return told + (f"; {refused} refused with an error" if refused else "")

    def to_html(self) -> str:
        """One page, without scripts or anything to be fetched."""
        colours = {"ok": "#1a7f37", "FAULT": "#cf222e", "refused": "#9a6700", "unseeded": "#9a6700", "-": "#6e7781"}
        rows = "".join(
            f"<tr><th scope=row>{escape(row.check)}</th>"
            f'<td style="color:{colours[row.verdict]};font-weight:600">{row.verdict}</td>'
            f"{_cells(row.cells)}<td class=text>{escape(row.text)}</td></tr>\n"
            for row in self.rows
        )
        findings = "".join(f"<li>{escape(finding)}</li>\n" for finding in self.findings)
        columns = "".join(f"<th scope=col>{name}</th>" for name in _COLUMNS)
        return (
            f'<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
            f"<title>Audit of {escape(self.target)}</title><style>:root{{color-scheme:light dark}}"
            "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
            "div{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.3rem .7rem;text-align:right;"
            "border-bottom:1px solid #8886}th[scope=row],td.text{text-align:left}</style>\n"
            f"<h1>Audit of {escape(self.target)}</h1><p>{'<br>'.join(map(escape, self.head().splitlines()))}</p>\n"
            f"<div><table><tr><th></th><th></th>{columns}<th></th></tr>\n{rows}</table></div>\n"
            f"<ul>{findings}</ul><p><b>{escape(self.verdict())}</b></p></html>\n"
        )


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)
