"""How the ranks of a run tell each other something: all in step, each wait bounded, and nobody taken at another's word.

Runs in the user's process, in the thread that asks.

Everything begins with one small all-reduce, which says what each rank is about to do; where that differs, all ranks
learn of it at once, and no message is taken for another.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchpipe.errors import RankError

__all__ = ["RankGroup", "Talk"]

_NUMBERS = 4  # of each rank, in one all-reduce: what it is about, and three more
_OTHERS_S = 2.0  # how long to wait for those that find out later


class Talk(enum.IntEnum):
    """What a rank is about to do, when it tells the others something."""

    STEP = 1
    BEGIN = 2
    FAILURE = 3
    STATES = 4

    def described(self) -> str:
        return ("takes an item", "begins an epoch", "has failed", 'is in state_dict(states="all")')[self - 1]


class RankGroup:
    """All ranks, through a gloo group of its own: NCCL would need the GPU, whose queue this must not wait for.

    All ranks make it, and make the same calls in the same order. Close it with :meth:`close`.

    Raises, in every call: RankError if a rank does not answer within ``timeout_s``, or does something else.
    """

    def __init__(self, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._telling = 0  # the thread that is within a call
        self._group: Any = None
        with self._answered():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def numbers(self, talk: Talk, mine: Sequence[int] = ()) -> list[list[int]]:
        """Up to three numbers of each rank."""
        with self._alone(talk):
            return self._numbers(talk, mine)

    def objects(self, talk: Talk, mine: Any) -> list[Any]:
        """What each rank gives: plain data, pickled."""
        told: list[Any] = [None] * self.world_size
        with self._alone(talk):
            self._numbers(talk)
            with self._answered():
                dist.all_gather_object(told, mine, group=self._group)
        return told

    @contextmanager
    def _alone(self, talk: Talk) -> Iterator[None]:
        """One call at a time. Raises: RuntimeError within another one of this thread, which would wait for itself."""
        with self._lock:
            me = threading.get_ident()
            if self._telling == me:
                raise RuntimeError(
                    f"this rank {talk.described()} while it is telling the other ranks something else, by a signal "
                    "handler: there, only note that it is wanted, and do it between two items, on all ranks at the "
                    "same step"
                )
            try:
                self._telling = me
                yield
            finally:
                self._telling = 0

    def _numbers(self, talk: Talk, mine: Sequence[int] = ()) -> list[list[int]]:
        table = torch.zeros((self.world_size, _NUMBERS), dtype=torch.int64, device="cpu")
        table[self.rank, : 1 + len(mine)] = torch.tensor([talk, *mine], device="cpu")
        with self._answered():
            dist.all_reduce(table, group=self._group)
        told: list[list[int]] = table.tolist()
        if any(row[0] != talk for row in told):
            doing = ", ".join(f"rank {rank} {_described(row[0])}" for rank, row in enumerate(told))
            raise RankError(
                f"the ranks do not do the same: {doing}. All ranks take as many items, begin the same epochs and save "
                "at the same steps; a rank alone may ask for its own state at any time"
            )
        return [row[1:] for row in told]

    @contextmanager
    def _answered(self) -> Iterator[None]:
        if not dist.is_initialized():
            raise RankError(
                f"rank {self.rank} of {self.world_size} has no process group any more: it was destroyed "
                "(destroy_process_group) while the loader was in use. Shut the loader down first"
            )
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.world_size} has no answer from {self._absent()} (timeout "
                f"{self._timeout_s:g} s): has one died, or stopped to iterate while the others went on? "
                f"{str(error)[:300]}"
            ) from error

    def _absent(self) -> str:
        """The ranks that do not notice the same: those that notice leave word of it in the store of the group."""
        silent: list[str] = []
        try:
            store = self._group.get_group_store()
            store.set(f"torchpipe no answer {self.rank}", "1")
            for rank in range(self.world_size):
                try:
                    store.wait([f"torchpipe no answer {rank}"], timedelta(seconds=0.01 if silent else _OTHERS_S))
                except Exception:  # of other types for each kind of store
                    silent.append(str(rank))
        except Exception:  # the store went with the rank that had it
            return "another rank"
        return f"rank {', '.join(silent)}" if silent else "another rank"

    def close(self) -> None:
        """Let go of the group. Idempotent; asks nobody."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with suppress(ValueError):  # it was destroyed with all others
                dist.destroy_process_group(group)


def _described(talk: int) -> str:
    return Talk(talk).described() if talk in list(Talk) else "does something else"
