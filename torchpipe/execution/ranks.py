"""The talk between the ranks of a run: in step, and each wait bounded; each checks that all are doing the same.

Runs in the user's process, in the thread that asks.

Everything begins with one small all-reduce, which says each rank's next step; where these differ, all ranks learn of it
at once, and no message is taken for another.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import torch
import torch.distributed as dist

from torchpipe.errors import RankError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Acting", "Among", "DataRanks", "RankGroup", "Talk", "acting_as", "data_ranks"]

Among: TypeAlias = Union["DeviceMesh", "ProcessGroup"]
"""Who divides data: the ranks of a mesh of one dimension, or of a group."""

_NUMBERS = 4  # of each rank, in one all-reduce: what it is about, and three more
_OTHERS_S = 2.0  # how long to wait for those that find out later


class Talk(enum.IntEnum):
    """The step that a rank is about to take, when it tells the others something."""

    STEP = 1
    BEGIN = 2
    FAILURE = 3
    STATES = 4

    def described(self) -> str:
        return ("takes an item", "begins an epoch", "has failed", 'is in state_dict(states="all")')[self - 1]


_asked = itertools.count()  # how often this process has asked for a seed that all of a job share


@dataclass(frozen=True)
class DataRanks:
    """The processes that divide data, by their ranks in the default group; this one is at position ``rank`` among them.

    Plain data, which can be pickled and copied. ``part``: are there other processes in the default group? These may be
    the peers of tensor, context or pipeline parallelism, in groups of their own, who read the same data.
    """

    members: tuple[int, ...]
    rank: int
    part: bool
    absent: bool = False  # True if the others do not run, and this process only says what one of them would have

    @property
    def count(self) -> int:
        return len(self.members)

    def shared_seed(self, drawn: int) -> int:
        """The seed of a run that nobody has given one. ``drawn``: by this process.

        Where these ranks are all there are, they agree on it when they begin. Peers are in other groups, and need the
        same one: all groups of a job take what the first of them has drawn. All processes ask equally often, in step,
        and have another seed each time.
        """
        if not self.part:
            return drawn
        return int(_default_store().compare_set(f"torchpipe/seed/{next(_asked)}", "", str(drawn)))

    def check_same(self, what: str, value: str) -> None:
        """Peers in other groups read the same data, and no group asks them. All processes of a job call this equally
        often, in step. Raises: RankError if the first of them has another ``value``.
        """
        if not self.part:
            return
        first = _default_store().compare_set(f"torchpipe/same/{next(_asked)}", "", value).decode()
        if first != value:
            raise RankError(
                f"{what} differ between processes of this job that read the same data: here {value!r}, in another one "
                f"{first!r}. Does a function rest on what differs between processes (hash() of a text, say)?"
            )

    def meet(self) -> Any:
        """A store for these ranks alone, another one each time: all of them call this equally often."""
        name = f"torchpipe/{hashlib.sha256(repr(self.members).encode()).hexdigest()[:16]}"
        store = _default_store()
        prefix = f"{name}/{store.add(f'{name} {self.rank}', 1)}"
        return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _default_store() -> Any:
    return dist.group.WORLD.get_group_store()  # type: ignore[union-attr]


@dataclass
class Acting:
    """The rank as which this process acts; ``asked``: True once a loader has wanted to know."""

    ranks: DataRanks
    asked: bool = False


_acting: list[Acting] = []


@contextmanager
def acting_as(rank: int, ranks: int) -> Iterator[Acting]:
    """Loaders that are made meanwhile are those of rank ``rank`` of ``ranks``, without a process group: they can be
    asked what that rank had (``rows``, ``item_at``), and not be iterated.
    """
    _acting.append(Acting(DataRanks(tuple(range(ranks)), rank, part=False, absent=True)))
    try:
        yield _acting[-1]
    finally:
        _acting.pop()


def data_ranks(given: Any, argument: str) -> DataRanks:
    """The ranks that ``given`` names: all (True), those of a DeviceMesh of one dimension, or of a ProcessGroup.

    Raises: TypeError for anything else, ValueError for a mesh of several dimensions and for a mesh or group without
    this process, RuntimeError without an initialized process group.
    """
    if _acting:
        _acting[-1].asked = True
        return _acting[-1].ranks
    if not dist.is_available():
        raise RuntimeError(f"{argument} needs torch.distributed, which this build of torch lacks")
    absent = isinstance(given, int) and given == dist.GroupMember.NON_GROUP_MEMBER
    mesh_type: Any = dist.device_mesh.DeviceMesh
    if given is not True and not absent and not isinstance(given, mesh_type | dist.ProcessGroup):
        raise TypeError(
            f"{argument} got {given!r:.100} of type {type(given).__name__}: give the ranks that divide the data, as a "
            'slice of one dimension of a DeviceMesh (mesh["dp"]) or as a ProcessGroup, or True for all ranks'
        )
    if not dist.is_initialized():
        raise RuntimeError(
            f"{argument} needs the default process group: call torch.distributed.init_process_group(...) before you "
            "make the loader"
        )
    mesh = given if isinstance(given, mesh_type) else None
    if mesh is not None and mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        one = f'mesh["{names[0]}"]' if names else 'mesh["dp"], of a mesh with mesh_dim_names'
        raise ValueError(
            f"{argument} got a mesh of {mesh.ndim} dimensions ({', '.join(names) or 'without names'}): give the slice "
            f"of the one that divides the data, {one}. Where two of them divide it (replicate, shard), make a second "
            "mesh of the same ranks for the data, init_device_mesh(device, (replicate * shard, tp), "
            'mesh_dim_names=("dp", "tp")), and give its "dp"'
        )
    absent = absent or (mesh is not None and mesh.get_coordinate() is None)
    group: Any = None if given is True else given if mesh is None or absent else mesh.get_group()
    me, everyone = dist.get_rank(), dist.get_world_size()
    members: tuple[int, ...] = ()
    if not absent:
        members = tuple(range(everyone) if group is None else dist.get_process_group_ranks(group))
    if me not in members:
        raise ValueError(
            f"{argument} got a mesh or group that rank {me} is not in: each process gives the one that it belongs to, "
            "which has one process for each part of the data"
        )
    return DataRanks(members, members.index(me), len(members) < everyone)


class RankGroup:
    """Ranks that divide data, over gloo connections of their own: NCCL would need the GPU, whose queue must not be
    waited for, and ``new_group`` would need all processes of a run, of which some may read nothing.

    All of ``ranks`` make it, and make the same calls in the same order. Close it with :meth:`close`.

    Raises, in every call: RankError if a rank does not answer within ``timeout_s``, or does something else.
    """

    def __init__(self, ranks: DataRanks, timeout_s: float) -> None:
        if ranks.absent:
            raise RankError("the other ranks do not run: this loader only says what one of them had")
        self.rank = ranks.rank
        self.world_size = ranks.count
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._telling = 0  # the thread that is within a call
        self._group: Any = None
        if not dist.is_gloo_available():
            raise RuntimeError("ranks talk to each other over gloo, which this build of torch lacks")
        with self._answered():
            self._store = ranks.meet()
            self._group = dist.ProcessGroupGloo(
                self._store, self.rank, self.world_size, timeout=timedelta(seconds=timeout_s)
            )

    def numbers(self, talk: Talk, mine: Sequence[int] = ()) -> list[list[int]]:
        """Up to three numbers of each rank."""
        with self._exclusive(talk):
            return self._numbers(talk, mine)

    def objects(self, talk: Talk, mine: Any) -> list[Any]:
        """The objects that all ranks give: plain data, pickled."""
        with self._exclusive(talk):
            packed = np.frombuffer(pickle.dumps(mine), np.uint8)
            lengths = [length for (length, *_) in self._numbers(talk, [len(packed)])]
            sent = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
            sent[: len(packed)] = torch.from_numpy(packed.copy())
            came = [torch.empty_like(sent) for _ in lengths]
            with self._answered():
                self._group.allgather([came], [sent]).wait()
            return [pickle.loads(part[:length].numpy().tobytes()) for part, length in zip(came, lengths)]

    @contextmanager
    def _exclusive(self, talk: Talk) -> Iterator[None]:
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
            self._group.allreduce([table]).wait()
        rows: list[list[int]] = table.tolist()
        if any(row[0] != talk for row in rows):
            doing = ", ".join(f"rank {rank} {_described(row[0])}" for rank, row in enumerate(rows))
            raise RankError(
                f"the ranks do not do the same: {doing}. All ranks take as many items, begin the same epochs and save "
                "at the same steps; a rank alone may ask for its own state at any time"
            )
        return [row[1:] for row in rows]

    @contextmanager
    def _answered(self) -> Iterator[None]:
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
            store = self._store
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
        """Let go of the connections. Idempotent; asks nobody."""
        self._group = None


def _described(talk: int) -> str:
    return Talk(talk).described() if talk in list(Talk) else "does something else"
