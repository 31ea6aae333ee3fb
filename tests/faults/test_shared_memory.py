"""Processes that run out of shared memory: their large items take the slower way, and the stream stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.inflict import Fault, Vulnerable
from tests.laws.executors import make_loader, make_service
from torchpipe.iter import IterableWrapper

ITEMS, BYTES = 24, 1 << 20


def large(number: int) -> bytes:
    return number.to_bytes(4, "little") * (BYTES // 4)


def build(who: str, fault: Fault) -> Any:
    source = IterableWrapper(range(ITEMS))
    if who == "worker":
        return Vulnerable(source.sharding_filter(), fault).map(large)
    if who == "dispatcher":
        return Vulnerable(source, fault).map(large).sharding_round_robin_dispatch().map(len)
    return Vulnerable(source.sharding_round_robin_dispatch(), fault).map(large)


@pytest.mark.parametrize(("moment", "number"), [("start", -1), ("mid-item", 5), ("last item", ITEMS - 1)])
@pytest.mark.parametrize("who", ["worker", "dispatcher", "dispatched worker"])
def test_the_stream_is_exact(who: str, moment: str, number: int, tmp_path: Path) -> None:
    expected = [BYTES] * ITEMS if who == "dispatcher" else [large(number) for number in range(ITEMS)]
    fault = Fault(str(tmp_path), "out of shared memory", moment, number)
    fault.arm()
    # "start" strikes where a graph is unpickled, which it is by a forked process too
    with make_loader(build(who, fault), make_service(2, 2, worker_prefetch_cnt=3)) as loader:
        got = list(loader)
        assert got == expected
        assert loader.reading_service.restarts == 0  # type: ignore[attr-defined]
    assert len(fault.strikes) == 1
