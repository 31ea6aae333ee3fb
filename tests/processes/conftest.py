"""Fixtures of the tests that drive a worker's loop without a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from reading_services.processes import worker
from reading_services.processes.wire import Stop
from tests.processes.worker_rig import ItemsAChunk, MakeRig, Rig


@pytest.fixture
def rig() -> Iterator[MakeRig]:
    rigs: list[Rig] = []

    def make(*arguments: Any, **options: Any) -> Rig:
        rigs.append(Rig(*arguments, **options))
        return rigs[-1]

    yield make
    for made in rigs:
        made.run(Stop())
        assert made.stopped
        made.close()
    rigs.clear()  # with them go the mappings of slots


@pytest.fixture
def items_a_chunk(monkeypatch: pytest.MonkeyPatch) -> ItemsAChunk:
    """Let chunks have so many items, as long as these are small; the first has one. The clock does not end any."""

    def set_items(items: int) -> None:
        size = replace(worker._CHUNK_SIZE, items=items)
        for name, value in (("_CHUNK_SIZE", size), ("_CHUNK_S", 3600.0), ("_HUNGRY_S", 3600.0)):
            monkeypatch.setattr(f"reading_services.processes.worker.{name}", value)

    return set_items
