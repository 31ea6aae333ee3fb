"""The samples of an order in the batches of a rank, without a plan: in turn. Pure; in the user's process."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Share"]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The samples in the batches of a rank, ``before`` samples into the order."""

    length: int
    size: int
    rank: int
    ranks: int
    drop_last: bool
    uneven: str
    before: int = 0

    @property
    def whole(self) -> int:
        """The samples of a step of all ranks."""
        return self.size * self.ranks

    @property
    def batches(self) -> int:
        """The batches that are left, of all ranks."""
        left = max(0, self.length - self.before)
        return left // self.size if self.drop_last else -(-left // self.size)

    @property
    def steps(self) -> int:
        """The number of steps that each rank takes."""
        return -(-self.batches // self.ranks) if self.uneven == "pad" else self.batches // self.ranks

    def taken(self, step: int) -> int:
        """The step whose batch this rank has in ``step``: a pad is that of the step before."""
        return step - (step * self.ranks + self.rank >= self.batches)

    def start(self, step: int) -> int:
        """The position in the order at which this rank's batch begins.

        A pad is its batch of the step before, which may have been before a stop; in an epoch's first step, rank 0's.
        """
        start = self.before + (self.taken(step) * self.ranks + self.rank) * self.size
        return start if start >= 0 else self.before

    def positions(self, step: int) -> range:
        start = self.start(step)
        return range(start, min(start + self.size, self.length))

    def after(self, steps: int) -> int:
        """The number of samples of the order that are behind all ranks after ``steps``."""
        return min(self.length, self.before + min(self.batches, steps * self.ranks) * self.size)
