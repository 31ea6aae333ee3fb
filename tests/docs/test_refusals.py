"""docs/guarantees.md says which combinations are refused: those of the core, and of all rings."""

from __future__ import annotations

from tests.pairs.tables import PAGE, with_table


def test_the_documentation_says_what_is_refused() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_table(page), "python -m tests.pairs.tables writes it anew"
