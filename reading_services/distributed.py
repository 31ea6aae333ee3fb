"""``DistributedReadingService``: the ranks of a torch.distributed run divide the stream, and end together.

Runs in the main process of every rank; all talk between ranks is in the user's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, Literal

from reading_services.ranks.agreement import AgreementIterator, Exchange, inner_state
from reading_services.ranks.found import Found, check_found, found_files, shared_nodes
from reading_services.ranks.ranked import RankedReadingService
from torchpipe.errors import RankError
from torchpipe.execution.epoch import EpochStart, Uneven
from torchpipe.execution.interface import States
from torchpipe.execution.preparing import Begin
from torchpipe.execution.ranks import Among, DataRanks, RankGroup, Talk, data_ranks
from torchpipe.graph.plan import plan, total_length
from torchpipe.iter.limiting import is_estimated
from torchpipe.node.fingerprint import describe_graph, digest, first_difference
from torchpipe.node.identity import identity_of_graph
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe
from torchpipe.node.validate import check_count
from torchpipe.state.cursor import Rotation

__all__ = ["DistributedReadingService"]


class DistributedReadingService(RankedReadingService):
    """Divides the stream among the ranks that divide data, and lets their epochs end together.

    These are all ranks of the initialized process group, or those of ``group``:
    ``DistributedReadingService(mesh["dp"])``. Their peers of tensor, context or pipeline parallelism, each in a group
    with the same position in it, have the same items.

    With s shards a rank, rank r of w has every w-th item from r on of the stream of w * s shards. The seed is that of
    rank 0; with a ``group`` that is a part of all ranks, one that the whole job has in common. Every rank does the same
    in step: makes the loader, begins epochs, takes items, shuts down. What is said between ranks goes through gloo
    connections of this service's own, in the thread that calls ``next()``.

    With ``total_shards`` the stream is fixed by that number, whatever the number of ranks: the ranks' n-th items, in
    the order of ranks, are the stream of a single process with as many shards. Where the ranks do not divide it,
    several run the same shards and take turns at their items, with a SharedShardsWarning that says how many.

    Alone it executes the graph in process. For worker processes, put it first:
    ``SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(4))``.

    Args:
        group: a ``DeviceMesh`` of one dimension, or a ``ProcessGroup``; None: all ranks. (A number is taken for
            ``timeout``, as by torchdata.)
        timeout: seconds to wait for the other ranks, after which :class:`~torchpipe.errors.RankError` is raised. A rank
            whose process is gone is often noticed at once.
        uneven: when some ranks have more items than others. ``"drop"``: all end when the first has no more (as
            torchdata's ``fullsync``). ``"pad"``: ranks without items repeat (a copy of) their last one until all
            have ended; after a resume that leaves a rank no item, the first of the epoch. ``"raise"``: RankError on
            all ranks, after the last item that all have.
        agree_every: the ranks agree on blocks of so many items, with one small all-reduce a block, for which the
            quickest waits for the slowest. Each rank holds up to as many items ahead; more means fewer round trips.
        total_shards: the number of shards of all ranks. ``"drop"`` and ``"raise"`` then
            look at shards: the epoch ends with the last round in which every shard has an item, so that it is the same
            under any number of ranks; ``"pad"`` delivers all items, and what is repeated depends on the ranks.
        states: whose position ``state_dict()`` gives if it is not told. ``"own"``: this rank's, without asking anybody.
            ``"all"``: the one state of all ranks, the same on each: all call it at the same step.

    State: this rank's own counts what it delivered, padding included, and loads on the same rank of as many ranks. The
    one of all ranks loads under any number of them, and in a single process.

    Raises: ValueError or TypeError for arguments out of range; RuntimeError, when a loader is built, without an
    initialized process group, and GraphError if the graph does not divide the stream among ranks.
    """

    def __init__(
        self,
        group: Among | float | None = None,
        *,
        timeout: float = 1800,
        uneven: Literal["drop", "pad", "raise"] = "drop",
        agree_every: int = 1,
        total_shards: int | None = None,
        states: States = "own",
    ) -> None:
        first: Any = group
        if first is not True and isinstance(first, Real) and not first < 0:
            timeout, group = float(first), None
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if uneven not in [item.value for item in Uneven]:
            raise ValueError(f'uneven must be "drop", "pad" or "raise", got {uneven!r}')
        if states not in ("own", "all"):
            raise ValueError(f'states must be "own" or "all", got {states!r}')
        super().__init__(total_shards, Uneven(uneven))
        self._timeout_s = timeout
        self._ending = Uneven(uneven)
        self._every = check_count("agree_every", agree_every, at_least=1)
        self._states: States = states
        self._given: Any = True if group is None else group
        self._among: DataRanks | None = None  # once a loader is made
        self._graph_text = self._data = ""
        self._found: Found = []
        self._datapipe: DataPipe | None = None
        self._ranks: RankGroup | None = None

    @property
    def rank(self) -> int:
        return 0 if self._among is None else self._among.rank

    @property
    def world_size(self) -> int:
        return 1 if self._among is None else self._among.count

    @property
    def agrees(self) -> bool:
        return True

    def settle_seed(self, drawn: int) -> int:
        return drawn if self._among is None else self._among.shared_seed(drawn)

    def agreed_length(self, lengths: list[int]) -> int:
        if self._ending is Uneven.RAISE:
            return lengths[self.rank]
        return min(lengths) if self._ending is Uneven.DROP else max(lengths)

    def agreed_position(self, delivered: list[int]) -> int:
        return min(delivered)  # the same on all ranks, and not beyond the end of any

    @property
    def states(self) -> States:
        return self._states

    def gather(self, mine: Any) -> list[Any]:
        ranks = self._connect()
        return [mine] if ranks is None else ranks.objects(Talk.STATES, mine)

    def describe(self) -> str:
        hosts = "" if self.total_shards is None else f", {self.total_shards} shards on all ranks"
        turns = self.part.turns
        hosts += f", of which {turns} ranks run the same and take turns" if turns > 1 else ""
        return f"rank {self.rank} of {self.world_size}, uneven ranks: {self._ending.value}{hosts}"

    def prepare(self, datapipe: DataPipe) -> DataPipe:
        self._datapipe = datapipe
        self._among = data_ranks(self._given, type(self).__name__)
        self.check_graph(datapipe)
        self._graph_text = describe_graph(datapipe, bound=False)
        self._data = identity_of_graph(datapipe, among=shared_nodes(datapipe)).digest
        self._found = found_files(datapipe)
        if not self._among.absent:
            self._connect()
        return datapipe

    def prepare_iteration(self, start: EpochStart) -> EpochStart:
        """Agree on the epoch. Raises: RankError if the ranks are not at the same position of the same run."""
        ranks = self._connect()
        if ranks is None:
            return self.hosting(start)
        same = {
            "graph": self._graph_text,
            "files": self._found,
            "what the graph's data hold": self._data,
            "total_shards": self.total_shards,
            "num_shards": start.num_shards,
            "uneven": self._ending.value,
            "agree_every": self._every,
            "epoch": start.epoch,
            "delivered": start.delivered,
            "the loaded state of all ranks": start.origin or None,
        }
        answers = ranks.objects(Talk.BEGIN, (start.seed, start.seeded or start.delivered > 0, same))
        _check_graphs([theirs.pop("graph") for _, _, theirs in answers])
        check_found([theirs.pop("files") for _, _, theirs in answers])
        for name in answers[0][2]:
            _check_equal(name, dict(enumerate(theirs[name] for _, _, theirs in answers)))
        _check_equal("seed", {rank: seed for rank, (seed, fixed, _) in enumerate(answers) if fixed or not rank})
        return self.hosting(replace(start, seed=answers[0][0]))

    def run_iteration(self, start: EpochStart, begin: Begin) -> NodeIterator[Any]:
        ranks = self._connect()
        inner = begin(replace(start, state=inner_state(start.state, start.delivered)))
        if ranks is None:
            return inner
        return AgreementIterator(
            inner,
            _Exchange(ranks),
            uneven=self._ending,
            every=self._every,
            state=start.state,
            delivered=start.delivered,
            length=partial(self._length_here, start.num_shards),
            parts=self.total_shards or self.world_size * start.num_shards,
            last=list if start.state is None else partial(_last_item, start, begin),
        )

    def _length_here(self, num_shards: int) -> int | None:
        """The number of items of an epoch on this rank, delivered or left out; None where it is not known."""
        assert self._datapipe is not None
        if is_estimated(self._datapipe):
            return None
        try:
            planned = plan(self._datapipe)
            if self.total_shards is not None:
                part = self.part
                shards = part.shards(self.total_shards)
                return part.share(total_length(planned, self.total_shards, shards=shards))
            return total_length(planned, num_shards, self.rank, self.world_size)
        except Exception:  # a length of the user's may fail in any way, and is only asked for what it may tell
            return None

    def release(self) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def _connect(self) -> RankGroup | None:
        """The group of this service; None if there is a single rank, which need not talk."""
        if self._ranks is None and self._among is not None and self._among.count > 1:
            self._ranks = RankGroup(self._among, self._timeout_s)
        return self._ranks


def _check_graphs(texts: list[str]) -> None:
    """Raises: RankError unless all are the same."""
    other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if other is not None:
        first, second = first_difference(texts[0], texts[other])
        raise RankError(
            f"the ranks have different graphs: rank 0 has fingerprint {digest(texts[0])}, rank {other} "
            f"{digest(texts[other])}. The first node that differs:\n  rank 0: {first}\n  rank {other}: {second}\n"
            "Make the same graph on every rank"
        )


def _check_equal(name: str, values: dict[int, Any]) -> None:
    """Raises: RankError unless all ranks say the same."""
    if len(set(map(repr, values.values()))) > 1:
        shown = ", ".join(f"rank {rank}: {value!r}" for rank, value in values.items())
        raise RankError(
            f"the ranks do not begin the same epoch: {name} differs ({shown}). Make the same loader on every rank, and "
            "load on each the state that it saved at the same step, or on all of them the one state of all"
        )


def _last_item(start: EpochStart, begin: Begin) -> list[Any]:
    """The last item before ``start`` on this rank, which has none behind it; made anew, if there was any."""
    state = inner_state(start.state, start.delivered)
    if state is not None and Rotation.is_one(state):
        where = Rotation.from_state(state, len(start.shards))
        state = where.before(start.part.turns).to_state()
    else:  # nodes behind the shards stand somewhere, too: all of the epoch says what is its last item
        state = None
    with begin(replace(start, state=state, delivered=0)) as stream:
        return list(deque(stream.items(), 1))


class _Exchange(Exchange):
    """The exchange through the process group: numbers and texts of all ranks."""

    def __init__(self, ranks: RankGroup) -> None:
        self.rank = ranks.rank
        self._ranks = ranks

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        return self._ranks.numbers(Talk.STEP, mine)

    def texts(self, mine: str) -> list[str]:
        return self._ranks.objects(Talk.FAILURE, mine)
