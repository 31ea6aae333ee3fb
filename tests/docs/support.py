"""What works where, found by trying: docs/support.md is made of it.

    python -m tests.docs.support [FILE]        writes the page anew (minutes)

A node is tried by the chain of forms that ``tests/pairs`` has for it. What is tried of a service are the laws.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from reading_services import (
    DistributedReadingService,
    MultiProcessingReadingService,
    OrdinalReadingService,
    RayReadingService,
    RayWorkers,
    SequentialReadingService,
)
from tests.exact import exact
from tests.pairs.form_chains import Chain, build, chain_with, finished, fits
from tests.pairs.form_material import write_files
from tests.pairs.form_rules import limit_of, refusal_of
from tests.pairs.form_runs import check
from tests.pairs.forms import FORMS, LEFT_OUT
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.errors import ReplayWarning
from torchpipe.iter import IterableWrapper
from torchpipe.public_names import FORMS as FUNCTIONAL_FORMS
from torchpipe.public_names import NAMES
from torchpipe.state import merge

__all__ = ["LAWS", "PAGE", "Tried", "families", "page", "services", "try_node", "try_service"]

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
COLUMNS = ("exact resume", "without replay", "workers, one killed", "other ranks", "device stage behind")

# --- nodes


@dataclass(frozen=True)
class Tried:
    """For each column: None if it works, else why not."""

    key: str
    outcome: dict[str, str | None]


def family_of(key: str) -> str:
    """The package in which the node is written, in a word."""
    name = FORMS[key].name
    if name.startswith("map-style "):
        return "map-style"
    for kind in ("iter", "map"):
        places = {**NAMES[f"torchpipe.{kind}"], **NAMES["torchpipe.torchdata"], **FUNCTIONAL_FORMS[kind]}
        if name in places:
            package = places[name].partition(":")[0].split(".")
            if package[1] == "torchdata":
                return "with torchdata's names"
            return package[2].replace("_shared", "sources") if package[1] == "iter" else "map-style"
    return "your own nodes"


def families() -> dict[str, list[str]]:
    """The keys of the registry by family: of each form its first way to be used."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for key, form in FORMS.items():
        if form.name not in seen:
            seen.add(form.name)
            found.setdefault(family_of(key), []).append(key)
    return dict(sorted(found.items()))


def _divided(chain: Chain) -> Chain | None:
    """The chain with a sharding point as near to its source as one can stand; None if nowhere."""
    if any("shards" in FORMS[key].traits for key, _ in chain):
        return chain
    longer = ((*chain[:place], ("sharding_filter", 0), *chain[place:]) for place in range(1, len(chain) + 1))
    return next((one for one in longer if fits(one) and refusal_of(one) is None and limit_of(one) is None), None)


def try_node(key: str) -> Tried:
    """In the current folder, which has the files that chains read."""
    chain = finished(chain_with(key))
    divided = _divided(chain) or chain
    probes: dict[str, Callable[[], str | None]] = {
        COLUMNS[0]: lambda: _of_check(check(chain)),
        COLUMNS[1]: lambda: _replayed(chain),
        COLUMNS[2]: lambda: _of_check(check(divided, workers=True)),
        COLUMNS[3]: lambda: _on_other_ranks(divided),
        COLUMNS[4]: lambda: _before_a_device(chain),
    }
    return Tried(key, {column: _said(probe) for column, probe in probes.items()})


def _said(probe: Callable[[], str | None]) -> str | None:
    try:
        return probe()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def _of_check(found: str) -> str | None:
    return None if found == "exact" else found


def _loader(chain: Chain, service: Any) -> DataLoader2[Any]:
    loader = DataLoader2(build(chain), reading_service=service)
    loader.seed(5)
    return loader


def _take(loader: DataLoader2[Any], count: int | None = None) -> list[str]:
    found = []
    for item in loader:
        found.append(exact(item))
        if len(found) == count or len(found) == 500:
            break
    return found


def _replayed(chain: Chain) -> str | None:
    with _loader(chain, InProcessReadingService()) as loader:
        _take(loader, 2)
        state = loader.state_dict()
    with _loader(chain, InProcessReadingService()) as loader, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader.load_state_dict(state, allow_pickle=True)
        _take(loader, 1)
    replays = [warning for warning in told if issubclass(warning.category, ReplayWarning)]
    return "is run again from its start" if replays else None


def _workers_of_rank(rank: int, ranks: int) -> Any:
    """Each rank has its own workers, and these their own random states."""
    ordinal = OrdinalReadingService(5, rank, ranks, total_shards=2)
    return SequentialReadingService(ordinal, MultiProcessingReadingService(1, "fork"))


def _on_other_ranks(chain: Chain) -> str | None:
    """Two ranks, which stand at different positions, then one."""
    if not any("shards" in FORMS[key].traits for key, _ in chain):
        return "no sharding point can stand in its chain"
    with _loader(chain, InProcessReadingService(num_shards=2)) as loader:
        wanted = _take(loader)
    found, states = [], []
    for rank in range(2):
        with DataLoader2(build(chain), reading_service=_workers_of_rank(rank, 2)) as loader:
            stream = iter(loader)
            found += [exact(next(stream))] if rank == 0 else []
            states.append(loader.state_dict())
    with DataLoader2(build(chain), reading_service=_workers_of_rank(0, 1)) as loader:
        loader.load_state_dict(merge(states), allow_pickle=True)
        found += _take(loader)
    return None if sorted(found) == sorted(wanted) else "gives other items"


def _before_a_device(chain: Chain) -> str | None:
    with _loader(chain, InProcessReadingService(num_shards=1)) as loader:
        wanted = _take(loader)
    with _loader(chain, MultiProcessingReadingService(1, "fork", num_shards=1, device="cpu")) as loader:
        return None if _take(loader) == wanted else "gives other items"


# --- services

LAWS = ("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8")


def _jitter(number: int) -> tuple[int, float]:
    if number < 0:
        raise ValueError("an item that fails")
    return number, float(torch.rand(()))  # from the shard's own state


def _graph(numbers: range | list[int]) -> Any:
    return IterableWrapper(numbers).shuffle(buffer_size=10).sharding_filter().map(_jitter)


class _Numbers(torch.utils.data.Dataset[Any]):
    def __init__(self, numbers: range | list[int]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        if (info := torch.utils.data.get_worker_info()) is not None and hasattr(info, "rng"):
            draw = torch.rand((), generator=info.rng.torch_generator)
        else:
            draw = torch.rand(())
        if self.numbers[index] < 0:
            raise ValueError("an item that fails")
        return self.numbers[index], float(draw)


Make = Callable[[Any], Any]


def _data_loader(numbers: Any, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return DataLoader(_Numbers(numbers), batch_size=None, shuffle=True, generator=generator, **options)


def _data_loader2(service: Callable[[], Any], numbers: Any) -> Any:
    loader = DataLoader2(_graph(numbers), reading_service=service())
    if not isinstance(loader.reading_service, OrdinalReadingService):
        loader.seed(5)
    return loader


def services() -> dict[str, tuple[Make, Make]]:
    """By what the page calls it: what makes a loader over numbers, and what makes one in process of the same stream."""
    oracle: Make = partial(_data_loader2, partial(InProcessReadingService, num_shards=2))
    found: dict[str, tuple[Make, Make]] = {"`InProcessReadingService`": (oracle, oracle)}
    for method in ("fork", "forkserver", "spawn"):
        made = partial(MultiProcessingReadingService, 2, method)
        found[f'`MultiProcessingReadingService(2, "{method}")`'] = (partial(_data_loader2, made), oracle)
    ranks = partial(DistributedReadingService, total_shards=2, states="all")
    found["`DistributedReadingService`"] = (partial(_data_loader2, ranks), oracle)
    ordinal = partial(OrdinalReadingService, 5, 0, 1, total_shards=2)
    found["`OrdinalReadingService`, with workers"] = (
        partial(_data_loader2, lambda: SequentialReadingService(ordinal(), MultiProcessingReadingService(2))),
        oracle,
    )
    found["`DistributedReadingService`, with workers"] = (
        partial(_data_loader2, lambda: SequentialReadingService(ranks(), MultiProcessingReadingService(2))),
        oracle,
    )
    in_process: Make = _data_loader
    found["`DataLoader`, `num_workers=0`"] = (in_process, in_process)
    found["`DataLoader`, worker processes"] = (partial(_data_loader, num_workers=2), in_process)
    threads = partial(_data_loader, num_workers=2, worker_method="thread")
    found["`DataLoader`, worker threads"] = (threads, in_process)
    found["`RayReadingService(2)`"] = (
        partial(_data_loader2, partial(RayReadingService, 2, worker_method=RayWorkers(num_cpus=0.5))),
        oracle,
    )
    actors = partial(_data_loader, num_workers=2, worker_method=RayWorkers(num_cpus=0.5))
    found["`DataLoader`, Ray actors"] = (actors, in_process)
    return found


@contextlib.contextmanager
def a_cluster() -> Iterator[None]:
    """Of Ray, on this machine and for this process alone: no other one is joined."""
    import ray  # slow, and only needed here

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _workers(loader: Any) -> list[int]:
    if isinstance(loader, DataLoader):
        return loader.worker_pids()
    service = loader.reading_service
    if isinstance(service, SequentialReadingService):
        service = service._executing
    return service.worker_pids() if isinstance(service, MultiProcessingReadingService | RayReadingService) else []


def try_service(make: Make, oracle: Make) -> dict[str, bool | None]:
    """For each law: whether it holds of one small run; None where there is nothing to try."""
    numbers = range(60)
    with oracle(numbers) as loader:
        wanted = [exact(item) for item in loader]
    return {
        "L1": _stream(make, numbers) == wanted,
        "L2": _resumed(make, make, numbers) == wanted,
        "L3": _resumed(make, oracle, numbers) == wanted and _resumed(oracle, make, numbers) == wanted,
        "L4": _killed(make, numbers, wanted),
        "L5": _bounded(make),
        "L6": _nothing_left(make, numbers),
        "L7": _failing(make),
        "L8": _resumed(make, make, numbers, by=_through_a_file) == wanted,
    }


def _stream(make: Make, numbers: Any) -> list[str]:
    with make(numbers) as loader:
        return [exact(item) for item in loader]


def _through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _resumed(first: Make, second: Make, numbers: Any, by: Callable[[Any], Any] = lambda state: state) -> list[str]:
    with first(numbers) as loader:
        stream = iter(loader)
        found = [exact(next(stream)) for _ in range(25)]
        state = loader.state_dict()
        del stream
    with second(numbers) as loader:
        loader.load_state_dict(by(state))
        return found + [exact(item) for item in loader]


def _killed(make: Make, numbers: Any, wanted: list[str]) -> bool | None:
    with make(numbers) as loader:
        stream = iter(loader)
        found = [exact(next(stream))]
        victims = _workers(loader)
        if victims:
            os.kill(victims[0], signal.SIGKILL)
        found += [exact(item) for item in stream]
        return found == wanted if victims else None


def _bounded(make: Make) -> bool:
    sizes = []
    with make(range(4000)) as loader:
        for number, _ in enumerate(loader, 1):
            if number in (300, 3000):
                sizes.append(len(str(loader.state_dict())))
    return sizes[1] < 2 * sizes[0]


def _nothing_left(make: Make, numbers: Any) -> bool:
    before = {child.pid for child in psutil.Process().children()}
    with make(numbers) as loader:
        stream = iter(loader)
        next(stream)
        workers = _workers(loader)
    del stream
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)], timeout=60)
    left = {child.pid for child in psutil.Process().children()} & set(workers) - before
    return not alive and not left


def _failing(make: Make) -> bool:
    with make([1, 2, -3, 4]) as loader:
        try:
            list(loader)
        except ValueError as error:
            return "an item that fails" in str(error) and bool(error.__notes__)
    return False


# --- the page


def _nodes_text(tried: dict[str, list[Tried]]) -> str:
    """The families with their numbers of nodes, then a table of what does not work."""
    reasons = [
        f"| `{node.key}` | {column} | {node.outcome[column]} |"
        for nodes in tried.values()
        for column in COLUMNS
        for node in nodes
        if node.outcome[column]
    ]
    families = ", ".join(f"{family} ({len(nodes)})" for family, nodes in tried.items())
    return "\n".join([f"{families}.", "", "| what does not | column | why |", "|---|---|---|", *reasons])


def _services_text(tried: dict[str, dict[str, bool | None]]) -> str:
    """One line for all services of which the same laws hold."""
    groups: dict[str, list[str]] = {}
    for name, laws in tried.items():
        broken = [law for law in LAWS if laws[law] is False]
        untried = [law for law in LAWS if laws[law] is None]
        held = f"All but {', '.join(untried)} (no worker to kill)" if untried else "All"
        groups.setdefault(f"{held}, not {', '.join(broken)}" if broken else held, []).append(name)
    return "\n".join(f"- {held}: {'; '.join(names)}." for held, names in groups.items())


HEAD = """# What works where

`python -m tests.docs.support` finds it by trying, and writes this page; [a test](../tests/docs/test_support.py)
compares it.

## Reading services and laws

Each [law](guarantees.md) was tried in one small run of each service (L4: a worker is killed by SIGKILL). It holds:
"""
BETWEEN = """
`DistributedReadingService` was run as one rank here; the tests run several ([ranks](ddp.md)). Ray's actors run shards
by the same code as worker processes.

## Nodes

Each node was tried at the end of a short chain of others: stopped and resumed in process (exact resume), without making
items again from the start (without replay); in two worker processes of which one is killed, then in process, then in
other workers; on two ranks at different positions, then on one (other ranks); with a device stage behind it, of the
`cpu` device, whose engine XLA and CUDA share. All of it works for each node of these families (number of nodes), but
for the table below:
"""


def page() -> str:
    logging.getLogger("torchpipe").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with one_rank(), a_cluster():
        laws = {name: try_service(*made) for name, made in services().items()}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files(Path(folder))
        nodes = {family: [try_node(key) for key in keys] for family, keys in families().items()}
    left = ", ".join(f"`{name}`" for name in LEFT_OUT)
    return (
        f"{HEAD}\n{_services_text(laws)}\n{BETWEEN}\n{_nodes_text(nodes)}\n\n"
        f"Not tried here, but by tests of their own (`tests/pairs/forms.py` says why): {left}.\n"
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page())
    print(f"written: {target}", file=sys.stderr)
