"""``loader.trace()``: a trace that opens, with a lane for each process, beside what torch.profiler saw."""

from __future__ import annotations

import json
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.observe.views.held import ITEMS, held_loader, run_with_a_death
from torchpipe import DataLoader


def test_a_trace_has_every_process_and_lines_up_with_torch_profiler(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "trace.json", tmp_path / "torch.json"
    with held_loader(tmp_path) as loader:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            with loader.trace(ours, every_s=0.005) as trace, torch.profiler.record_function("the whole epoch"):
                run_with_a_death(loader, tmp_path)
            trace.close()
        profiler.export_chrome_trace(str(theirs))
        pids = set(loader.reading_service.worker_pids())  # type: ignore[attr-defined]
    data, of_torch = json.loads(ours.read_text()), json.loads(theirs.read_text())
    assert data["baseTimeNanoseconds"] == of_torch["baseTimeNanoseconds"]
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert pids | {os.getpid()} <= {event["pid"] for event in slices}
    names = {event["args"]["name"] for event in data["traceEvents"] if event["name"] == "thread_name"}
    assert {"data: your loop", "worker 0", "worker 1"} <= names
    lanes: dict[tuple[int, int], list[Any]] = {}
    for event in slices:
        assert event["dur"] >= 0
        lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    for lane in lanes.values():
        assert all(one["ts"] + one["dur"] <= other["ts"] + 1 for one, other in pairwise(lane))
    busy_us = sum(event["dur"] for event in slices if event["name"].startswith("making"))
    assert busy_us > ITEMS * 1000 * 0.5  # of the sleeping alone
    (whole,) = [event for event in of_torch["traceEvents"] if event.get("name") == "the whole epoch"]
    (restart,) = [event for event in data["traceEvents"] if event["name"] == "restart"]
    assert whole["ts"] <= restart["ts"] <= whole["ts"] + whole["dur"]
    waits = [event for event in slices if event["name"] == "waits for data"]
    assert any(whole["ts"] <= event["ts"] + event["dur"] / 2 <= whole["ts"] + whole["dur"] for event in waits)


def test_a_trace_of_threads_ends_with_its_block_and_bad_input_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    with DataLoader(range(40), batch_size=2, num_workers=2, worker_method="thread") as loader:  # type: ignore[arg-type]
        with loader.trace(target, every_s=0.001):
            assert len(list(loader)) == 20
        assert "torchpipe-trace" not in [thread.name for thread in threading.enumerate()]
        assert json.loads(target.read_text())["traceEvents"]
        with pytest.raises(FileNotFoundError, match="does not exist, so trace.json"):
            loader.trace(tmp_path / "nowhere" / "trace.json")
