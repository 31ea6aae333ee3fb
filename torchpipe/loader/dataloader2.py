"""``DataLoader2``: a graph, a reading service, a seed, and the position in the stream.

Runs in the user's process.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Never, NoReturn, Self, TypeVar

from torchpipe.ahead.waiting import holding_at_exit
from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.errors import StateError
from torchpipe.execution.interface import States
from torchpipe.execution.preparing import executable
from torchpipe.execution.reading_service import InProcessReadingService, ReadingServiceInterface
from torchpipe.graph import plan
from torchpipe.loader.driven import Driven
from torchpipe.loader.epochs import Epochs, Fresh, Live, Loaded
from torchpipe.loader.iterator import DataLoader2Iterator, Pass
from torchpipe.loader.observing import LoaderFigures, Looks, watched
from torchpipe.loader.run import Adapter, Run, adapt, streamed, way_out
from torchpipe.loader.single_consumer import check_process, refuse_pickling
from torchpipe.loader.state import LoaderState, RankLayout, state_of_all
from torchpipe.loader.untraced import untraced
from torchpipe.node.traits import Division, division, is_node, node_name, walk
from torchpipe.node.validate import check_count
from torchpipe.randomness.seeds import check_seed
from torchpipe.rings import from_ring
from torchpipe.stats.tracing import measures_by_default

__all__ = ["Adapter", "DataLoader2", "DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)


class DataLoader2(Driven, Looks, Generic[T_co]):
    """Iterates a graph, epoch after epoch, wherever its reading service runs it.

    Each ``iter(loader)`` is the next epoch. The stream is fixed by the graph, the seed, the epoch and the number of
    shards. Without :meth:`seed` or a loaded state, the first ``iter()`` draws a seed from torch's default generator
    (one draw, so ``torch.manual_seed`` fixes the run), later ones draw nothing; every epoch differs all the same.
    ``datapipe_adapter_fn`` (one function or several) changes the graph before it runs; a map-style node is read in the
    order of its indices, as by ``.to_iter_datapipe()``. ``reading_service`` defaults to in-process execution; a service
    belongs to one loader. With ``loader.measuring = True``, :meth:`stats` has figures of each node
    (docs/seeing.md); ``TORCHPIPE_MEASURE=1`` sets it for all loaders.

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
        **unknown: Never,
    ) -> None:
        for name in unknown:
            raise TypeError(
                f"DataLoader2 has no argument {name!r}: the graph says what is made (.shuffle(), .batch()), and "
                "reading_service=MultiProcessingReadingService(num_workers=2) who makes it"
            )
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
        self.measuring = measures_by_default()
        self._run.common = self._check_shards()
        self._epochs: Epochs[LoaderState] = Epochs()
        self._pass: Pass | None = None  # of the last iter(), until it is closed
        self._pid = 0  # of the process that has iterated it, since the last shutdown

    def __repr__(self) -> str:
        names = " -> ".join(node_name(node) for node in walk(self.datapipe))
        return f"<DataLoader2: {names}, {type(self.reading_service).__name__}, epoch {self._epochs.epoch}>"

    @property
    def datapipe(self) -> Any:
        """The graph that runs."""
        return self._run.graph

    @property
    def reading_service(self) -> ReadingServiceInterface:
        """The reading service that runs it."""
        return self._run.service

    @property
    def num_shards(self) -> int:
        """The number of shards of this rank: as asked for, as a state has it, or the service's default."""
        return self._run.num_shards

    def _check_shards(self) -> bool:
        """True if this rank's shards are those of the run, whoever hosts them. Raises: ValueError for two numbers."""
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

    def seed(self, seed: int) -> None:
        """Fix the whole run: the next ``iter()`` is epoch 0 of ``seed``. Epochs differ, and repeat for the same seed.

        An iterator at work goes on with its own.

        Raises: TypeError or ValueError if it is no non-negative integer; RuntimeError after ``load_state_dict`` of
        another seed's state, which it would discard.
        """
        seed = check_seed(seed)
        coming = self._epochs.coming
        if isinstance(coming, Loaded):
            if seed == coming.position.seed:
                return
            raise RuntimeError(
                f"seed({seed}) would discard the loaded position, which belongs to seed {coming.position.seed}: "
                "call seed() before load_state_dict(), or not at all"
            )
        self._run.seed, self._run.seeded = seed, True
        self._epochs.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` be epoch ``epoch``: what a loaded state leaves of it, else from its start.

        An iterator at work goes on in its own epoch.
        """
        self._epochs.set_epoch(check_count("epoch", epoch, at_least=0))
        self._epochs.numbered = True

    @untraced
    def __iter__(self) -> DataLoader2Iterator[T_co]:
        return watched(self, self._begin_epoch())

    @holding_at_exit
    def _begin_epoch(self) -> DataLoader2Iterator[T_co]:
        self._check_process()
        self._leave_driver("iter(loader)")
        self._take_last_looks()
        epochs, run = self._epochs, self._run
        coming = epochs.next("items")
        self._retire()
        self._pid = os.getpid()
        run.hold.take()
        loaded = coming.position if isinstance(coming, Loaded) else None
        epoch = coming.epoch if isinstance(coming, Fresh) else coming.position.epoch
        me = epochs.beginning.check_outside()
        try:
            epochs.beginning.thread = me
            work = Pass(run, run.epoch(run.draw_seed(), epoch), loaded)  # if this raises, nothing is lost
            self._pass, iterator = work, DataLoader2Iterator[T_co](run, epochs, work)
            epochs.begin(lambda: work, weakref.ref(iterator), coming)
        finally:
            epochs.beginning.thread = 0
        return iterator

    def _note_beginning(self) -> Callable[[], object]:
        return self._retire

    @untraced
    def skip(self, steps: int) -> int:
        """Pass over ``steps`` items, or what is left of the epoch, as if they had been taken: how many that was.

        In a loop, the next ones: all that follows is as without the skip, states and random numbers included, and the
        loop still comes to its end itself. Functions of a graph may draw from random states that go on from item to
        item: the items are made, by whoever makes them in the loop, and dropped.

        Outside of one, the first ones of the next ``iter()``, after ``load_state_dict`` those behind the position. That
        ``iter()`` is then a resume: what remembers something without a ``state_dict`` (a function that counts its
        calls) gives what it gives after a resume, and a source that can be read once is refused when it is read again.
        Take ``stream = iter(loader)`` first where that matters.

        Raises: TypeError or ValueError for a number that is negative or none; what making the items raises.
        """
        steps = check_count("steps", steps, at_least=0)
        if not steps:
            return 0
        self._check_process()
        form = self._epochs.form
        live = form.holder() if isinstance(form, Live) else None
        if isinstance(live, DataLoader2Iterator):
            self._leave_driver("skip()")
            return live.skip(steps)
        iterator = self._begin_epoch()
        passed = iterator.skip(steps)
        position = iterator.position()
        self._retire()
        self._epochs.load(Loaded(position))
        return passed

    def mixtures(self) -> Any:
        """The draws of each ``mix`` of the graph at :meth:`state_dict`'s position, from its first input on; of the
        shards of this rank, and of this epoch.

        The makers of the items are asked, as by ``state_dict(exact=True)``: with worker processes at any position, in
        process once an item has been taken. Raises: StateError where no exact state can be taken, or the positions of
        nodes cannot be told.
        """
        return from_ring("torchpipe.observe.steps.asking:mixtures")(self)

    def next_change(self) -> int:
        """From which number on the ``weights`` of every ``mix`` may be others in a run that goes on from here: behind
        what each shard of this rank has come to. With several ranks, take the largest of all.

        Raises: ValueError for a graph without ``mix``; as :meth:`mixtures`.
        """
        return from_ring("torchpipe.observe.steps.asking:next_change")(self)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        """The number of items in an epoch, of this rank. Raises: TypeError where it is not known (after ``filter``)."""
        return self._run.length()

    def _position_beside(self) -> LoaderState:
        """The position, for who goes on from it beside the loop. Raises: RuntimeError in a forked child."""
        self._check_process()
        return self._position_now()

    def _explain(self) -> str:
        run = self._run
        return self.reading_service.explain(None if run.fixed_num_shards else run.saved_num_shards)

    @property
    def measuring(self) -> bool:
        """True if passes that begin from now on measure nodes: at ``iter()``, or when a process is replaced."""
        return self.reading_service.measuring

    @measuring.setter
    def measuring(self, value: bool) -> None:
        self.reading_service.measuring = value

    def _figures(self) -> LoaderFigures:
        self._check_process()
        if self._pass is not None:
            self._run.observed = self._pass.observe()
        return self._run._figures()

    @untraced
    def state_dict(self, states: States | None = None, *, exact: bool = False) -> dict[str, Any]:
        """The position after the last delivered item: nothing is asked or stopped. Takes what copying its bytes takes.

        ``states``: ``"own"``, this rank's; ``"all"``, the one state of all ranks, which is the same on each and loads
        under any number of them: all ranks call it at the same step, and wait for each other. None: as the reading
        service says (its default is ``"own"``). In a single process there is no difference.

        ``exact``: whoever makes the items takes snapshots at the very position. Where workers do, as many more at most
        make the items since the last snapshots again, as in a resume, and the loop waits. A resume from there makes
        nothing again, so that functions that leave out, expand or group items may have other code. There is none where
        something in the graph keeps no state: a node or an iterable of yours, an open iterator of ``flatmap``.

        Keys: version, fingerprint, seed, epoch, delivered, num_shards, rank, world_size and payload (bytes). Holds no
        code; ``torchpipe.state.inspect`` shows it. An :class:`~torchpipe.errors.OpaqueStateWarning` tells of items that
        will load with ``allow_pickle=True`` alone. Called from another thread, it waits for a ``next()`` under way, and
        counts its item. After an exception in the stream, KeyboardInterrupt included, it describes the items before.

        Raises: RuntimeError when called from inside ``next()``, by a signal handler say, or in a forked child; for
        ``"all"``, RankError if a rank does not answer, and StateMismatchError if the states cannot be joined. For
        ``exact``, StateError where there is no such state, or no loop at work; the loop goes on.
        """
        self._check_process()
        states = self.reading_service.states if states is None else states
        if states not in ("own", "all"):
            raise ValueError(f'states must be "own" or "all", got {states!r}')
        driven = self._driven_state(exact)
        if driven is not None:
            if states == "all" and self.reading_service.world_size > 1:
                raise StateError(
                    "claims are open on each rank for itself, so there is no one state of all ranks: save each rank's "
                    'own, state_dict("own")'
                )
            return driven
        if states == "all" and self.reading_service.world_size > 1:
            if self._pass is not None:
                self._pass.refuse_inside("state_dict()")  # before others are told, who would wait
            own, fixed = partial(self._own_state, exact), self._run.seed is not None
            state = state_of_all(own, fixed, self.reading_service.gather)
        else:
            state = self._own_state(exact)
        return self._run.tell(state)

    def _position_now(self) -> LoaderState:
        return self._epochs.position(self._start)

    def _state_at(self, position: LoaderState) -> dict[str, Any]:
        return self._run.tell(self._run.own_state(position))

    def _own_state(self, exact: bool) -> dict[str, Any]:
        work = self._pass
        if not exact or work is None:
            return self._own_state_now(exact)
        return work.guard.read("state_dict()", partial(self._own_state_now, exact))

    def _own_state_now(self, exact: bool) -> dict[str, Any]:
        position = self._position_now()
        exact = exact and position.position is not None
        if exact:
            self._epochs.check_at_work()
        state = self._run.own_state(position, exact=exact)
        self._epochs.note_saved(position)
        return state

    def _start(self, epoch: int) -> LoaderState:
        run = self._run
        return LoaderState.at(run.epoch(run.foretell_seed(), epoch), 0, None)

    @untraced
    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_pickle: bool = False, allow_other_data: bool = False
    ) -> None:
        """Let the next ``iter()`` go on after the items that ``state_dict`` counts as delivered.

        A live iterator becomes invalid. A loader whose ``num_shards`` was left unset takes the state's. Runs no code
        from the state, unless ``allow_pickle`` is set for buffered items that only pickle can rebuild.
        ``allow_other_data`` lets it go on over other data: the items that it counts are then other ones.

        With several ranks, it is the state that the same rank of as many has saved, or the one state of all ranks, of
        a run of any number of them; all ranks load alike.

        Raises: StateMismatchError if the state belongs to another graph, shard count, rank or version (both are shown),
        or to other data (with the first part and index that differ);
        UnsafeStateError if it needs ``allow_pickle``; StateError if it is damaged. The loader is then unchanged.
        """
        self._check_process()
        plain, of_driver = self._split_state(state_dict, allow_pickle)
        state = self._read_state(plain, allow_pickle, allow_other_data)
        self._refuse_inside("closing the loader")
        try:
            self._retire()
        finally:  # what cannot be closed without an error is over all the same
            self._epochs.load(Loaded(state))
            self._run.seed = state.seed
            self._run.saved_num_shards = state.num_shards
            self._load_driver(of_driver)

    def _read_state(self, state: Any, allow_pickle: bool, allow_other_data: bool = False) -> LoaderState:
        """Raises: as :meth:`load_state_dict`."""
        service = self.reading_service
        return LoaderState.from_dict(
            state,
            self._run.identity,
            RankLayout(
                rank=service.part.number,
                world_size=service.part.count,
                turns=service.part.turns,
                num_shards=self._run.fixed_num_shards,
                common=self._run.common,
                agreed=service.agreed_position,
            ),
            allow_pickle=allow_pickle,
            allow_other_data=allow_other_data,
        )

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        datapipe: Any,
        reading_service: ReadingServiceInterface | None = None,
        *,
        allow_pickle: bool = False,
        allow_other_data: bool = False,
    ) -> Self:
        """A loader over ``datapipe`` that goes on from ``state``; the graph comes from code, never from the state."""
        loader = cls(datapipe, reading_service=reading_service)
        loader.load_state_dict(state, allow_pickle=allow_pickle, allow_other_data=allow_other_data)
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
        if self.driver is not None:
            self.driver.interrupt()
        try:
            with ExitStack() as stack:
                stack.callback(self.reading_service.finalize)
                stack.callback(self._retire)
                self._epochs.keep()
        finally:
            self._pid = 0

    def _check_process(self) -> None:
        if self._pid:
            check_process(self._pid, "loader")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self)

    def _refuse_inside(self, what: str) -> None:
        """Raises: RuntimeError where this thread is in the midst of ``iter`` or ``next``, which then goes on."""
        self._epochs.beginning.check_outside()
        if self._pass is not None:
            self._pass.interrupt()
            self._pass.refuse_inside(what)

    def _retire(self) -> None:
        self._refuse_inside("closing the loader")
        work, self._pass = self._pass, None
        self._epochs.end()
        if work is not None:
            with ExitStack() as stack:
                stack.callback(self.reading_service.finalize_iteration)
                stack.callback(work.close)
                seen = work.observe()  # before the processes forget it
                self._run.observed = replace(seen, state="closed") if seen.state == "running" else seen
