"""``GraphDataset``: a graph as a dataset of torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``.

Runs in the process, or worker, of that loader. It needs neither of them, and torchdata not at all.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.loader.dataloader2 import DataLoader2, DataLoader2Iterator
from torchpipe.node.torch_loaders import common_seed
from torchpipe.node.traits import DataPipe
from torchpipe.node.validate import check_count
from torchpipe.randomness.seeds import check_seed
from torchpipe.state.flat import FlatState
from torchpipe.state.pickling import ImagePickler, cloud_dumps

__all__ = ["GraphDataset", "GraphPass"]

T = TypeVar("T")


class GraphDataset(IterableDataset[T]):
    """The stream of a graph for loaders that take an iterable dataset: ``StatefulDataLoader(GraphDataset(graph),
    ...)``.

    Each worker of a loader, on each rank, has its share at the graph's ``sharding_filter``. What iterating gives has
    an exact ``state_dict()``, random augmentation and global random states included, which StatefulDataLoader finds
    and saves: a state loads under as many workers. Under torch's own DataLoader in process (``num_workers=0``),
    :meth:`save` and :meth:`restore` do the same; with workers it has no way to ask for a position
    (torchpipe.DataLoader has).

    Without ``seed``, one is drawn from torch's generators for each epoch, as these loaders do for their workers, so
    that epochs differ and ``torch.manual_seed`` fixes the run. With one, passes count the epochs, but workers that
    start anew for each epoch cannot know which it is: tell them with :meth:`set_epoch`. ``rank`` and ``world_size``
    are those of torch.distributed by default, if it is initialised when the dataset is made.

    Raises: TypeError and GraphError as :class:`~torchpipe.DataLoader2`; when iterated, GraphError for several workers
    or ranks and a graph without a sharding point.
    """

    def __init__(
        self, datapipe: DataPipe, seed: int | None = None, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank and world_size go together, got rank={rank!r} and world_size={world_size!r}")
        if rank is None or world_size is None:
            distributed = dist.is_available() and dist.is_initialized()
            rank, world_size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        self.world_size = check_count("world_size", world_size, at_least=1)
        self.rank = check_count("rank", rank, at_least=0, at_most=self.world_size - 1)
        self.seed = None if seed is None else check_seed(seed)
        self.datapipe = datapipe
        if self.seed is None and self.world_size > 1:
            raise ValueError(
                f"each of {self.world_size} ranks would draw a seed of its own, and their parts would be of different "
                "streams: give all ranks the same seed="
            )
        self.epoch = 0
        self._last: Callable[[], GraphPass[T] | None] = _no_pass
        self._loader: DataLoader2[T] | None = None  # of the last pass
        self._restored: dict[str, Any] | None = None
        DataLoader2(datapipe)  # what cannot run is refused here

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of ``epoch``, in workers that start after this: what a restored state leaves of it, else
        from its start."""
        self.epoch = check_count("epoch", epoch, at_least=0)
        if self._restored is not None and self._restored["epoch"] != self.epoch:
            self._restored = None

    def __iter__(self) -> GraphPass[T]:
        info = get_worker_info()
        workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
        share = _Share(self.rank * workers + worker, self.world_size * workers)
        loader: DataLoader2[T] = DataLoader2(self.datapipe, reading_service=share)
        seed = self.seed
        if seed is None and info is not None:
            seed = common_seed(info)
        if seed is not None:
            loader.seed(seed)
        loader.set_epoch(self.epoch)
        if self._restored is not None:
            loader.load_state_dict(self._restored)
        made = GraphPass(loader, self)
        self._loader, self._last, self._restored = loader, weakref.ref(made), None
        self.epoch += 1
        return made

    def save(self) -> dict[str, Any]:
        """The position of the pass that was begun last, in this process; when its loop is over, the start of the next.
        Before the next pass, what was restored.

        Raises: RuntimeError if none was: passes in a loader's workers are known there alone.
        """
        if self._restored is not None:
            return dict(self._restored)
        if self._loader is None:
            raise RuntimeError(
                "no pass over this GraphDataset was begun in this process: those of a loader's workers have their "
                "positions there. Use torchdata's StatefulDataLoader, torchpipe.DataLoader, or num_workers=0"
            )
        last = self._last()
        return self._loader.state_dict() if last is None else last.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Let the next pass in this process go on where :meth:`save` was called, and passes count from its epoch on.

        Raises: StateError for what is no such state; when the pass begins, as :meth:`DataLoader2.load_state_dict`.
        """
        self.epoch = FlatState.read(state, keep_opaque=True).numbers["epoch"]
        self._restored = state

    def __getstate__(self) -> dict[str, Any]:
        kept = {**self.__dict__, "_last": _no_pass, "_loader": None}
        return {**kept, "datapipe": cloud_dumps(self.datapipe, ImagePickler)}  # lambdas in it, too

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "datapipe": pickle.loads(state["datapipe"])})


def _no_pass() -> None:
    """Instead of a weak reference to one."""
    return None


class _Share(InProcessReadingService):
    """In this process, one of several that divide the stream without a word between them."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self._rank_and_size = rank, world_size

    @property
    def rank(self) -> int:
        return self._rank_and_size[0]

    @property
    def world_size(self) -> int:
        return self._rank_and_size[1]


class GraphPass(Iterator[T]):
    """One pass over a :class:`GraphDataset`, with an exact position. Its state is a loader's: inert, and refused
    where it does not fit. It is always one of this pass: at its end, an empty rest.
    """

    def __init__(self, loader: DataLoader2[T], dataset: GraphDataset[T]) -> None:
        self._loader = loader
        self._dataset = dataset
        self._items: DataLoader2Iterator[T] | None = None

    def __next__(self) -> T:
        if self._items is None:
            self._items = iter(self._loader)
        return next(self._items)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict() if self._items is None else self._items.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within the pass of which this is the state. Raises: StateError and others as the loader's."""
        self._loader.load_state_dict(state)
        self._items = None
        self._dataset.epoch = state["epoch"] + 1
