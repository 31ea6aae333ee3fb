"""The lists of combinations that are refused, or not exact, in docs/guarantees.md: made from the registries here.

python -m tests.pairs.tables        writes it anew
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.pairs import form_rules, loader_features

__all__ = ["PAGE", "with_table"]

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
_BEGIN, _END = "<!-- made by python -m tests.pairs.tables -->\n", "<!-- end -->\n"

Refusals = Sequence[loader_features.Refusal] | Sequence[form_rules.Refusal]
Limits = Sequence[loader_features.Limit] | Sequence[form_rules.Limit]


def _lists(title: str, refusals: Refusals, limits: Limits) -> str:
    """The text of a refusal says what to do instead: the page need not."""
    refused = [f"- {refusal.what}" for refusal in refusals]
    inexact = [f"- {limit.what}: {limit.why}" for limit in limits]
    return "\n".join([f"{title}, **refused**:", "", *refused, "", f"{title}, **not exact**:", "", *inexact]) + "\n"


def _tables() -> str:
    return "\n".join(
        [
            _lists("Of a `DataLoader`", loader_features.REFUSALS, loader_features.LIMITS),
            _lists("Of nodes in a graph", form_rules.REFUSALS, form_rules.LIMITS),
        ]
    )


def with_table(page: str) -> str:
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{_tables()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
