"""A pass of torchdata's threads that an exception has ended is let go of, without the collector."""

from __future__ import annotations

from tests.loader.test_left import bad, check_let_go_of, source
from torchpipe import DataLoader2


def test_a_pass_in_threads_that_has_raised_is_let_go_of() -> None:
    check_let_go_of(lambda: DataLoader2(source().threadpool_map(bad)))
