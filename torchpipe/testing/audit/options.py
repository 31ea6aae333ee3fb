"""The options of an audit. Plain data; runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchpipe.testing.audit.report import Row

__all__ = ["Options"]


def _ignore(_: Row) -> None:
    """Nobody waits for the rows."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options with which a loader is audited.

    ``identify`` names a function of a batch that gives the ids of its samples; see ``samples_of`` for a run without
    one. ``kills``: how often the run is cut off, at batches drawn by ``seed``. ``workers``: the number to run with,
    then others to resume under. ``batches``: at most so many are read, for streams without an end. ``timeout_s``: a run
    that gives no batch for so long hangs. ``unseeded``: two whole runs may differ. ``on_row`` is called with each row
    as soon as it is there.
    """

    identify: str | None = None
    kills: int = 5
    workers: Sequence[int] = ()
    epochs: int = 2
    batches: int = 10_000
    timeout_s: float = 60.0
    seed: int = 0
    unseeded: bool = False
    on_row: Callable[[Row], None] = _ignore

    def __post_init__(self) -> None:
        for name, least in (("kills", 0), ("epochs", 1), ("batches", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} should be at least {least}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s} should be above 0")
