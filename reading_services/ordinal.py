"""``OrdinalReadingService``: each ordinal of an XLA run takes its share of the stream, without any communication.

Runs in each process, or thread, that divides the stream.
"""

from __future__ import annotations

from dataclasses import replace

from reading_services.ranks.ordinals import ordinal
from reading_services.ranks.ranked import RankedReadingService
from torchpipe.errors import StateMismatchError
from torchpipe.execution.reading_service import EpochStart, InProcessReadingService
from torchpipe.node.traits import DataPipe
from torchpipe.randomness.seeds import check_seed

__all__ = ["OrdinalReadingService"]


class OrdinalReadingService(RankedReadingService):
    """Gives this process or thread its share of the stream: every ``world_size``-th item from ``rank`` on.

    For processes and threads that ``torch_xla.launch``, ``xmp.spawn``, torchrun or a scheduler started. Nothing is said
    between them: ``seed`` must be the same on all, and ranks may have one item more than others. Where steps are
    collective, let all ranks take equally many (``limit``, ``header``), or use DistributedReadingService, whose ranks
    agree.

    Alone it executes the graph in this process, with a thread that reads ahead, so that several threads of a process
    may each have a loader: random nodes and ``random_map`` stay exact, the *global* random states are the process's.
    For worker processes, put it first:
    ``SequentialReadingService(OrdinalReadingService(seed=0), MultiProcessingReadingService(4, "forkserver"))``.

    Args:
        seed: of the run, the same on every ordinal; it takes the place of ``DataLoader2.seed``.
        rank, world_size: if left out, as the runtime says (``ordinal`` in ``reading_services/ranks/ordinals.py``), in
            the thread that makes the loader.
        total_shards: the number of shards of all ordinals, which fixes the stream whatever their number, as for
            DistributedReadingService; each shard ends on its own.

    State: counts what this ordinal delivered; it loads on the same rank of as many. Those of all ordinals, joined by
    ``torchpipe.state.merge``, load under any number of them.

    Raises: TypeError and ValueError for arguments that do not fit; when a loader is built, GraphError if the graph does
    not divide the stream. When an epoch begins, StateMismatchError if a loaded state has another seed.
    """

    def __init__(
        self, seed: int, rank: int | None = None, world_size: int | None = None, *, total_shards: int | None = None
    ) -> None:
        super().__init__(total_shards)
        self._seed = check_seed(seed)
        self._asked = (rank, world_size)
        self._ordinal = ordinal(0, 1) if rank is None and world_size is None else ordinal(rank, world_size)
        self._executing = InProcessReadingService(prefetch_cnt=1)

    @property
    def fixed_seed(self) -> int:
        return self._seed

    @property
    def rank(self) -> int:
        return self._ordinal.rank

    @property
    def world_size(self) -> int:
        return self._ordinal.world_size

    def describe(self) -> str:
        return f"ordinal {self.rank} of {self.world_size}, seed {self._seed}"

    def prepare(self, datapipe: DataPipe) -> DataPipe:
        self._ordinal = ordinal(*self._asked)
        self.check_graph(datapipe)
        return datapipe

    def prepare_iteration(self, start: EpochStart) -> EpochStart:
        if start.state is not None and start.seed != self._seed:
            raise StateMismatchError(
                f"the state was saved in a run with seed {start.seed}, this OrdinalReadingService has seed "
                f"{self._seed}: give the same seed to go on, on every ordinal"
            )
        return self.hosting(replace(start, seed=self._seed))
