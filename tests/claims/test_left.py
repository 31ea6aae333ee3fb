"""A loop over claims that an exception of a sample has ended is let go of, without the collector."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loader.test_left import FORKED, Numbers, check_let_go_of
from torchpipe import DataLoader


@pytest.mark.parametrize("options", [{}, FORKED], ids=["in process", "workers"])
def test_a_loop_over_claims_that_has_raised_is_let_go_of(options: dict[str, Any]) -> None:
    check_let_go_of(lambda: DataLoader(Numbers(), 1, **options).claims(ahead=9))
