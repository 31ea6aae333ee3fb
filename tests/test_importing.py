"""Importing imports what is needed, finds all that is public, and leaves the garbage collector as it was."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Warm
from torchpipe.on_demand import built_in, on_demand
from torchpipe.public_names import FORMS, NAMES
from torchpipe.rings import is_here


@pytest.fixture(scope="module")
def torch_alone() -> Iterator[Warm]:
    """Runs scripts in processes that have imported nothing but torch."""
    with Warm(modules=["torch"], project=False) as process:
        yield process


def run(torch_alone: Warm, tmp_path: Path, text: str) -> list[str]:
    """What a script says."""
    script = tmp_path / "script.py"
    script.write_text(text)
    done = torch_alone.run([str(script)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


SCRIPT = """
import gc
gc.unfreeze()  # what there was before this process
{before}
frozen = gc.get_freeze_count() > 0
import reading_services, torchpipe.iter
print(gc.isenabled(), (gc.get_freeze_count() > 0) == frozen)

class Cycle:
    pass

one = Cycle()
one.itself = one
import weakref
gone = weakref.ref(one)
del one
gc.collect()
print(gone() is None)
"""


@pytest.mark.parametrize(
    ("before", "enabled"),
    [("pass", True), ("gc.disable()", False), ("gc.freeze()", True)],
    ids=["as it is", "disabled", "frozen"],
)
def test_importing_leaves_the_garbage_collector_as_it_was(
    before: str, enabled: bool, torch_alone: Warm, tmp_path: Path
) -> None:
    assert run(torch_alone, tmp_path, SCRIPT.format(before=before)) == [str(enabled), "True", "True"]


@pytest.mark.parametrize("package", [package for package in NAMES if is_here(package)])
def test_all_that_a_package_names_is_there(package: str) -> None:
    loaded = importlib.import_module(package)
    ask, names = on_demand(package)
    assert {*NAMES[package]} <= {*dir(loaded)} & {*names()}
    assert {*loaded.__all__} <= {*dir(loaded)}
    for name, module in NAMES[package].items():
        if not is_here(module):
            continue
        assert ask(name) is getattr(loaded, name) is getattr(importlib.import_module(module), name)
    for name in ("Nope", "_private", "__wrapped__"):
        assert not hasattr(loaded, name)
        with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'"):
            ask(name)
    with pytest.raises(ImportError, match="cannot import name 'Nope'"):
        exec(f"from {package} import Nope", {})
    if all(map(is_here, NAMES[package].values())):
        taken: dict[str, Any] = {}
        exec(f"from {package} import *", taken)
        assert {*loaded.__all__} <= {*taken}


def test_a_script_imports_the_nodes_that_it_uses(torch_alone: Warm, tmp_path: Path) -> None:
    said = run(
        torch_alone,
        tmp_path,
        """
import sys
print(any(name.startswith(("torchpipe", "reading_services")) for name in sys.modules))
import torchpipe
print(hasattr(torchpipe.iter, "Nope"), "torchpipe.iter.items" in sys.modules)
graph = torchpipe.iter.IterableWrapper(range(4)).map(str)
print(*graph, "torchpipe.iter.items" in sys.modules, "torchpipe.iter.limiting" in sys.modules)
print(torchpipe.device.tree.__name__, torchpipe.iter.items.__name__)
""",
    )
    assert said == [*["False"] * 3, *"0123", "True", "False", "torchpipe.device.tree", "torchpipe.iter.items"]


TAKEN = """
import torchpipe

class Other(torchpipe.IterDataPipe):
    def __init__(self, datapipe):
        self.datapipe = datapipe

    def __iter__(self):
        return iter(["mine"])

try:
    torchpipe.functional_datapipe("map")(Other)
except ValueError as error:
    print(str(error).replace(" ", "_"))
Other.__qualname__ = "Mapper"  # of another module: still another class
try:
    torchpipe.functional_datapipe("map")(Other)
except ValueError:
    print("again")
import torchpipe.iter.items
print(*torchpipe.iter.IterableWrapper([1]).map(str))
"""


def test_a_form_is_taken_before_its_node_is_imported(torch_alone: Warm, tmp_path: Path) -> None:
    told, *rest = run(torch_alone, tmp_path, TAKEN)
    assert told.startswith("dp.map_is_one_of_torchpipe's_own_forms")
    assert rest == ["again", "1"]


INTERRUPTED = """
import pickle, sys
import torchpipe

graph = torchpipe.iter.IterableWrapper([1])
graph.map(str)
del sys.modules["torchpipe.iter.items"]  # as Python does when an import does not come to its end
print(*pickle.loads(pickle.dumps(graph.map(str))))
"""


def test_an_import_that_was_interrupted_leaves_no_class_behind(torch_alone: Warm, tmp_path: Path) -> None:
    assert run(torch_alone, tmp_path, INTERRUPTED) == ["1"]


def test_threads_may_ask_for_the_same_name_at_once(torch_alone: Warm, tmp_path: Path) -> None:
    script = """
import threading, torchpipe
start, found = threading.Barrier(8), []
def ask():
    start.wait()
    found.append(list(torchpipe.iter.IterableWrapper(range(3)).map(str).batch(2).shuffle().enumerate()))
threads = [threading.Thread(target=ask) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), torchpipe.iter.Mapper is torchpipe.iter.items.Mapper)
"""
    assert run(torch_alone, tmp_path, script) == ["8", "True"]


WORKER = """
import sys
from torchpipe.node.datapipe import IterDataPipe

class Loaded(IterDataPipe):
    def __init__(self, datapipe):
        self.datapipe = datapipe

    def __iter__(self):
        for _ in self.datapipe:
            yield " ".join(name for name in sys.modules if name.startswith(("torchpipe", "reading_services")))

if __name__ == "__main__":
    from reading_services import MultiProcessingReadingService
    from torchpipe import DataLoader2
    from torchpipe.iter import IterableWrapper

    graph = Loaded(IterableWrapper(range(1)).sharding_filter())
    service = MultiProcessingReadingService(1, multiprocessing_context="spawn")
    with DataLoader2(graph, reading_service=service) as loader:
        print(*loader)
"""


def test_a_spawned_worker_imports_what_its_part_of_the_graph_needs(torch_alone: Warm, tmp_path: Path) -> None:
    found = run(torch_alone, tmp_path, WORKER)
    assert {"torchpipe.iter.sources", "reading_services.processes.worker"} <= {*found}
    for missing in (
        "iter.items",
        "map.items",
        "stats.model",
        "observe",
        "device",
        "loader",
        "formats",
        "graph",
    ):
        assert f"torchpipe.{missing}" not in found
    assert not [
        name for name in found if name in ("reading_services.engine.supervisor", "reading_services.processes.pool")
    ]


def test_a_form_says_its_class() -> None:
    for kind, forms in FORMS.items():
        for form, place in forms.items():
            if is_here(place.partition(":")[0]):
                assert built_in(kind, form).__name__ == place.partition(":")[2]  # type: ignore[union-attr]
    assert built_in("iter", "nope") is None


def test_nobody_is_told_to_install_the_other_project_of_this_name() -> None:
    """On public indices, ``torchpipe`` is somebody else's."""
    root = Path(__file__).parents[1]
    folders = ("torchpipe", "reading_services", "docs", "examples")
    files = [root / "README.md", *(path for name in folders for path in (root / name).rglob("*.[mp][dy]"))]
    assert len(files) > 300
    for path in files:
        assert not re.search(r"install [^\n]*\btorchpipe(\[|==|\b[\"'`])", path.read_text()), path


WITHOUT_A_RING = """
import sys
sys.modules["torchpipe.torchdata"] = None  # as if it were not there
import torchpipe.iter
for ask in (
    lambda: torchpipe.iter.IterableWrapper([1]).header(1),
    lambda: torchpipe.iter.Header,
):
    try:
        ask()
    except ModuleNotFoundError as error:
        print(str(error).replace(" ", "_"))
try:
    torchpipe.DataLoader(range(3)).load_state_dict({"_num_yielded": 1})
except torchpipe.errors.StateError:
    print("refused")
print(hasattr(torchpipe.iter.IterableWrapper([1]), "nope"), *torchpipe.iter.IterableWrapper([1]).take(1))
"""


def test_what_is_in_a_ring_that_is_not_installed_is_an_error_that_names_it(torch_alone: Warm, tmp_path: Path) -> None:
    *told, refused, nope, item = run(torch_alone, tmp_path, WITHOUT_A_RING)
    assert len(told) == 2
    for text in told:
        assert text.startswith("this_is_in_the_ring_'torchdata'_(torchpipe.torchdata),_which_is_missing")
    assert (refused, nope, item) == ("refused", "False", "1")


AT_THE_TOP = """
import sys
import torch  # which imports asyncio, and more, for itself
before = {*sys.modules}
from torchpipe import DataLoader, DataLoader2
import reading_services.processes.worker
print(*sorted({*sys.modules} - before))
"""


def test_a_program_that_imports_loaders_has_its_workers_import_no_pictures_and_no_devices(
    torch_alone: Warm, tmp_path: Path
) -> None:
    """A worker that is not forked imports what the user's program does."""
    found = run(torch_alone, tmp_path, AT_THE_TOP)
    assert {"torchpipe.data.loader", "torchpipe.loader.dataloader2"} <= {*found}
    for missing in ("device.cuda", "device.xla", "export", "testing", "xla"):
        assert f"torchpipe.{missing}" not in found
    assert not any(name.startswith("torchpipe.observe") for name in found)
    assert {"asyncio", "concurrent.futures", "http", "ssl", "tarfile", "urllib.request"}.isdisjoint(found)
