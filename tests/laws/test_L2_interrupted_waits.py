"""L2: Ctrl-C inside the standard library's locks, waits and starts of threads loses nothing; L6: nor does it leave a
thread behind, or a lock taken that one waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.laws.interrupts import Interrupt, Interrupter, before_first
from tests.leaks import Footprint, wait_nothing_left
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper

LENGTH = 12


class InThreading(Interrupter):
    """Strikes in the standard library's modules where ours call them.

    Not where others do: filelock's hook of forks takes a Condition, which would stay taken in this process of tests.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, ("threading", "concurrent.futures", "queue"))

    def _enter_function(self, frame: FrameType, event: str, arg: Any) -> Any:
        caller: FrameType | None = frame
        while caller is not None and caller.f_globals.get("__name__", "").startswith(self._modules):
            caller = caller.f_back
        ours = caller is not None and caller.f_globals["__name__"].startswith(("torchpipe", "reading_services"))
        return super()._enter_function(frame, event, arg) if ours else None


def caused_by_interrupt(error: BaseException) -> bool:
    context = error.__context__
    return context is not None and (isinstance(context, Interrupt) or caused_by_interrupt(context))


def slow(item: int) -> int:
    time.sleep(0.005)
    return item


def first_of(batch: list[int]) -> int:
    return slow(batch[0])


def numbers() -> Any:
    return IterableWrapper(range(LENGTH)).sharding_filter().map(slow)


LOADERS: dict[str, Callable[[], Any]] = {
    "prefetch in process": lambda: DataLoader2(numbers(), reading_service=InProcessReadingService(prefetch_cnt=2)),
    "device stage": lambda: DataLoader2(
        numbers().to_device("cpu"), reading_service=MultiProcessingReadingService(2, "fork")
    ),
    "parallel map": lambda: DataLoader2(IterableWrapper(range(LENGTH)).parallel_map(slow, num_threads=2)),
    "worker threads": lambda: DataLoader(range(LENGTH), num_workers=2, worker_method="thread", collate_fn=first_of),
    "DataLoader's device stage": lambda: DataLoader(range(LENGTH), num_workers=2, device="cpu", collate_fn=first_of),
}


@pytest.mark.parametrize("name", LOADERS)
def test_L2_L6_ctrl_c_at_any_instruction_of_threading(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    before = Footprint.take()
    struck = set()
    step = 3
    for number in range(before_first(step) + step, 10_000, step):
        got = []
        with LOADERS[name]() as loader:
            interrupter = InThreading(number)
            try:
                with interrupter:
                    for item in loader:
                        got.append(int(item))
            except (Interrupt, RuntimeError) as error:  # of a lock that a wait was about to take back
                assert isinstance(error, Interrupt) or caused_by_interrupt(error), interrupter.hit
                struck.add(interrupter.hit)
            if interrupter.hit is None:
                break
            if loader.epoch == 0:  # else the end was seen, and the next one follows
                loader.load_state_dict(loader.state_dict())
                assert got + [int(item) for item in loader] == list(range(LENGTH)), interrupter.hit
        assert not caplog.records, (interrupter.hit, caplog.text)  # no thread had to be given up, no worker was missed
    assert len(struck) > 4, struck
    del loader
    for thread in threading.enumerate():
        if not thread.is_alive():  # struck before it was started: Python goes on listing it
            threading._limbo.pop(thread, None)  # type: ignore[attr-defined]
    assert not wait_nothing_left(before)


def releases_in_vain(item: int) -> int:
    try:
        raise ValueError("why")
    except ValueError:
        threading.Lock().release()
    return item


@pytest.mark.parametrize("name", ["in process", "threads", "DataLoader"])
def test_L7_a_lock_that_a_users_function_does_not_hold_is_its_own_error(name: str) -> None:
    loaders: dict[str, Callable[[], Any]] = {
        "in process": lambda: DataLoader2(IterableWrapper(range(3)).map(releases_in_vain)),
        "threads": lambda: DataLoader2(IterableWrapper(range(3)).parallel_map(releases_in_vain, num_threads=2)),
        "DataLoader": lambda: DataLoader(range(3), collate_fn=lambda batch: releases_in_vain(batch[0]), device="cpu"),
    }
    with loaders[name]() as loader, pytest.raises(RuntimeError, match="release unlocked lock"):
        list(loader)
