"""How processes are started: what a user has set for the program's forkserver stays set."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from reading_services.processes.start_method import start_method

_SCRIPT = """
import multiprocessing
import sys

from reading_services import PRELOADED, MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper


class Imported:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return "colorsys" in sys.modules


def imported(item):
    return "colorsys" in sys.modules


if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, "colorsys"])
    graph = IterableWrapper(range(4)).sharding_filter().map(imported)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2, context)) as loader:
        print(set(loader))
    print(set(DataLoader(Imported(), batch_size=None, num_workers=2, multiprocessing_context=context)))
"""


@pytest.mark.nightly
def test_the_forkserver_of_a_context_imports_what_the_user_has_set(tmp_path: Path) -> None:
    script = tmp_path / "own_list.py"
    script.write_text(_SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["{True}", "{True}"], 0), done.stderr


@pytest.mark.parametrize("name", ["fork", "spawn", "forkserver"])
def test_a_context_is_taken_as_it_is(name: str) -> None:
    context = multiprocessing.get_context(name)
    assert start_method(context, on_device=True) is context
    assert start_method(name, on_device=True).get_start_method() == name


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="multiprocessing_context must be one of .*fork.* got 'thread'"):
        start_method("thread", on_device=False)
