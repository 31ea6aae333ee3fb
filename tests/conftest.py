"""For every test: a time limit, nothing may be left behind, Ctrl-C works, and hypothesis is repeatable in CI."""

from __future__ import annotations

import faulthandler
import importlib.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis.internal.conjecture import junkdrawer

from tests import leaks
from tests.costs import by_day
from tests.rings import cannot_run_here
from tests.settling import settle
from tests.warm import XLA_MODULES, Warm

hypothesis.settings.register_profile("dev", deadline=None, max_examples=10, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=10, derandomize=True, database=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

# Crashes that tests inject into forked workers would each print their stacks, since pytest enables faulthandler.
os.register_at_fork(after_in_child=faulthandler.disable)

# A shell that starts a job in the background from a script lets it ignore SIGINT, and so everything that it starts.
# Tests send themselves and their children Ctrl-C as if from a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# hypothesis times all collections, once it has begun to, in a callback: a Ctrl-C that strikes in there is swallowed.
# Examples have no deadline here, so nobody needs the times.
junkdrawer._gc_initialized = True

collect_ignore = cannot_run_here()

# By default Ray gives its workers the least of a processor: beside busy tests they would not start in time.
os.environ.setdefault("RAY_worker_niceness", "0")

_FAILED = pytest.StashKey[bool]()


# Slow tests of processes, scripts, bytes and text: what they rest on of torch, others test as well.
_ANY_TORCH = (
    "actors", "benchmarks", "data/test_scripts.py", "docs", "examples", "faults", "formats", "graph",
    "iter/branching", "iter/caching", "iter/clouds", "iter/combining", "iter/files", "iter/limiting",
    "iter/mixing", "iter/ordering", "iter/packing", "iter/running", "iter/shards", "iter/tables",
    "iter/text", "observe",
    "pairs/test_form_pairs.py", "pairs/test_forms.py", "pairs/test_hands.py", "pairs/test_loader.py",
    "state/test_fuzz.py", "stats", "test_importing.py", "test_layers.py", "test_two_threads.py", "testing", "typing",
    "audit", "torchdata", "writing", "wrong_arguments",
)  # fmt: skip

# `make test-quick`, in under two minutes, of what runs by day: forms, states, planning and other pure parts, and a
# smoke of each law.
_QUICK = (
    "formats", "graph", "iter", "laws/test_smoke.py", "map", "pairs/test_forms.py", "state",
    "torchdata/test_adapters.py",
    "test_bad_input.py", "test_epochs.py", "test_failure.py", "test_global_random.py", "test_layers.py",
    "test_loader_state.py", "test_manual_seed.py", "test_node_protocol.py", "test_registering.py", "test_replay.py",
    "test_seeds.py", "wrong_arguments", "testing/test_nodes.py",
)  # fmt: skip
# `make test-nightly`: whole matrices, interrupts at every instruction, thousands of mutated states. Marks and
# costs.txt name more.
_NIGHTLY = (
    "benchmarks", "data/test_L2_interrupts.py", "xla/test_side_by_side.py", "examples", "faults/test_matrix.py",
    "faults/test_random_graphs.py", "laws/test_L2_interrupts.py", "laws/test_L2_interrupted_waits.py",
    "laws/test_L2_signal_handlers.py", "laws/test_L4_soak.py", "processes/test_main_guard.py", "state/test_fuzz.py",
    "observe/test_planted.py", "services/test_distributed.py", "typing/test_types.py",
)  # fmt: skip


def _path(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")


def _is_sample(item: pytest.Item) -> bool:
    return item.get_closest_marker("sample") is not None


def _is_by_night(item: pytest.Item) -> bool:
    by_path = _path(item).startswith(_NIGHTLY) and not _is_sample(item)
    return by_path or item.get_closest_marker("nightly") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    others = [item for item in items if not _is_by_night(item)]
    on_cuda = {item for item in others if item.get_closest_marker("cuda") is not None}  # skipped, mostly
    daily = on_cuda | by_day([item for item in others if item not in on_cuda]) | set(filter(_is_sample, others))
    for item in set(items).difference(daily):
        item.add_marker("nightly")
    for item in daily:
        if _path(item).startswith(_QUICK) and item.get_closest_marker("xla") is None:
            item.add_marker("quick")
    for item in items:
        if _path(item).startswith(_ANY_TORCH):
            item.add_marker("any_torch")
    if importlib.util.find_spec("torch_xla") is None:
        for item in items:
            if item.get_closest_marker("xla") is not None:
                item.add_marker(pytest.mark.skip(reason="torch_xla is not installed (it needs torch 2.9)"))
    needing = [item for item in items if item.get_closest_marker("cuda") is not None]
    if needing and not _has_cuda():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no CUDA here: tools/gpu_check.sh runs these where there is a GPU"))


def _has_cuda() -> bool:
    import torch  # where a test is marked so, it has been imported

    return torch.cuda.is_available()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What collecting has made stays: no collection looks at it, in this process or in those that it forks.

    The server of forkserver lives as long as this process: if it was first started by a test that knows no reading
    service, every later worker would import torch anew.
    """
    if "torchpipe" in sys.modules:  # not where no test needs it: importing torch takes seconds
        from reading_services.processes.start_method import PRELOADED

        multiprocessing.set_forkserver_preload(list(PRELOADED))
    settle()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.when == "call" and report.failed:
        item.stash[_FAILED] = True
    return report  # type: ignore[return-value]


@pytest.fixture(scope="session")
def _xla_started() -> None:
    """Start the XLA runtime once: it keeps threads and descriptors for the life of the process."""
    import torch_xla

    torch_xla.device()


@pytest.fixture(scope="session")
def _cuda_started() -> None:
    """The same of CUDA, with its staging memory and a stream."""
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        torch.ones(1).pin_memory().to("cuda", non_blocking=True)
    torch.cuda.synchronize()


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Runs scripts in processes that need not import torch."""
    with Warm() as process:
        yield process


@pytest.fixture(scope="session")
def warm_xla() -> Iterator[Warm]:
    """The same for scripts that need torch_xla."""
    with Warm(modules=XLA_MODULES) as process:
        yield process


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, within 5 s: no process, thread, segment or descriptor more than before (law L6).

    A test that failed is not measured, since its traceback keeps its objects alive; its processes are killed.
    """
    if request.node.get_closest_marker("xla") is not None:
        request.getfixturevalue("_xla_started")
    if request.node.get_closest_marker("cuda") is not None:
        request.getfixturevalue("_cuda_started")
    before = leaks.Footprint.take()
    yield
    failed = request.node.stash.get(_FAILED, False)
    left = [] if failed else leaks.wait_nothing_left(before)
    leaks.kill_left(before)
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)
