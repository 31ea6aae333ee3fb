"""Reading services decide where a graph runs: this is what they all offer.

Runs in the user's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, TypeAlias

from torchpipe.errors import GraphError, StateError
from torchpipe.execution.epoch import EpochStart, Part
from torchpipe.execution.figures import ServiceFigures
from torchpipe.graph.plan import plan, total_length
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe
from torchpipe.node.validate import check_count

__all__ = ["ReadingServiceInterface", "States", "SubstitutesOf"]

States: TypeAlias = Literal["own", "all"]
SubstitutesOf: TypeAlias = Callable[[DataPipe], Mapping[int, Callable[[Context], NodeIterator[Any]]]]


class ReadingServiceInterface(ABC):
    """The way a graph runs. A service belongs to one loader, which calls it from one thread, in this order:

    ``initialize`` once; for every epoch ``prepare_iteration``, ``initialize_iteration``, pulls from the iterator,
    ``finalize_iteration``; ``finalize`` at the end, after which a new epoch may still begin.

    A service may define ``initialize`` alone: the graph that it returns runs in process. It may then also have
    torchdata's ``initialize_iteration(seed_generator)``, ``finalize_iteration()`` and ``finalize()``.
    """

    _taken = False
    measuring = False  # True if nodes are measured, from the next pass on

    def __init__(self) -> None:  # takes no arguments, unless a service says so
        return

    def take(self) -> Self:
        """This service, for one loader. Raises: GraphError if another loader has it already."""
        if self._taken:
            raise GraphError("this reading service belongs to another loader: make one for each loader")
        self._taken = True
        return self

    def let_go(self) -> None:
        """The loader that has taken it could not be built."""
        self._taken = False

    @abstractmethod
    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Check that ``datapipe`` can run here and take it; starts nothing. Raises: GraphError and the like."""

    @property
    def default_num_shards(self) -> int:
        """The number of shards if no state says otherwise."""
        return 1

    @property
    def fixed_num_shards(self) -> int | None:
        """The number of shards that the user asked for, or None if a state's number may be taken."""
        return None

    @property
    def fixed_seed(self) -> int | None:
        """The seed of the run, if this service has been given it and not the loader."""
        return None

    def settle_seed(self, drawn: int) -> int:
        """The seed of a run that nobody has given one; ``drawn``: by this process. The same each time."""
        return drawn

    @property
    def names_ranks(self) -> bool:
        """True if this service says which ranks divide the stream, even if that is a single one."""
        return False

    @property
    def agrees(self) -> bool:
        """True if ranks tell each other how far they are, and end together: :meth:`gather` asks them."""
        return False

    @property
    def rank(self) -> int:
        """The number of this process among the ``world_size`` that divide the stream. Known once initialized."""
        return 0

    @property
    def world_size(self) -> int:
        """The number of processes that divide the stream, each with a loader of its own."""
        return 1

    @property
    def total_shards(self) -> int | None:
        """The number of shards of all ranks, if that is fixed, and their number of no account to the stream."""
        return None

    @property
    def part(self) -> Part:
        """The shards that run here, and the part of their items that is this rank's."""
        rank = check_count("rank", self.rank, at_least=0)  # plain integers, which a state can keep
        return Part.of(rank, check_count("world_size", self.world_size, at_least=1), self.total_shards)

    @property
    def states(self) -> States:
        """Whose position ``state_dict()`` gives, unless it is told: this rank's, or that of all."""
        return "own"

    def agreed_length(self, lengths: list[int]) -> int:
        """The length of an epoch here, if the ranks have ``lengths`` items."""
        return lengths[self.rank]

    def length(self, datapipe: DataPipe, num_shards: int) -> int:
        """The number of items of an epoch here, with ``num_shards`` on each rank. Raises: TypeError if not known."""
        ranks, planned = self.world_size, plan(datapipe)
        return self.agreed_length([total_length(planned, num_shards, rank, ranks) for rank in range(ranks)])

    def agreed_position(self, delivered: list[int]) -> int:
        """The position of the epoch, if ranks have delivered so many items of the shards of each :attr:`part`."""
        return delivered[self.part.number]

    def gather(self, mine: Any) -> list[Any]:
        """The objects that all ranks give, each once, in step. Raises: RankError if one does something else."""
        if self.world_size > 1:
            raise RuntimeError(
                f"{type(self).__name__} says nothing between ranks, so no rank knows the states of others: save each "
                "rank's own, and join them with torchpipe.state.merge([...])"
            )
        return [mine]

    def prepare_iteration(self, start: EpochStart) -> EpochStart:
        """The epoch as it is to begin: the seed may be another, and is then the loader's from here on."""
        return start

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        """The stream of an epoch, from ``start.state`` on."""
        raise NotImplementedError(f"{type(self).__name__} executes no graph itself: give it to DataLoader2")

    def local_iteration(self, start: EpochStart, substitutes_of: SubstitutesOf | None = None) -> NodeIterator[Any]:
        """The stream of an epoch from ``start.state`` on, made in this process, whatever the service's own loop does;
        ranks and devices are not asked. ``substitutes_of``: of the graph, what stands for which nodes.

        Raises: TypeError where that cannot be.
        """
        raise TypeError(f"{type(self).__name__} runs no epoch beside its own: which samples it gives is not known")

    def exact_position(self, start: EpochStart, *, may_replay: bool = False) -> dict[str, Any]:
        """``start.state`` with a snapshot of each shard at the very position, such that it makes nothing again; with
        ``may_replay``, nothing but what parts of the graph that keep no state make again by themselves.

        Raises: StateError where there is none.
        """
        raise StateError(f"{type(self).__name__} takes no exact states: save without exact=True")

    def finalize_iteration(self) -> None:
        """The epoch is over or abandoned, and the next one, or ``finalize``, is about to begin. Idempotent."""
        return

    def finalize(self) -> None:
        """End every process and thread of this service. Idempotent."""
        return

    def explain(self, num_shards: int | None = None) -> str:
        """The place where each node runs, as text; ``num_shards``: that of a loaded state, if there is one."""
        return type(self).__name__

    def figures(self) -> ServiceFigures:
        """The figures of nodes and processes in the live epoch, or the last one. Asks nobody; any thread."""
        return ServiceFigures()
