"""``DataLoader2``: a graph, a reading service, a seed, and the position in the stream.

Runs in the user's process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Generic, NoReturn, Self, TypeVar

from torchpipe.ahead.at_exit import holding_at_exit
from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.errors import StateError
from torchpipe.execution.interface import States
from torchpipe.execution.preparing import executable
from torchpipe.execution.reading_service import InProcessReadingService, ReadingServiceInterface
from torchpipe.graph import describe_graph, plan
from torchpipe.loader.adapting import Adapter, adapt, streamed, way_out
from torchpipe.loader.iterator import DataLoader2Iterator
from torchpipe.loader.run import Run
from torchpipe.loader.single_consumer import BeginGuard, check_process, refuse_pickling, tell_of_two_ways
from torchpipe.loader.state import LoaderState, Place, state_of_all
from torchpipe.loader.untraced import untraced
from torchpipe.node.holders import OpaqueWarnings
from torchpipe.node.traits import Division, division, is_node
from torchpipe.node.validate import check_count
from torchpipe.randomness.global_random import own_random_states
from torchpipe.randomness.seeds import check_seed
from torchpipe.stats import LoaderStats
from torchpipe.stats.tracing import measures_by_default
from torchpipe.views.viewable import Viewable
from torchpipe.views.watching import watched

__all__ = ["Adapter", "DataLoader2", "DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)


class DataLoader2(Viewable, Generic[T_co]):
    """Iterates a graph, epoch after epoch, wherever its reading service runs it.

    Each ``iter(loader)`` is the next epoch. The stream is fixed by the graph, the seed, the epoch and the number of
    shards. Without :meth:`seed` or a loaded state, the first ``iter()`` draws a seed from torch's default generator
    (one draw, so ``torch.manual_seed`` fixes the run), later ones draw nothing; every epoch differs all the same.
    ``datapipe_adapter_fn`` (one function or several) changes the graph before it runs; a map-style node is read in the
    order of its indices, as by ``.to_iter_datapipe()``. ``reading_service`` defaults to in-process execution; a service
    belongs to one loader. With ``measure``, :meth:`stats` has figures of each node (docs/seeing.md);
    ``TORCHPIPE_MEASURE=1`` sets it where it is left out.

    State: :meth:`state_dict` describes the items that were delivered to the ``for`` loop, no more; it is a flat dict of
    plain values with a fixed set of keys. Use one loader from one thread and one process; :meth:`state_dict` and
    :meth:`shutdown` may also be called from another thread. Close it with :meth:`shutdown` or ``with``.

    Raises: TypeError, GraphError and NotSerializableError for what cannot run, when the loader is built.
    """

    def __init__(
        self,
        datapipe: TorchIterDataPipe[T_co] | TorchMapDataPipe[T_co],
        datapipe_adapter_fn: Adapter | Iterable[Adapter] | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        measure: bool | None = None,
    ) -> None:
        if not is_node(datapipe):
            raise TypeError(
                f"DataLoader2 needs a datapipe, got {datapipe!r} of type {type(datapipe).__name__}: "
                + way_out(datapipe)
            )
        if reading_service is not None and not isinstance(reading_service, ReadingServiceInterface):
            raise TypeError(
                f"reading_service must be an object such as MultiProcessingReadingService(num_workers=2), got "
                f"{reading_service!r}: is it a class, not yet called? Leave it out to run in this process"
            )
        graph = streamed(adapt(streamed(datapipe), datapipe_adapter_fn))
        service = InProcessReadingService() if reading_service is None else reading_service
        taken, service = service.take(), executable(service)
        try:
            service.initialize(graph)
        except BaseException:
            taken.let_go()
            raise
        self._run = Run(graph, service)
        self.measuring = measures_by_default() if measure is None else measure
        self._common = self._check_shards()
        self._graph_text = describe_graph(graph)
        self._loaded: LoaderState | None = None  # where the next iter() is to go on
        self._live: DataLoader2Iterator[T_co] | None = None
        own_random_states()
        self._beginning = BeginGuard()
        # The position of an iterator that has been closed in mid-epoch, or why it could not be had
        self._parked: LoaderState | Exception | None = None
        self._saved_at: tuple[int, int] | None = None  # (epoch, items) of the last state that was saved in mid-epoch
        self._opaque = OpaqueWarnings()
        self._pid = 0  # of the process that has iterated it, since the last shutdown

    @property
    def datapipe(self) -> Any:
        """The graph that runs."""
        return self._run.graph

    @property
    def reading_service(self) -> ReadingServiceInterface:
        """What runs it."""
        return self._run.service

    @property
    def num_shards(self) -> int:
        """The number of shards of this rank: as asked for, as adopted from a state, or the service's default."""
        return self._run.num_shards

    def _check_shards(self) -> bool:
        """Are this rank's shards those of the run, whoever hosts them? Raises: ValueError for two numbers of them."""
        service = self.reading_service
        if service.total_shards is None:
            return service.world_size == 1 or all(
                division(node) is Division.BOTH for node in plan(self._run.graph).sharding_points
            )
        if service.fixed_num_shards not in (None, self._run.fixed_num_shards):
            raise ValueError(
                f"num_shards={service.fixed_num_shards} on each of {service.world_size} ranks does not make "
                f"total_shards={service.total_shards}: leave num_shards out"
            )
        return True

    @property
    def epoch(self) -> int:
        """The epoch of the live iterator, or, if there is none, the one that the next ``iter()`` gives.

        After the state of an epoch's last item, that is the next epoch. The length of the graph tells, unless it is one
        that ``set_length`` says, or the state: one taken after the end of the ``for`` loop always does, one taken
        before may where the length is not known.
        """
        if self._live is not None and not self._live.finished:
            return self._live.epoch
        loaded = self._loaded
        return self._run.next_epoch if loaded is None else loaded.epoch + self._run.at_end(loaded)

    def seed(self, seed: int) -> None:
        """Fix the whole run: the next ``iter()`` is epoch 0 of ``seed``. Epochs differ, and repeat for the same seed.

        Raises: TypeError or ValueError if it is no non-negative integer; RuntimeError after ``load_state_dict`` of
        another seed's state, which it would discard.
        """
        seed = check_seed(seed)
        if self._loaded is not None:
            if seed == self._loaded.seed:
                return
            raise RuntimeError(
                f"seed({seed}) would discard the loaded position, which belongs to seed {self._loaded.seed}: "
                "call seed() before load_state_dict(), or not at all"
            )
        self._run.seed, self._run.seeded = seed, True
        self._run.next_epoch = 0
        self._parked = None

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` be epoch ``epoch``, from its start, or from a loaded position within that epoch."""
        epoch = check_count("epoch", epoch, at_least=0)
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._loaded = None
        self._run.next_epoch = epoch
        self._parked = None

    @untraced
    @holding_at_exit
    def __iter__(self) -> DataLoader2Iterator[T_co]:
        self._check_process()
        self._take_last_looks()
        live, saved = self._live, self._saved_at
        if live is not None and not live.finished and self._loaded is None and saved == (live.epoch, live.delivered):
            tell_of_two_ways(*saved, self._run.next_epoch, "items")
        self._saved_at = None
        self._retire()
        self._pid = os.getpid()
        self._run.hold.take()
        loaded = self._loaded
        epoch = self._run.next_epoch if loaded is None else loaded.epoch
        if loaded is not None and loaded.finished:
            epoch, loaded = epoch + 1, None
        me = self._beginning.check_outside()
        try:
            self._beginning.thread = me
            numbers = self._run.epoch(self._run.draw_seed(), epoch)
            self._live = DataLoader2Iterator(self._run, numbers, loaded)  # if this raises, nothing is lost
            self._run.next_epoch = epoch + 1
            self._loaded = self._parked = None
        finally:
            self._beginning.thread = 0
        return watched(self, self._live)

    def __len__(self) -> int:
        """The number of items in an epoch, of this rank. Raises: TypeError where it is not known (after ``filter``)."""
        return self._run.length()

    def _explain(self) -> str:
        return self.reading_service.explain()

    @property
    def measuring(self) -> bool:
        """Are nodes measured, in passes that begin from now on: at ``iter()``, or when a process is replaced?"""
        return self.reading_service.measuring

    @measuring.setter
    def measuring(self, value: bool) -> None:
        self.reading_service.measuring = value

    def stats(self) -> LoaderStats:
        """What the live epoch, or else the last one, has done so far: who waits for whom, and what to change.

        ``print(loader.stats())`` begins with one sentence. Asks no process and stops nothing; from any thread, at any
        time, also before the first item and after :meth:`shutdown`. Raises: RuntimeError in a forked child.
        """
        self._check_process()
        if self._live is not None:
            self._run.observed = self._live.observe()
        return self._run.stats()

    @untraced
    def state_dict(self, states: States | None = None) -> dict[str, Any]:
        """The position after the last delivered item: nothing is asked or stopped. Takes what copying its bytes takes.

        ``states``: ``"own"``, this rank's; ``"all"``, the one state of all ranks, which is the same on each and loads
        under any number of them: all ranks call it at the same step, and wait for each other. None: as the reading
        service says (its default is ``"own"``). In a single process there is no difference.

        Keys: version, fingerprint, seed, epoch, delivered, num_shards, rank, world_size and payload (bytes). Holds no
        code; ``torchpipe.state.inspect`` shows it. An :class:`~torchpipe.errors.OpaqueStateWarning` tells of items that
        will load with ``allow_pickle=True`` alone. Called from another thread, it waits for a ``next()`` under way, and
        counts its item. After an exception in the stream, KeyboardInterrupt included, it describes the items before.

        Raises: RuntimeError when called from inside ``next()``, by a signal handler say, or in a forked child; for
        ``"all"``, RankError if a rank does not answer, and StateMismatchError if the states cannot be joined.
        """
        self._check_process()
        states = self.reading_service.states if states is None else states
        if states not in ("own", "all"):
            raise ValueError(f'states must be "own" or "all", got {states!r}')
        if states == "all" and self.reading_service.world_size > 1:
            if self._live is not None:
                self._live.refuse_inside("state_dict()")  # before others are told, who would wait
            state = state_of_all(self._own_state, self._run.seed is not None, self.reading_service.gather)
        else:
            state = self._own_state()
        self._opaque.tell(state["payload"])
        return state

    def _own_state(self) -> dict[str, Any]:
        return self._state().to_dict(self._graph_text, common=self._common)

    def _state(self) -> LoaderState:
        live = self._live
        if live is not None and not live.finished:
            state = live.state()
            self._saved_at = (state.epoch, state.delivered)
            return state
        pending = self._loaded or self._parked
        if isinstance(pending, Exception):
            raise StateError(
                f"the loader was shut down in mid-epoch, and its position could not be saved: "
                f"{type(pending).__name__}: {pending}. Load an older state, or begin another epoch by iter(), "
                "set_epoch() or seed()"
            ) from pending
        if pending is not None:
            return pending
        run = self._run
        return LoaderState.at(run.epoch(run.foretell_seed(), run.next_epoch), 0, None)

    @untraced
    def load_state_dict(self, state_dict: dict[str, Any], *, allow_pickle: bool = False) -> None:
        """Let the next ``iter()`` go on after the items that ``state_dict`` counts as delivered.

        A live iterator becomes invalid. A loader whose ``num_shards`` was left unset adopts the state's. Runs no code
        from the state, unless ``allow_pickle`` is set for buffered items that only pickle can rebuild.

        With several ranks, it is the state that the same rank of as many has saved, or the one state of all ranks, of
        a run of any number of them that divides the shards; all ranks load alike.

        Raises: StateMismatchError if the state belongs to another graph, shard count, rank or version (both are shown);
        UnsafeStateError if it needs ``allow_pickle``; StateError if it is damaged. The loader is then unchanged.
        """
        self._check_process()
        service = self.reading_service
        state = LoaderState.from_dict(
            state_dict,
            self._graph_text,
            Place(
                rank=service.rank,
                world_size=service.world_size,
                num_shards=self._run.fixed_num_shards,
                common=self._common,
                agreed=service.agreed_position,
            ),
            allow_pickle=allow_pickle,
        )
        self._refuse_inside("closing the loader")
        try:
            self._retire()
        finally:  # what cannot be closed without an error is over all the same
            self._parked = None
            self._loaded = state
            self._run.seed = state.seed
            self._run.next_epoch = state.epoch
            self._run.adopted_num_shards = state.num_shards

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        datapipe: Any,
        reading_service: ReadingServiceInterface | None = None,
        *,
        allow_pickle: bool = False,
    ) -> Self:
        """A loader over ``datapipe`` that goes on from ``state``; the graph comes from code, never from the state."""
        loader = cls(datapipe, reading_service=reading_service)
        loader.load_state_dict(state, allow_pickle=allow_pickle)
        return loader

    @untraced
    def shutdown(self) -> None:
        """End every process and thread. ``state_dict`` still answers; ``iter()`` would start anew. Idempotent.

        A ``next()`` in another thread is interrupted; one of this thread, in whose midst a signal handler calls this,
        is not, and this raises RuntimeError. In a forked child nothing happens: all belongs to the parent. An exception
        of a function or node of yours that is closed arrives when all else has been ended. One that keeps the position
        from being saved is raised by ``state_dict`` alone, from a StateError.
        """
        if self._pid not in (0, os.getpid()):
            return
        self._refuse_inside("shutdown()")
        live = self._live
        try:
            with ExitStack() as stack:
                stack.callback(self.reading_service.finalize)
                stack.callback(self._retire)
                if live is not None and not live.finished:
                    try:
                        self._parked = live.state("shutdown()")
                    except Exception as error:
                        self._parked = error.with_traceback(None)
        finally:
            self._pid = 0

    def _check_process(self) -> None:
        if self._pid:
            check_process(self._pid, "loader")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self)

    def _refuse_inside(self, what: str) -> None:
        """Raises: RuntimeError where this thread is in the midst of ``iter`` or ``next``, which then goes on."""
        self._beginning.check_outside()
        if self._live is not None:
            self._live.interrupt()
            self._live.refuse_inside(what)

    def _retire(self) -> None:
        self._refuse_inside("closing the loader")
        live, self._live = self._live, None
        if live is not None:
            with ExitStack() as stack:
                stack.callback(self.reading_service.finalize_iteration)
                stack.callback(live.retire)
                seen = live.observe()  # before the processes forget it
                self._run.observed = replace(seen, state="closed") if seen.state == "running" else seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
