"""L2: Ctrl-C in the standard library's waits, as they let go of a lock, is a KeyboardInterrupt and loses nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.laws.interrupts import Interrupt, Interrupter, before_first
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper

LENGTH = 12


class InWaits(Interrupter):
    """Strikes in ``Condition.wait``, which ``Event``, ``Future`` and ``Thread.start`` wait in."""

    def __init__(self, number: int) -> None:
        super().__init__(number, ("threading",))

    def _enter_function(self, frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is threading.Condition.wait.__code__:
            return super()._enter_function(frame, event, arg)
        return None


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
    "parallel map": lambda: DataLoader2(IterableWrapper(range(LENGTH)).threadpool_map(slow, max_workers=2)),
    "worker threads": lambda: DataLoader(range(LENGTH), num_workers=2, worker_method="thread", collate_fn=first_of),
    "DataLoader's device stage": lambda: DataLoader(range(LENGTH), num_workers=2, device="cpu", collate_fn=first_of),
}


@pytest.mark.parametrize("name", LOADERS)
def test_L2_ctrl_c_at_any_instruction_of_a_wait(name: str) -> None:
    struck = set()
    step = 3
    for number in range(before_first(step) + step, 60, step):
        got = []
        with LOADERS[name]() as loader:
            interrupter = InWaits(number)
            try:
                with interrupter:
                    for item in loader:
                        got.append(int(item))
            except Interrupt as error:
                struck.add(interrupter.hit)
                assert error.__suppress_context__ or error.__context__ is None
            if interrupter.hit is not None and len(got) < LENGTH:  # else the next epoch follows
                loader.load_state_dict(loader.state_dict())
                assert got + [int(item) for item in loader] == list(range(LENGTH)), interrupter.hit
    assert len(struck) > 4, struck
