"""Loaders driven by takes, skips and resumes, by ``skip`` or by ``next`` in its place: both give the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.exact import exact

__all__ = ["EPOCHS", "driven", "steps"]

EPOCHS = 3

Step = tuple[str, int]

steps = st.lists(st.tuples(st.sampled_from(["take", "skip", "skip", "resume"]), st.integers(0, 7)), max_size=6)


def driven(make: Callable[[int], Any], program: Sequence[Step], by_skip: bool) -> list[str]:
    """All that ``program`` takes, and then the rest of ``EPOCHS`` epochs. ``make(n)``: that of the n-th resume."""
    drive = _Drive(make, by_skip)
    try:
        for what, count in program:
            getattr(drive, what)(count)
        drive.take(None)
    finally:
        drive.loader.shutdown()
    return drive.found


class _Drive:
    def __init__(self, make: Callable[[int], Any], by_skip: bool) -> None:
        self.make, self.by_skip, self.resumes = make, by_skip, 0
        self.loader = make(0)
        self.stream: Any = None
        self.found: list[str] = []

    def take(self, count: int | None) -> None:
        """So many, over the ends of epochs; None: all."""
        left = count
        while left != 0 and self.loader.epoch < EPOCHS:
            self.stream = iter(self.loader) if self.stream is None else self.stream
            try:
                item = next(self.stream)
            except StopIteration:
                self.stream = None
                continue
            self.found.append(exact(item))
            left = None if left is None else left - 1

    def skip(self, count: int) -> None:
        if self.loader.epoch >= EPOCHS:
            return
        if self.by_skip:
            passed = self.loader.skip(count)
        else:
            passed = 0
            self.stream = iter(self.loader) if self.stream is None and count else self.stream
            while passed < count and next(self.stream, self) is not self:
                passed += 1
        self.found.append(f"passed {passed}")
        if passed < count:  # the epoch is over
            rest = list(self.loader if self.stream is None else self.stream) if self.by_skip else []
            assert rest == []
            self.stream = None

    def resume(self, _: int) -> None:
        state = self.loader.state_dict()
        self.loader.shutdown()
        self.resumes += 1
        self.loader, self.stream = self.make(self.resumes), None
        self.loader.load_state_dict(state)
