"""The limits on how far workers run ahead, and the policy for their deaths. Data, in the user's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias, Union

from torchpipe.node.validate import check_count

__all__ = ["OnDeath", "Restart", "WorkerLimits"]

OnDeath: TypeAlias = Union[Literal["restart", "raise"], "Restart"]


@dataclass(frozen=True, kw_only=True)
class Restart:
    """``on_worker_death=Restart(...)``: a worker that dies is replaced, and the stream goes on, within these limits.

    Args:
        max_deaths: deaths at one and the same item, or batch, that are no accident any more but an error that names it.
            Give more where workers are killed from outside now and then (SIGKILL, preemption) and an item takes long.
        max_restarts: how many workers may be replaced, of a reading service in its whole life, of a ``DataLoader`` in
            an epoch, or in all epochs if they persist. One death more is an error, whoever is to blame (in the next
            epoch, if nothing was needed of the worker in this one). None: any number, so that accidents slow a run and
            never end it.

    Raises: TypeError or ValueError, naming the argument.
    """

    max_deaths: int = 3
    max_restarts: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_deaths", check_count("max_deaths", self.max_deaths, at_least=1))
        if self.max_restarts is not None:
            object.__setattr__(self, "max_restarts", check_count("max_restarts", self.max_restarts, at_least=0))

    @classmethod
    def of(cls, on_worker_death: OnDeath) -> Self:
        """The policy that an argument of this name stands for. Raises: ValueError for what is none."""
        if isinstance(on_worker_death, cls):
            return on_worker_death
        if on_worker_death not in ("restart", "raise"):
            raise ValueError(f"on_worker_death must be 'restart', 'raise' or a Restart(...), got {on_worker_death!r}")
        return cls(max_restarts=0 if on_worker_death == "raise" else None)

    def spent(self, restarts: int) -> bool:
        """True once as many workers have been replaced as may be."""
        return self.max_restarts is not None and restarts >= self.max_restarts


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """``window``: messages that each shard may be ahead; ``window_bytes``: bytes, if that is more than two messages.

    ``deaths``: the policy for workers that die. ``torch_wording``: messages say batch and worker, as torch's loader
    does, for item and shard.
    """

    window: int = 2
    window_bytes: int = 8 << 20
    deaths: Restart = Restart()
    torch_wording: bool = False
