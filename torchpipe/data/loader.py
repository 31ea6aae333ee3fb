"""``DataLoader``: torch's, with its arguments, on torchpipe's engine. Runs in the user's process."""

from __future__ import annotations

import copy
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeAlias, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterDataPipe, MapDataPipe, Sampler

from torchpipe.ahead.waiting import holding_at_exit
from torchpipe.compat.torch_private import gives_batches, is_iterable, unwrapped
from torchpipe.data import processes, threads
from torchpipe.data.arguments import FetchBy, NamesForTools, check_arguments, check_fetch, check_shuffle, device_options
from torchpipe.data.batches import Batches, LocalBatches
from torchpipe.data.fetch import Fetch, WorkerInitFn
from torchpipe.data.figures import Observable, Steps
from torchpipe.data.iterable import saved_shards
from torchpipe.data.iterator import DataLoaderIterator
from torchpipe.data.order.between_epochs import (
    Carried,
    between_epochs,
    check_between_epochs,
    check_seeding,
    forget,
    keep_division,
    keep_start,
    restore,
    take_back,
)
from torchpipe.data.order.samplers import (
    LastBatch,
    Samplers,
    length_of,
    load_into,
    put_back,
    ranks_of_sampler,
    with_last_batch,
)
from torchpipe.data.order.sampling import Order, begin_order, check_order
from torchpipe.data.position import (
    FORM,
    Position,
    check_position,
    identity_of,
    length_of_dataset,
    of_rank,
    read,
    write,
)
from torchpipe.data.ranks.batches import RankedSampler, Ranks, begin_ranked, check_ranked, ranked_sampler
from torchpipe.data.streams import begin_stream, lanes_behind, put_dataset
from torchpipe.data.workers import WorkerMethod
from torchpipe.device import resolve
from torchpipe.execution.limits import OnDeath, Restart
from torchpipe.execution.ranks import Among, RankGroup
from torchpipe.execution.shard import announce_leading
from torchpipe.loader.driven import Driven
from torchpipe.loader.epochs import Epochs, Fresh, Live, Loaded
from torchpipe.loader.observing import watched
from torchpipe.loader.untraced import untraced
from torchpipe.machine import Budget, budget_of
from torchpipe.node.describe import describe_bound
from torchpipe.node.identity import Identity, identity_of_data
from torchpipe.node.iterator import is_stateful
from torchpipe.node.opaque_warnings import OpaqueWarnings
from torchpipe.node.validate import check_count
from torchpipe.randomness.global_random import own_states_in_place
from torchpipe.rings import from_ring, is_installed
from torchpipe.state import as_text
from torchpipe.stats.tracing import measures_by_default
from torchpipe.values import ObjectTracker, kept_of, put

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

_LEFT_ALONE = (
    "worker_seeding='torch' leaves it as it is: what is drawn depends on the workers, and a resume draws anew. Let "
    "worker_seeding='batch' seed it for each batch, or draw from a generator made of the index"
)

Seeding: TypeAlias = Literal["batch", "torch"]


class DataLoader(Driven, NamesForTools, Observable, TorchDataLoader[T_co]):
    """torch's ``DataLoader``: same arguments, same order of samples; resumes exactly, and survives killed workers.

    All arguments up to ``in_order`` are torch's, and mean what they mean there. The sampler runs in this process and
    draws from the same generators in the same order as torch's loader, so that ``torch.manual_seed`` or ``generator``
    fix the same order. Further arguments:

    Args:
        timeout: seconds that a batch is waited for before it is a RuntimeError (0: no limit). The time begins anew with
            each sample or batch that a worker process makes again on the way to where a state was saved.
        worker_seeding: ``"batch"`` seeds ``random``, numpy and torch for each batch, from the epoch's seed and the
            batch's number, so that augmentation is the same for any number of workers, and after a resume or a crash.
            ``"torch"`` seeds each worker once, as torch does: exact for a fixed number of workers.
        worker_method: ``"multiprocessing"``; ``"thread"``: worker threads, which share the dataset; ``"ray"`` or a
            ``reading_services.RayWorkers``: Ray actors, on any node of a cluster.
        on_worker_death: ``"restart"`` replaces a worker that dies, and gives a batch up at which three have died; a
            ``reading_services.Restart`` has other limits; ``"raise"``: RuntimeError in torch's words.
        last_batch: Gluon's: ``"keep"``, ``"discard"``, or ``"rollover"``: what is left goes into the next epoch.
        fetch: who makes a batch of a map-style dataset. ``"batches"``: one worker. ``"samples"``: each sample, or a few
            quick ones, whichever worker is idle, and one of them puts them together: a slow sample holds up nobody
            else. Batches, order and states are the same; ``random``, numpy and torch are seeded for each sample then.
        device: ``"xla"``, ``"cuda"``, ``"cpu"``: moves batches there ahead of the loop, two of them;
            ``torchpipe.device.DeviceOptions("cuda", device_prefetch=4)``: four.
        autotune: choose by measurement how many of ``num_workers`` are started; or a :class:`~torchpipe.stats.Budget`.
            A process may stand for several workers then (also under Ray): what ``worker_init_fn`` keeps belongs into
            ``get_worker_info().dataset``, since a module's global is that of the last worker in the process.
        distributed: deal the batches of one process to the ranks that divide data: rank r of w has every w-th from r
            on. True: all ranks of the initialized process group; ``mesh["dp"]`` (a ``DeviceMesh`` of one dimension) or
            a ``ProcessGroup``: those. Their peers in other dimensions have the same batches. The seed is rank 0's, or
            with a mesh one of the whole job, and fixes every epoch; ranks talk when one begins, no more. A
            ``torchpipe.data.Ranks`` says as well what they do with a last step that is not full, and makes them
            equally busy.

    State: :meth:`state_dict` counts the batches that were handed out. Samplers and datasets that have ``state_dict``
    and ``load_state_dict`` are saved with it. With ``distributed`` it is one and the same on all ranks, and goes on
    under any number of them, with batches of any size.

    Raises: ValueError and TypeError as torch's loader does, for the same mistakes.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: WorkerInitFn | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_seeding: Seeding = "batch",
        worker_method: Literal["multiprocessing", "thread", "ray"] | WorkerMethod = "multiprocessing",
        on_worker_death: OnDeath = "restart",
        last_batch: LastBatch | None = None,
        device: Any = None,
        distributed: bool | Among | Ranks = False,
        autotune: bool | Budget = False,
        fetch: FetchBy = "batches",
    ) -> None:
        num_workers = operator.index(num_workers)  # numpy's, say, would go into what is computed of it
        check_arguments(
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            worker_seeding=worker_seeding,
            worker_method=worker_method,
            autotune=autotune,
            fetch=fetch,
        )
        check_shuffle(dataset, shuffle)
        ranked = ranked_sampler(
            dataset,
            distributed=distributed,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            generator=generator,
            in_order=in_order,
            worker_seeding=worker_seeding,
            last_batch=last_batch,
        )
        if ranked is not None:
            sampler, shuffle = ranked, None
        drop_last, batch_sampler, batch_size = with_last_batch(
            last_batch, dataset, batch_size, shuffle, sampler, batch_sampler, drop_last, generator
        )
        rolls = last_batch == "rollover"
        super().__init__(
            dataset,
            batch_size,
            None if rolls else shuffle,
            None if rolls else sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.fetch = fetch
        check_fetch(fetch, self._plain_dataset(), batched=not self._is_iterable and gives_batches(self))
        self._start_method_named = isinstance(multiprocessing_context, str)  # torch keeps a context for the name
        self.worker_seeding = worker_seeding
        self.worker_method = worker_method
        Restart.of(on_worker_death)  # refuses what it cannot be
        self.on_worker_death = on_worker_death
        self.last_batch = last_batch
        self.device = device
        # The sampler says among which ranks; this, how they end in a loader that is made again from its attributes
        self.distributed = ranked is not None and Ranks(uneven=ranked.uneven, balance=ranked.balance)
        self._ranks: RankGroup | None = None  # with whom epochs are begun
        if ranked is not None:
            ranked.attach(self)
        self._device_options = device_options(device)
        self._device_backend = None if self._device_options is None else resolve(self._device_options)
        self.autotune, self._budget = autotune, budget_of(autotune, num_workers)
        self.measuring = measures_by_default()  # from the next epoch on
        self._pid = os.getpid()
        self._epochs: Epochs[Position] = Epochs()
        self._before: Position | None = None  # while an epoch begins
        self._pool: Any = None  # persistent workers
        self._shared: ObjectTracker | None = None  # a dataset that threads share, as the epoch before found it
        self._carried = Carried()
        self._last_samplers = Samplers(self._present_sampler, self.generator, keeps_seed=self.persistent_workers)
        self._described = self.collate_fn, describe_bound(self.collate_fn)  # now: it may change while it is used
        self._looked: tuple[int, Identity] = length_of_dataset(self), identity_of_data(self._plain_dataset())  # so too
        self._opaque = OpaqueWarnings()

    def __repr__(self) -> str:
        items = length_of(self.dataset)
        what = type(self._plain_dataset()).__name__ + ("" if items is None else f" of {items:,}")
        epoch = self._epochs.epoch
        return f"<DataLoader: {what}, batch_size={self.batch_size}, {self.num_workers} workers, epoch {epoch}>"

    @property
    def _is_iterable(self) -> bool:
        return is_iterable(self)

    @property
    def _ranked(self) -> RankedSampler | None:
        return self.sampler if isinstance(self.sampler, RankedSampler) else None

    @property
    def _samplers(self) -> Samplers:
        """The samplers that the loader has now: one that was put into it since it was made is as much its own."""
        last, sampler = self._last_samplers, self._present_sampler
        if last.are_other(sampler, self.generator, within=self._live is None):
            self._last_samplers = Samplers(sampler, self.generator, keeps_seed=last.keeps_seed)
            self._last_samplers.dataset = last.dataset
        return self._last_samplers

    @property
    def _present_sampler(self) -> Any:
        return () if self._is_iterable else self._index_sampler

    @property
    def _bound_to_collate(self) -> Any:
        if self._described[0] is not self.collate_fn:
            self._described = self.collate_fn, describe_bound(self.collate_fn)
        return self._described[1]

    def _data_of(self, length: int) -> Identity:
        """The identity of its data, as they were when the loader was made, or have come to this length."""
        if self._looked[0] != length:
            self._looked = length, identity_of_data(self._plain_dataset())
        return self._looked[1]

    @property
    def _division(self) -> tuple[int, bool]:
        """Among how many an iterable dataset is divided, and are these workers? It belongs to the stream, and stays."""
        return self._carried.division or (max(1, self.num_workers), self.num_workers > 0)

    @property
    def _reads_here(self) -> bool:
        """True if batches are made in this process, by the thread that asks for them."""
        return not (self.num_workers and (not self._is_iterable or self._division[1]))

    def worker_pids(self) -> list[int]:
        """The process ids of the workers of the live iterator, in the order of their numbers."""
        live = self._live
        return [] if live is None else [process.pid for process in live._workers]

    @property
    def _live(self) -> DataLoaderIterator[T_co] | None:
        """The iterator at work."""
        work: Any = self._epochs.work
        return work  # type: ignore[no-any-return]

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` be ``epoch``: what a loaded state leaves of it, else from its start.

        Samplers that have ``set_epoch`` are told, those of an iterator at work when it has ended.
        """
        epoch = check_count("epoch", epoch, at_least=0)
        coming = self._epochs.coming
        if self._epochs.work is None and isinstance(coming, Loaded) and coming.position.epoch != epoch:
            self._leave_out(coming.position)
        if self._epochs.set_epoch(epoch):
            self._tell_samplers(epoch)
        self._epochs.numbered = True

    def _leave_out(self, loaded: Position) -> None:
        """A loaded epoch's rest will not be read: all stands as after a ``break`` there. Its sampler drew for what was
        handed out, and no more.
        """
        order, samplers, dataset = loaded.order or {}, self._samplers, (loaded.batches or {}).get("dataset")
        if self._epochs.begun:  # it was looked at
            self._take_up(loaded, again=True)
        further = order.get("asked", 0) + order.get("ended", False) > loaded.handed_out
        if not self.distributed and "start" in order and (further or not samplers.are_torchs):
            left = begin_order(samplers, saved=(order, loaded.delivered), moves=loaded.now is None)
            left.rewind(loaded.handed_out)
        if dataset is not None:
            load_into(self._plain_dataset(), dataset)
        lanes = lanes_behind(self, loaded) if self._is_iterable else None
        announce_leading(lanes)
        self._carried = replace(self._carried, lanes=lanes)

    def _tell_samplers(self, epoch: int) -> None:
        if self._ranked is not None:
            self._ranked.epoch = epoch
        for part in () if self.distributed else self._samplers.parts:
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)

    def _hear_samplers(self) -> None:
        """A sampler that was told another epoch, since a state of the midst of one was loaded, means that other one."""
        coming = self._epochs.coming
        start = None if isinstance(coming, Fresh) else (coming.position.order or {}).get("start")
        if start is None:
            return
        changed = [
            new for new, old in zip(self._samplers.given_epochs(), start["epochs"]) if old is not None and new != old
        ]
        if changed and type(changed[0]) is int:
            self.set_epoch(changed[0])

    def _epoch_asked(self, epoch: int) -> None:
        """``sampler.set_epoch`` was called, by a trainer that may do so after ``iter()``."""
        work = self._epochs.work
        if work is None or work.epoch != epoch:
            self.set_epoch(epoch)

    def __iter__(self) -> DataLoaderIterator[T_co]:  # type: ignore[override]
        return self._get_iterator()

    @untraced
    def _get_iterator(self) -> DataLoaderIterator[T_co]:  # type: ignore[override]
        """Begin an epoch: torch's name, by which subclasses with an ``__iter__`` of their own ask for one."""
        return watched(self, self._begin_epoch())

    @holding_at_exit
    def _begin_epoch(self, *, makes: bool = True) -> DataLoaderIterator[T_co]:
        self._settle()
        self._leave_driver("iter(loader)")
        self._take_last_looks()
        epochs, before = self._epochs, None
        with suppress(Exception):  # of a state_dict() of the user's, who may not want a state at all
            before = self._position_now()  # whoever asks for a state while the epoch begins is told this
        self._hear_samplers()
        coming = epochs.next("batches")
        if (live := self._live) is not None:
            live.supersede()
            if isinstance(epochs.form, Loaded):  # nothing had been taken
                coming = epochs.form
        if isinstance(coming, Loaded) and epochs.begun:  # it was looked at
            self._take_up(coming.position, again=True)
        loaded = coming.position if isinstance(coming, Loaded) else None
        epoch = coming.epoch if isinstance(coming, Fresh) else coming.position.epoch
        me, begun = epochs.beginning.check_outside(), None
        carried, now = self._carried, self._samplers.now()
        try:
            epochs.beginning.thread, self._before = me, before
            if isinstance(coming, Fresh) and not coming.announced:
                self._tell_samplers(epoch)
            iterator: DataLoaderIterator[T_co] = DataLoaderIterator(self, epoch, loaded, makes=makes)  # may raise
            begun = weakref.ref(iterator)
            epochs.begin(begun, begun, coming)
        except BaseException:
            if not (isinstance(epochs.form, Live) and epochs.form.holder is begun):  # nothing is drawn for it
                take_back(self, carried, now, before.between_epochs if before is not None else None)
            raise
        finally:
            epochs.beginning.thread, self._before = 0, None
        return iterator

    def _note_beginning(self) -> Callable[[], object]:
        go_back = partial(self._take_up, self._position_beside(), again=True)
        kept = self._samplers.dataset
        if kept is None:
            return go_back
        stands, closed = kept_of(self._plain_dataset()), kept.closed  # with what the user has set since

        def stand_again() -> None:
            go_back()
            put(stands, [], compares=False)  # the very objects: also those that no state can hold
            kept.closed = closed

        return stand_again

    @untraced
    def skip(self, steps: int) -> int:
        """Pass over ``steps`` batches, or what is left of the epoch, as if they had been taken: how many that was.

        In a loop, the next ones; else the first ones of the next ``iter()``, after ``load_state_dict`` those behind the
        position. All that follows is as without the skip, states and random numbers included. Of a map-style dataset
        nothing is read but what workers have begun already; datasets that are iterable or have a ``state_dict``, and
        ``worker_seeding="torch"``, are led on by making the batches, which are then dropped.

        Raises: TypeError or ValueError for a number that is negative or none; what ends the epoch.
        """
        steps = check_count("steps", steps, at_least=0)
        if not steps:
            return 0
        self._settle()
        if (live := self._live) is not None:
            self._leave_driver("skip()")
            return live.skip(steps)
        iterator = self._begin_epoch(makes=self._must_make)
        passed = iterator.skip(steps)
        self._take_up(self._position_now())
        return passed

    def _position_beside(self) -> Position:
        """The position, for who goes on from it beside the loop."""
        self._settle()
        self._hear_samplers()
        return self._position_now()

    @property
    def _must_make(self) -> bool:
        """True if what follows a batch depends on its having been made."""
        return self._is_iterable or is_stateful(self.dataset) or self.worker_seeding == "torch"

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, T_co]]:
        """(number, batch) for each batch: the first of an epoch has ``start``, also where a loaded state goes on."""
        stream = iter(self)
        for batch in stream:
            yield start + stream._num_yielded - 1, batch

    def _settle(self) -> None:
        """In a forked child, all that is at work belongs to the parent; the loader itself can be used."""
        if self._pid != os.getpid():
            self._pid, self._pool, self._carried = os.getpid(), None, replace(self._carried, base_seed=None)
            self._epochs.end()

    # -- what an iterator asks for --------------------------------------------------------------------------------

    def _begin(self, epoch: int, saved: Position | None, *, makes: bool) -> tuple[Order | None, Batches]:
        keep_start(self)
        if self._is_iterable:
            return None, begin_stream(self, epoch, saved)
        order = begin_ranked(self, epoch, saved) if self.distributed else self._own_order(saved)
        self._carried = replace(self._carried, base_seed=order.base_seed)
        order.makes_lists = by_sample = self.fetch == "samples"
        fetch = Fetch(self._plain_dataset(), gives_batches(self), self.collate_fn, by_sample=by_sample)
        if self.num_workers and self.worker_method == "thread":
            fetch.warn_of_generators(threads.SHARED)
        elif self.worker_seeding == "torch":
            fetch.warn_of_generators(_LEFT_ALONE)
        position = None if saved is None else saved.batches
        if self.num_workers == 0 or not makes:
            if position is not None and "dataset" in position:
                load_into(fetch.dataset, position["dataset"])
            seeded = epoch if self.worker_seeding == "batch" else None
            return order, LocalBatches(order, fetch, seeded, position, steps=Steps(self), measures=self.measuring)
        engine: Any = threads if self.worker_method == "thread" else processes
        return order, engine.begin_assigned(self, order, fetch, epoch, position)

    def _own_order(self, saved: Position | None) -> Order:
        if saved is not None and saved.order is not None:
            return begin_order(self._samplers, saved=(saved.order, saved.delivered), moves=saved.now is None)
        return self._coming_order(self._samplers)

    def _coming_order(self, samplers: Samplers) -> Order:
        """That of the next epoch, as ``samplers`` give it: the loader's own, or copies of them."""
        carried = self._carried
        base_seed = carried.base_seed if samplers.keeps_seed else None
        return begin_order(samplers, base_seed=base_seed, loaded=carried.stands, last=carried.sampler)

    def _plain_dataset(self) -> Any:
        """The dataset as it was given: torch puts nodes into a wrapper."""
        dataset: Any = self.dataset
        return unwrapped(dataset) if isinstance(dataset, IterDataPipe | MapDataPipe) else dataset

    def _release(self, batches: Batches) -> None:
        """``batches`` are over: workers that are not to persist have ended."""
        if self._pool is not None and not self._pool.usable:
            self._end_workers()

    def _left(self, iterator: DataLoaderIterator[Any], *, failed: bool) -> None:
        """``iterator`` has ended, ``failed`` or was let go of in mid-epoch: the next one takes over what it leaves."""
        self._last_samplers.note()
        form = self._epochs.form
        if not isinstance(form, Live) or form.work() not in (iterator, None):
            return
        self._observed = iterator.observe()  # who looks from another thread finds this epoch, or its figures
        if not iterator.finished:
            iterator.give_up()
        end, lanes = iterator.last_position(), iterator.lanes()
        self._carried = replace(self._carried, sampler=end, stands=False, lanes=lanes)
        if iterator.finished:
            self._epochs.end(iterator)
        else:
            position = replace(iterator.position(), now=None)  # others draw from now on
            self._epochs.park(iterator, lambda: position, failed=failed)
            if isinstance(self._epochs.form, Fresh):  # nothing was taken: the next one has the order that was drawn
                self._epochs.form = Loaded(position)

    # -- state ----------------------------------------------------------------------------------------------------

    @untraced
    def state_dict(self, *, exact: bool = False) -> dict[str, Any]:
        """The position after the last batch that was handed out. Starts nothing, draws nothing, asks no worker.

        ``exact``: with a snapshot of each worker's part at the very position, so that a resume makes no batch again. A
        state of a map-style dataset is so anyhow. An iterable one, or its iterator, has to have ``state_dict``, and may
        then have other code; without workers it is asked, and with workers, as many more at most make the batches
        since the last snapshots again, while the loop waits.

        Keys: version, dataset, length, batch_size, drop_last, sampler, collate, epoch, delivered and payload (text):
        JSON can hold it.

        Raises: for ``exact``, StateError where there is no such state, or no loop at work; the loop goes on.
        """
        self._settle()
        self._samplers.tell_what_is_lost()
        driven = self._driven_state(exact)
        if driven is not None:
            return driven
        live = self._live
        with nullcontext() if live is None else live.lock:
            position = self._position_now()
            if exact and "stream" in (position.batches or {}):
                self._epochs.check_at_work()
                assert live is not None
                position = live.exact(position)
        self._epochs.note_saved(position)
        return self._state_at(position)

    def _state_at(self, position: Position) -> dict[str, Any]:
        state = write(position, identity_of(self))
        self._opaque.tell(state["payload"])
        return state | {"payload": as_text(state["payload"])}

    def _coming(self) -> tuple[tuple[int, int], bool]:
        self._hear_samplers()
        return super()._coming()

    def _position_now(self) -> Position:
        """Between two batches: another thread's ``next()`` is waited for, one of this thread's counts nothing yet."""
        if self._before is not None:
            return self._before
        live = self._live
        with nullcontext() if live is None else live.lock, own_states_in_place():
            position = self._epochs.position(lambda epoch: Position(epoch=epoch, delivered=0))
            looked_at = self._epochs.begun and isinstance(self._epochs.form, Loaded)  # iter() goes back to there
            if self._live is None and not looked_at:
                position = replace(position, now=None)  # others may have drawn since
            if position.now is None and not self.distributed:
                position = replace(position, now=self._samplers.now())
            if position.order is None:
                begun, under_way = position.epoch > 0 or self._epochs.begun, position.batches is not None
                position = replace(position, between_epochs=between_epochs(self, begun=begun, under_way=under_way))
            return replace(position, batches=of_rank(position.batches, self._samplers.parts))

    @untraced
    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_pickle: bool = False, allow_other_data: bool = False
    ) -> None:
        """Let the next ``iter()`` go on after the batches that ``state_dict`` counts. ``{}`` forgets any position.

        A state of torchdata's ``StatefulDataLoader`` is taken too: ``torchpipe/torchdata/stateful.py`` says which.
        An iterator that is at work becomes invalid, and says so. Runs no code from the state, unless ``allow_pickle``.
        ``allow_other_data`` lets it go on over other data, of the same length: what it counts are then other samples.

        Raises: StateMismatchError if the state belongs to another dataset length, batch size or sampler (both are
        shown), or to other data (with the first part and index that differ); StateError if it is damaged. The loader is
        then unchanged.
        """
        self._settle()
        keep_start(self)
        state_dict, of_driver = self._split_state(state_dict, allow_pickle)
        position = self._read_state(state_dict, allow_pickle, allow_other_data)
        self._epochs.beginning.check_outside()
        self._take_up(position)
        self._load_driver(of_driver if position is not None else None)

    def _take_up(self, position: Position | None, *, again: bool = False) -> None:
        """Let the next ``iter()`` go on from ``position``, which fits; None: begin as if nothing had been loaded.
        ``again``: it was only looked at.
        """
        if (live := self._live) is not None:
            live._invalidate()
        if self._is_iterable:
            self._end_workers()  # their datasets have gone on
            self._shared = None
        if position is None:
            self._epochs.load(Fresh(0))
            forget(self)
            if self._samplers.dataset is not None:
                put(self._samplers.dataset, [], compares=False)
            return
        begins = position.order is None and position.batches is None
        load = self._epochs.go_back if again else self._epochs.load
        load(Fresh(position.epoch) if begins else Loaded(position))
        if position.now is not None:
            put_back(self._samplers, position.now, tells=not again)
        if (start := (position.order or {}).get("start")) is not None:
            self._samplers.tell_epochs(start["epochs"])
        restore(self, position.order, position.between_epochs)
        if (division := saved_shards(position.batches if self._is_iterable else None)) is not None:
            keep_division(self, *division)
        if self._is_iterable:
            put_dataset(self, position)

    def _read_state(self, state: Any, allow_pickle: bool, allow_other_data: bool = False) -> Position | None:
        """None for ``{}``. Raises: as :meth:`load_state_dict`."""
        if state == {}:
            return None
        if isinstance(state, Mapping) and state.keys().isdisjoint(FORM.keys) and is_installed("torchdata"):
            position: Position = from_ring("torchpipe.torchdata.stateful:position_of")(state, self)
        else:
            position = read(
                state,
                identity_of(self),
                allow_pickle=allow_pickle,
                allow_other_data=allow_other_data,
                of_this_rank=not self.distributed and ranks_of_sampler(self._samplers.parts)[0] == 1,
            )
        check_position(position, self._is_iterable, self.num_workers, self._samplers.parts)
        if position.order is None:
            check_between_epochs(self, position.between_epochs)
        elif self._ranked is not None:
            check_ranked(self._ranked, position.order)
        else:
            check_order(self._samplers, position.order, position.delivered)
            check_seeding(self, position.batches)
        if position.now is not None:
            self._samplers.check_now(position.now)
        return position

    @untraced
    def shutdown(self) -> None:
        """End every process and thread; not inside ``next``. The position stays; ``iter()`` starts anew. Idempotent."""
        if self._pid != os.getpid():
            return
        self._epochs.beginning.check_outside()
        if (live := self._live) is not None:
            live.supersede()
        if self.driver is not None:
            self.driver.interrupt()
        self._end_workers()
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def _end_workers(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __getstate__(self) -> dict[str, Any]:
        """The description, and a loaded position: it can be pickled and copied, as torch's loader. A copy has samplers
        and generators of its own.

        Raises: TypeError for one that has been iterated.
        """
        self._settle()
        if self.driver is not None and (open_ones := self.driver.would_lose(self)):
            raise TypeError(
                f"{open_ones}, and a copy of the loader would not have them: save and load its state instead"
            )
        if self._epochs.begun:
            where = "has been iterated" if self._live is None else "is at work"
            raise TypeError(
                f"a DataLoader that {where} cannot be pickled or copied: its position is also that of its samplers, "
                "generators and workers. Copy it before iter(), or after "
                "loader.load_state_dict(loader.state_dict()): both then go on from there"
            )
        kept = vars(self).copy()
        kept.update(dict.fromkeys(("_pool", "_shared", "_ranks", "_observed", "driver", "_windows")))
        return kept

    def __copy__(self) -> Self:
        """Shares the dataset, and no more: a generator that two loaders share gives neither of them its order."""
        return copy.deepcopy(self, {id(self.dataset): self.dataset})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _pid=os.getpid())
        if self._ranked is not None:
            self._ranked.attach(self)
