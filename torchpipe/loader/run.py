"""The parts that a loader and its iterators share: the graph as the user's functions adapt it, the service that runs
it, the seed, figures of epochs.

Runs in the user's process. It knows neither the loader nor its iterators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from torchpipe.compat.torch_datapipes import TorchMapDataPipe
from torchpipe.errors import UnevenWarning
from torchpipe.execution.epoch import Epoch, EpochStart, LeftOver
from torchpipe.execution.interface import ReadingServiceInterface
from torchpipe.iter.sources import MapToIterConverter
from torchpipe.loader.observing import HasFigures, LoaderFigures, Observed
from torchpipe.loader.single_consumer import Hold
from torchpipe.loader.state import GraphIdentity, LoaderState, StateSizes
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.opaque_warnings import OpaqueWarnings
from torchpipe.node.traits import DataPipe, is_node, walk
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_count
from torchpipe.randomness.global_random import own_states_in_place
from torchpipe.randomness.seeds import fresh_seed, next_fresh_seed

__all__ = ["Adapter", "Run", "adapt", "streamed", "way_out"]

Adapter = Callable[[Any], Any]


def way_out(value: object) -> str:
    if value is None or isinstance(value, ReadingServiceInterface):
        return "a state holds no graph, so give it as well: from_state(state, datapipe, reading_service)"
    if isinstance(value, Dataset) and not isinstance(value, IterableDataset):
        return "torchpipe.DataLoader takes a dataset; in a graph, begin with torchpipe.map.SequenceWrapper(dataset)"
    return "wrap an iterable in torchpipe.iter.IterableWrapper"


def streamed(datapipe: DataPipe) -> DataPipe:
    if isinstance(datapipe, TorchMapDataPipe) and not hasattr(type(datapipe), "__iter__"):
        return MapToIterConverter(datapipe)  # type: ignore[arg-type]  # torch's own will do as well
    return datapipe


def adapt(datapipe: DataPipe, adapters: Adapter | Iterable[Adapter] | None) -> DataPipe:
    if adapters is None:
        return datapipe
    chosen = [adapters] if callable(adapters) or not isinstance(adapters, Iterable) else list(adapters)
    for adapter in chosen:
        if not callable(adapter):
            raise TypeError(
                "datapipe_adapter_fn must be a function from a datapipe to a datapipe, or a list of such, "
                f"got {adapter!r}" + (": say reading_service=" if isinstance(adapter, ReadingServiceInterface) else "")
            )
        adapted = adapter(datapipe)
        if not is_node(adapted):
            raise TypeError(
                f"the adapter {adapter!r} must return the datapipe (changed or not), got {adapted!r}: is a return "
                "missing?"
            )
        datapipe = adapted
    return datapipe


class Run(HasFigures):
    """One graph, run by one service, epoch after epoch."""

    def __init__(self, graph: DataPipe, service: ReadingServiceInterface) -> None:
        self.graph = graph
        self.service = service
        self.identity = GraphIdentity.of(graph)
        self.common = True  # True if this rank's shards are those of the run, whoever hosts them
        self._opaque = OpaqueWarnings()
        self._sizes = StateSizes()
        self.saved_num_shards: int | None = None  # from a state
        self.seed: int | None = None  # none drawn or given yet
        self.seeded = False  # by the user
        self.hold = Hold(service.finalize)
        self.observed: Observed | None = None  # the figures of an iterator that has been let go of
        self._foretold: int | None = None  # what a state has said that the seed is going to be
        self._warned_left_over = False

    @property
    def fixed_num_shards(self) -> int | None:
        """The number of shards of this rank, if the user has fixed it."""
        service = self.service
        return service.fixed_num_shards if service.total_shards is None else service.total_shards // service.part.count

    @property
    def num_shards(self) -> int:
        """The number of shards of this rank: as asked for, as a state has it, or the service's default."""
        return self.fixed_num_shards or self.saved_num_shards or self.service.default_num_shards

    def draw_seed(self) -> int:
        """The seed of the run. If there is none, one is drawn, even if a state has said before which one counts."""
        if self.seed is None:
            drawn = fresh_seed()
            self.seed = self.service.settle_seed(drawn) if self._foretold is None else self._foretold
        return self.seed

    def foretell_seed(self) -> int:
        """The seed that the run will have: a state must not draw, and says how the run begins. It may be asked for
        while another loader makes an item, under the random states of that one.
        """
        if self.service.fixed_seed is not None:
            return self.service.fixed_seed
        if self.seed is None:
            if self._foretold is None:
                with own_states_in_place():
                    self._foretold = self.service.settle_seed(next_fresh_seed())
            return self._foretold
        return self.seed

    def epoch(self, seed: int, epoch: int) -> Epoch:
        part = self.service.part
        return Epoch(
            seed=seed,
            epoch=epoch,
            num_shards=check_count("num_shards", self.num_shards, at_least=1),
            rank=part.number,
            world_size=part.count,
        )

    def begin(self, numbers: Epoch, state: LoaderState | None) -> tuple[Epoch, NodeIterator[Any]]:
        """The stream of an epoch, and its numbers: a reading service may have another seed than this loader."""
        identity: dict[str, Any] = numbers.identity
        start = EpochStart(
            **identity,
            delivered=0 if state is None else state.delivered,
            state=None if state is None else state.position,
            seeded=self.seeded,
            origin="" if state is None else state.origin,
        )
        start = self.service.prepare_iteration(start)
        if self.seed == numbers.seed:  # unless seed() has said otherwise meanwhile
            self.seed = start.seed
        return replace(numbers, seed=start.seed), self.service.initialize_iteration(start)

    def own_state(self, position: LoaderState, *, exact: bool = False) -> dict[str, Any]:
        """The flat dict of this rank's position; ``exact``: such that a resume makes nothing again."""
        if exact:
            identity: dict[str, Any] = position.identity
            start = EpochStart(**identity, delivered=position.delivered, state=position.position)
            position = replace(position, position=self.service.exact_position(start))
        return position.to_dict(self.identity, common=self.common, turns=self.service.part.turns)

    def tell(self, state: dict[str, Any]) -> dict[str, Any]:
        """Warn of what in ``state`` only pickle can rebuild, and of its size; return it."""
        self._opaque.tell(state["payload"])
        self._sizes.note(state, self.graph)
        return state

    def length(self) -> int:
        """The number of items in an epoch, of this rank. Raises: TypeError where it is not known."""
        return self.service.length(self.graph, self.num_shards)

    def total(self) -> int | None:
        """The length, if asking for it costs and changes nothing."""
        if any(getattr(node, "counts_by_reading", False) for node in walk(self.graph)):
            return None
        try:
            return self.length()
        except Exception:  # a length of the user's may fail in any way, and is only asked for what it may tell
            return None

    def _figures(self) -> LoaderFigures:
        """The figures of the epoch that was observed last."""
        return LoaderFigures(
            observed=self.observed,
            figures=self.service.figures(),
            total=self.total(),
            shards=self.num_shards,
            ranks=self.service.world_size,
            state_bytes=self._sizes.last_bytes,
        )

    def tell_left_over(self, left: LeftOver | None) -> None:
        """Warn once, on rank 0, of the rest that an epoch's end has left out; all have it in their ``stats()``."""
        if left is None or not left.notable or self._warned_left_over or self.service.rank:
            return
        self._warned_left_over = True
        warn_user(
            f"{left}. Parts are equal where sharding_filter() stands behind what yields rows or lines, and nothing "
            'behind it leaves out or adds any; else uneven="pad" gives all items (ranks that have ended repeat their '
            'last one), and "raise" an error. stats().left_over has the number of each epoch',
            UnevenWarning,
        )
