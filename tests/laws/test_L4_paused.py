"""L4, recovery: a run that is paused from outside as a whole (Ctrl-Z, a container, a machine) has lost nobody."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.sources import wait_until
from tests.warm import Warm

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys, time
from reading_services import MultiProcessingReadingService, Restart
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

def slow(item):
    time.sleep(0.01)
    return item

if __name__ == "__main__":
    service = MultiProcessingReadingService(2, sys.argv[1], timeout=3.0, on_worker_death=Restart(max_restarts=0))
    with DataLoader2(IterableWrapper(range(400)).sharding_filter().map(slow), reading_service=service) as loader:
        stream = iter(loader)
        got = [next(stream)]
        print("running", flush=True)
        got += stream
        print(got == list(range(400)), service.restarts)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_L4_a_pause_of_all_processes_is_no_death(context: str, warm: Warm, tmp_path: Path) -> None:
    """The main process goes on first, and finds workers that have not beaten for longer than the time limit."""

    def pause(pid: int, said: Path) -> None:
        wait_until(lambda: said.exists() and said.read_text().endswith("\n"))
        main = psutil.Process(pid)
        everyone = [main, *main.children(recursive=True)]
        for process in everyone:
            process.suspend()
        time.sleep(4.5)
        for process in everyone:
            with suppress(psutil.NoSuchProcess):  # it was killed, which the script tells
                process.resume()
            time.sleep(0.05)

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = warm.run([str(script), context], cwd=tmp_path, env=environment, meanwhile=pause)
    assert done.stdout.split() == ["running", "True", "0"], done.stderr
