"""The making of batches: in this process, here; processes and threads follow the same interface.

Runs in the user's process.

The way of a ``DataLoader``'s batches to a device, ahead of the loop, or to pinned memory. In the user's process.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torchpipe.ahead.background import RunAhead
from torchpipe.ahead.stage import Stage
from torchpipe.data.fetch import Failure, Fetch, TimedFetch, collating_in
from torchpipe.data.figures import Steps
from torchpipe.data.order.sampling import Order
from torchpipe.device.pinned import pinned
from torchpipe.device.prepare import stage_for
from torchpipe.execution.clock import Clock
from torchpipe.execution.figures import Made, ServiceFigures
from torchpipe.loader.handing import Handing
from torchpipe.node.iterator import is_stateful
from torchpipe.node.user_warnings import warn_user
from torchpipe.randomness.global_random import BatchRandom
from torchpipe.state import Cursor, SnapshotPolicy, decode
from torchpipe.stats import MergeStats, StageStats
from torchpipe.stats.sheet import NodeSheet

__all__ = ["Batches", "DeviceStage", "LocalBatches", "LocalFailure", "has_stage", "stage_of"]

_PINNED_AHEAD = 2  # batches, as of a device stage


class Batches(Handing):
    """The batches of an epoch. In the place of one that failed is a :class:`Failure`, which counts as soon as the next
    one is wanted: a state that is saved in between goes on with it.
    """

    def ready(self) -> list[Any]:
        """``hand``, with the next batch in it, or a :class:`Failure` in its place that has not been raised yet."""
        if self.has_raised:
            del self.hand[-1]
        return self.hand or self.fill()

    @property
    def has_raised(self) -> bool:
        """True if what is in the hand is no batch, but an error that the loop has had."""
        hand = self.hand
        return bool(hand) and isinstance(hand[-1], Failure) and hand[-1].error is None

    def _pass_hand(self, count: int) -> int:
        """Pass over the batch in hand, if ``count`` is not 0: how many that were. One that has raised is past."""
        passed = int(bool(count and self.hand and not self.has_raised))
        if count:
            self.hand.clear()
        return passed

    def position(self) -> dict[str, Any]:
        """The plain data that are needed besides ``number`` and the order's state to go on from here."""
        return {}

    def exact(self, position: dict[str, Any]) -> dict[str, Any]:
        """``position``, such that a resume makes nothing again. Raises: StateError where it has to."""
        return position

    def between(self, position: dict[str, Any]) -> list[Cursor] | None:
        """Each dataset's cursor for the next epoch, if this one is left at ``position``; None: at its start."""
        return None

    @property
    def processes(self) -> list[Any]:
        """The worker processes, if there are any."""
        return []

    def merges(self) -> tuple[MergeStats, ...]:
        """The seconds that they were waited for, in all and by worker. Any thread."""
        wait_s = self.clock.waited_s()
        return (MergeStats(wait_s=wait_s, shard_wait_s=(wait_s,)),)

    def figures(self) -> ServiceFigures:
        """The figures of the workers that make them. Any thread."""
        return ServiceFigures()

    def deal_more(self) -> None:
        """Called in the loop's thread before it takes a batch from a stage, whose own thread calls :meth:`ready`."""
        return


class LocalFailure(Failure):
    """A failure in this process: the exception itself."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        if isinstance(error, StopIteration):  # from next() it would end the loop in silence
            self.error = RuntimeError(f"the dataset or collate_fn raised StopIteration, which is no end: {error}")
            self.error.__cause__ = error
            for note in getattr(error, "__notes__", ()):
                self.error.add_note(note)


class LocalBatches(Batches):
    """Each batch is made when it is asked for. ``epoch`` None: the process's global random states are used.

    ``measures``: it is noted what the steps take.
    """

    def __init__(
        self,
        order: Order,
        fetch: Fetch,
        epoch: int | None,
        position: dict[str, Any] | None = None,
        *,
        steps: Steps,
        measures: bool = False,
    ) -> None:
        self.hand: list[Any] = []
        self._before = self._behind = order.number  # the batch in hand
        self._dataset_before: Any = None  # where the dataset stood before it, if it has a state of its own
        self._making = False  # stays True when an interrupt has come in between
        self.clock = Clock()
        self._steps, self._sheet = steps, NodeSheet.local(2) if measures else None
        self._order = order
        self._fetch = fetch if self._sheet is None else TimedFetch(fetch, self._sheet)
        self._collate = collating_in(fetch.collate_fn, None)
        self._epoch = epoch
        self._random = BatchRandom(None if epoch is None else fetch.own_generators(warn_user))
        self._done = set((position or {}).get("done", ()))  # of another loader's, out of order

    @property
    def number(self) -> int:
        return self._before if self.hand else self._behind

    def position(self) -> dict[str, Any]:
        number = self.number
        done = sorted(batch for batch in self._done if batch >= number)
        position: dict[str, Any] = {"done": done} if done else {}
        if is_stateful(self._fetch.dataset):
            before = self._dataset_before if self.hand or self._making else None
            position["dataset"] = copy.deepcopy(self._fetch.dataset.state_dict()) if before is None else before
        return position

    def figures(self) -> ServiceFigures:
        made = [] if self._sheet is None else [Made(self._sheet.read(), 0, busy=True)]
        return ServiceFigures(nodes=self._steps.rows(made))

    def fill(self) -> list[Any]:
        order, clock, steps = self._order, self.clock, self._steps
        self._before = self._behind
        clock.begin_wait()
        if is_stateful(self._fetch.dataset):
            self._dataset_before = None
            with suppress(Exception):  # it may have nothing to tell yet, or nobody wants a state at all
                self._dataset_before = copy.deepcopy(self._fetch.dataset.state_dict())
            self._making = True
        number, indices = self._asked()
        steps.asked += 1
        steps.sampler_s += time.perf_counter() - clock.waits_since
        try:
            if self._epoch is None:
                batch = self._fetch(indices, self._collate)
            else:
                make = partial(self._fetch, indices, self._collate)
                key, by_sample = order.key(number), self._fetch.by_sample
                batch = self._random.within(order.base_seed, self._epoch, key, make, by_sample=by_sample)
        except Exception as error:
            self._fetch.explain(error, number, indices)
            batch = LocalFailure(error)
        self.hand.append(batch)
        self._behind, self._making = self._after(number), False
        clock.end_wait(1)
        return self.hand

    def _asked(self) -> tuple[int, Any]:
        """(number, indices) of the next batch. Raises: StopIteration."""
        indices = next(self._order)
        while (number := self._order.number - 1) in self._done:
            indices = next(self._order)
        return number, indices

    def _after(self, number: int) -> int:
        """The first batch behind ``number`` that is not past."""
        number += 1
        while number in self._done:
            number += 1
        return number

    def pass_over(self, count: int) -> int:
        """Batches that need not be made are not; one that raises is past all the same."""
        if self._epoch is None or is_stateful(self._fetch.dataset):  # making it leads on
            return super().pass_over(count)
        passed = self._pass_hand(count)
        try:
            while passed < count:
                self._asked()
                passed += 1
        except StopIteration:
            pass
        finally:  # whatever the sampler gave is past, also where it raises then
            self._behind = self._after(self._order.number - 1)
        return passed

    def close(self) -> None:
        return


def has_stage(loader: Any) -> bool:
    """True if batches are taken ahead of the loop, to a device or to pinned memory."""
    return loader._device_options is not None or _pinned_for(loader) is not None


def stage_of(loader: Any) -> tuple[Stage, str] | None:
    """The stage that takes them, and its name. Warns of ``pin_memory`` as torch's loader does."""
    if loader._device_options is not None:
        options = loader._device_options
        stage, name = stage_for(loader._device_backend, options, "DataLoader"), f"to {options.device}"
    else:
        device = _pinned_for(loader)
        _warn_of_pinning(loader, device)
        if device is None:
            return None
        stage, name = Stage(depth=_PINNED_AHEAD, mover=_Pinning(device)), "to pinned memory"
    if loader._reads_here:  # batches are made under global random states of their own, which no thread can have
        stage = replace(stage, depth=0)
    return stage, name


def _accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _pinned_for(loader: Any) -> str | None:
    """The type of the device that batches are pinned for. A device stage pins by itself what it moves."""
    device = _accelerator() if loader.pin_memory and loader.device is None else None
    return None if device is None or device.type == "mps" else device.type


def _warn_of_pinning(loader: Any, device: str | None) -> None:
    if loader.pin_memory and loader.pin_memory_device:
        warn_user(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{loader.pin_memory_device}'."
        )
    if loader.pin_memory and device is None:
        missing = "no accelerator is found" if _accelerator() is None else "not supported on MPS now"
        warn_user(f"'pin_memory' argument is set as true but {missing}, then device pinned memory won't be used.")


class _Pinning:
    """Puts batches into pinned memory; in the place of one of which that fails there is a :class:`Failure`."""

    def __init__(self, device: str) -> None:
        self._device = device

    def prepare(self) -> None:
        return

    def transfer(self, batch: Any, /) -> Any:
        try:
            return pinned(batch, self._device)
        except Exception as error:
            return LocalFailure(error)

    def receive(self, moved: Any, /) -> Any:
        return moved

    def close(self) -> None:
        return


class DeviceStage(Batches):
    """The batches are taken ahead of the loop, in threads, and moved; without workers, when asked for."""

    def __init__(self, stage: Stage, name: str, batches: Batches) -> None:
        source = _Source(batches)
        self._start: Callable[[], dict[str, Any]] = source.state_dict  # with what the user sets until the first batch
        self._batches = batches
        policy = SnapshotPolicy(every=1)  # small, and the order has its own
        self._stage, self._name = stage, name
        self._ahead = RunAhead(source, stage, policy, "DataLoader")
        self._items = self._ahead.items()
        self.hand, self.clock = [], Clock()
        self._before = self._behind = self._ahead.cursor.snapshot  # where the batches stood: the one in hand

    @property
    def number(self) -> int:
        return int(self._position()["number"])

    def position(self) -> dict[str, Any]:
        return self._position()["batches"]  # type: ignore[no-any-return]

    def _position(self) -> dict[str, Any]:
        snapshot = self._before if self.hand else self._behind
        state: Any = self._start() if snapshot is None else decode(snapshot, allow_pickle=True)  # it was made here
        return state  # type: ignore[no-any-return]

    def fill(self) -> list[Any]:
        if self._behind is None:
            start = self._start()
            self._start = lambda: start
        self._before = self._behind
        self.clock.begin_wait()
        self._batches.deal_more()
        batch = next(self._items)
        self.hand.append(batch)
        self._behind = self._ahead.cursor.snapshot
        self.clock.end_wait(1)
        return self.hand

    def interrupt(self) -> None:
        self._ahead.interrupt()

    def stats(self) -> StageStats:
        threads = self._stage.limits.threads if self._stage.depth else 0
        return StageStats(name=self._name, node=0, device=True, threads=threads, feed=self._ahead.stats())

    def close(self) -> None:
        self._ahead.close()


class _Source:
    """The batches that the device stage takes ahead; a failure is an item, and raised when it is handed out."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def items(self) -> Iterator[Any]:
        while True:
            try:
                batch = self._batches.ready().pop()
            except StopIteration:
                return
            yield batch

    def state_dict(self) -> dict[str, Any]:
        position = self._batches.position()
        return {"number": self._batches.number, "batches": position}

    def interrupt(self) -> None:
        self._batches.interrupt()

    def close(self) -> None:
        return
