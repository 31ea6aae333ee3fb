"""The table of combinations that are refused, or not exact, in docs/guarantees.md: made from the registries here.

python -m tests.pairs.tables        writes it anew
"""

from __future__ import annotations

from pathlib import Path

from tests.pairs.loader_features import LIMITS, REFUSALS

__all__ = ["PAGE", "with_table"]

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
_BEGIN, _END = "<!-- made by python -m tests.pairs.tables -->\n", "<!-- end -->\n"


def _table() -> str:
    refused = [f"| {refusal.what} | is refused: {refusal.instead} |" for refusal in REFUSALS]
    inexact = [f"| {limit.what} | is not exact: {limit.why} |" for limit in LIMITS]
    return "\n".join(["| of a `DataLoader` | |", "|---|---|", *refused, *inexact]) + "\n"


def with_table(page: str) -> str:
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{_table()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
