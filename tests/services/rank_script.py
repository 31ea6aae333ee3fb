"""What one rank does in the tests of ``DistributedReadingService``: ``python -m tests.services.rank_script ...``.

Joins a gloo group through a file, plays the named scenarios one after the other, and writes what came of them.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import struct
import sys
import tarfile
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, Subset
from torch.utils.data.datapipes.iter import IterableWrapper as TorchIterableWrapper

from reading_services import (
    DistributedReadingService,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from torchpipe import DataLoader, DataLoader2
from torchpipe.data import Ranks
from torchpipe.errors import StateMismatchError, UnevenWarning
from torchpipe.execution.ranks import RankGroup, Talk, data_ranks
from torchpipe.iter import IterableWrapper, TextLineReader, WebDatasetReader
from torchpipe.map import SequenceWrapper
from torchpipe.testing.services import sample_graph

TIMEOUT_S = 60.0
SHORT_S = 2.0


def _noisy(number: int) -> tuple[int, float]:
    return number, random.random()


def random_graph(length: int = 48) -> Any:
    return IterableWrapper(range(length)).shuffle().sharding_filter().map(_noisy).shuffle(buffer_size=3)


def uneven_graph() -> Any:
    """All even numbers below 22, and the odd ones below 12: no two ranks have as many."""
    return IterableWrapper(range(22)).sharding_filter().filter(lambda n: n % 2 == 0 or n < 12).map(lambda n: n)


def _service(workers: int | None, **options: Any) -> ReadingServiceInterface:
    distributed = DistributedReadingService(TIMEOUT_S, **options)
    if workers is None:
        return distributed
    return SequentialReadingService(distributed, MultiProcessingReadingService(workers, "fork"))


def _loader(graph: Any, workers: int | None = None, seed: int | None = 5, **options: Any) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=_service(workers, **options))
    if seed is not None:
        loader.seed(seed)
    return loader


def _text(items: Any) -> list[str]:
    return [repr(item) for item in items]


def alone() -> Any:
    with _loader(random_graph()) as loader:
        return {"epochs": [_text(loader) for _ in range(2)], "length": len(loader), "plan": loader.explain()}


def with_workers() -> Any:
    with _loader(random_graph(), workers=2, agree_every=3) as loader:
        return [_text(loader) for _ in range(2)]


def shared_seed() -> Any:
    with _loader(random_graph(), seed=None) as loader:
        if dist.get_rank() == 0:
            loader.seed(11)
        items = _text(loader)
        return [items, loader.state_dict()["seed"]]


def resume() -> Any:
    """Uneven, with workers: the whole epoch, and, from states on the way, what is still to come."""
    results: dict[str, Any] = {}
    for uneven in ("drop", "pad"):
        states, items = [], []
        with _loader(sample_graph(41), workers=2, agree_every=2, uneven=uneven) as loader:
            states.append(loader.state_dict())
            for item in loader:
                items.append(repr(item))
                states.append(loader.state_dict())
        rests = {}
        for count in sorted({0, 1, len(items) // 2, len(items) - 1}):
            for workers in (2, None):
                service = _service(workers, agree_every=2, uneven=uneven)
                with DataLoader2.from_state(states[count], sample_graph(41), service) as loader:
                    rests[f"{count} {workers}"] = _text(loader) == items[count:]
        results[uneven] = {"items": items, "rests": rests}
    return results


def uneven() -> Any:
    results: dict[str, Any] = {}
    for policy in ("drop", "pad", "raise"):
        for every in (1, 4):
            got: list[Any] = []
            with _loader(uneven_graph(), uneven=policy, agree_every=every) as loader:
                try:
                    got.extend(loader)
                except Exception as error:
                    got.append(type(error).__name__)
            results[f"{policy} {every}"] = got
    return results


def different_positions() -> Any:
    with _loader(random_graph()) as loader:
        stream = iter(loader)
        early = loader.state_dict()
        for _ in range(3):
            next(stream)
        late = loader.state_dict()
        loader.load_state_dict(early if dist.get_rank() else late)
        try:
            iter(loader)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _without(rank_does: Callable[[], None], workers: int | None) -> Any:
    """The others go on after rank 0 has stopped to; how long do they wait, and for what?"""
    service: ReadingServiceInterface = DistributedReadingService(SHORT_S)
    if workers is not None:
        service = SequentialReadingService(service, MultiProcessingReadingService(workers, "fork"))
    loader: DataLoader2[Any] = DataLoader2(random_graph(3000), reading_service=service)
    count = 0
    began = time.monotonic()
    try:
        for _ in loader:
            count += 1
            began = time.monotonic()
            if count == 7 and dist.get_rank() == 0:
                rank_does()
                return None
        return "ended"
    except Exception as error:
        return {"count": count, "error": f"{type(error).__name__}: {error}", "waited_s": time.monotonic() - began}
    finally:
        loader.shutdown()


def a_rank_stops() -> Any:
    return _without(lambda: None, None)


def a_rank_is_killed() -> Any:
    return _without(lambda: os.kill(os.getpid(), signal.SIGKILL), 2)


def graphs_of_torch() -> Any:
    """Through ``DataLoader``: what each epoch gives, with and without workers, and what follows a state."""
    graph = TorchIterableWrapper(range(24)).shuffle()
    found: dict[str, Any] = {}
    for workers in (0, 2):
        torch.manual_seed(dist.get_rank())  # the order is the first rank's all the same
        with DataLoader(graph.sharding_filter(), 2, shuffle=True, num_workers=workers) as loader:
            epochs = [[number for batch in loader for number in batch.tolist()] for _ in range(2)]
            stream = iter(loader)
            next(stream)
            state = loader.state_dict()
            rest = _text(stream)
            loader.load_state_dict(state)
            found[str(workers)] = [epochs, rest == _text(loader)]
    states: list[Any] = [None, None]
    dist.all_gather_object(states, state)
    with DataLoader(graph.sharding_filter(), 2, shuffle=True, num_workers=2) as loader:
        loader.load_state_dict(states[1 - dist.get_rank()])
        try:
            next(iter(loader))
        except StateMismatchError as error:
            found["other"] = str(error)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found["undivided"] = sorted(int(batch) for batch in DataLoader(graph, None))
    found["warned"] = [str(item.message) for item in warned]
    return found


def left_behind() -> Any:
    """What stays after shutdown: threads of Python, and of the process beyond those of the default group."""
    with _loader(random_graph(12)) as loader:
        list(loader)
    before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with _loader(random_graph(12), workers=2) as loader:
            list(loader)
    deadline = time.monotonic() + 30
    while True:
        after = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        if after <= before or time.monotonic() > deadline:
            return [before, after, [thread.name for thread in threading.enumerate()]]
        threading.Event().wait(0.05)


# -- the shards, and the one state, of all ranks ------------------------------------------------------------------

TOTAL = 12
STEPS = 2  # before the state that is handed on to others


def total_graph() -> Any:
    """Shards of unequal lengths, random in every way."""
    return sample_graph(150)


def dealt_graph() -> Any:
    graph = IterableWrapper(range(150)).shuffle(buffer_size=16).sharding_round_robin_dispatch()
    return graph.map(_noisy).filter(_is_kept).shuffle(buffer_size=3)


def _is_kept(item: tuple[int, float]) -> bool:
    return item[0] % 7 != 0


TOTALS = {"filter": (total_graph, None), "workers": (total_graph, 2), "dispatcher": (dealt_graph, 2)}


def _saved_as(name: str) -> Path:
    return Path(os.environ["RANKS_SHARED"]) / f"{name}.{dist.get_world_size()}.{dist.get_rank()}"


def total() -> Any:
    """An epoch of each graph; after a few steps, the one state, and each rank's own."""
    results = {}
    for name, (graph, workers) in TOTALS.items():
        with _loader(graph(), workers, total_shards=TOTAL) as loader:
            stream = iter(loader)
            items = [repr(next(stream)) for _ in range(STEPS)]
            state, own = loader.state_dict("all"), loader.state_dict()
            torch.save({"all": state, "own": own}, _saved_as(name))
            items += _text(stream)
            results[name] = {"items": items, "length": len(items)}
    return results


def resume_total() -> Any:
    """What is left from the states on that groups of other sizes have saved; with pads, all of it."""
    results: dict[str, Any] = {}
    for name, (graph, workers) in TOTALS.items():
        for path in sorted(Path(os.environ["RANKS_SHARED"]).glob(f"{name}.*.0")):
            state = torch.load(path, weights_only=True)["all"]
            results[path.name] = {}
            for uneven in ("drop", "pad"):
                service = _service(workers, uneven=uneven, total_shards=TOTAL)
                with DataLoader2.from_state(state, graph(), service) as loader:
                    results[path.name][uneven] = _text(loader)
    return results


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 53

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.randrange(1 << 20)])


def _batches(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def _made(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(), **{"batch_size": 4, "shuffle": True, "distributed": True} | options)


LOADERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "workers": {"num_workers": 2, "multiprocessing_context": "fork"},
    "padded": {"distributed": Ranks(uneven="pad")},
    "in order": {"shuffle": False, "drop_last": True},
}


def loader() -> Any:
    """Two epochs, with the state of one step in the first, and of the end of it."""
    results = {}
    for name, options in LOADERS.items():
        torch.manual_seed(40 + dist.get_rank())  # that of rank 0 counts
        with _made(**options) as made:
            stream = iter(made)
            batches = _batches(next(stream) for _ in range(STEPS))
            states = [made.state_dict()]
            epochs = [batches + _batches(stream)]
            states.append(made.state_dict())
            epochs.append(_batches(made))
            made.sampler.set_epoch(0)  # type: ignore[union-attr]
            again = _batches(made) == epochs[0]
            sampled = list(made.sampler) == [row[0] for batch in epochs[0] for row in batch]
            _saved_as(f"loader {name}").write_text(json.dumps(states))
            results[name] = {
                "epochs": epochs,
                "length": len(made),
                "again": again,
                "sampled": sampled,
                "state": states[0],
            }
    return results


def resume_loader() -> Any:
    """From the states of groups of other sizes on: the rest of the epoch and the next one, also in other batches."""
    results: dict[str, Any] = {}
    for name, options in LOADERS.items():
        for path in sorted(Path(os.environ["RANKS_SHARED"]).glob(f"loader {name}.*")):
            middle, end = json.loads(path.read_text())
            with _made(**options) as made:
                made.load_state_dict(middle)
                rest = [_batches(made), _batches(made)]
                made.load_state_dict(end)
                follows = made.epoch == 1 and _batches(made) == rest[1]
            with _made(**options | {"batch_size": 3}) as made:
                made.load_state_dict(middle)
                others = _batches(made)
            results[path.name] = {"rest": rest, "follows": follows, "others": others}
    return results


def _error_of(act: Callable[[], Any]) -> dict[str, Any]:
    began = time.monotonic()
    try:
        act()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "waited_s": time.monotonic() - began}
    return {"error": "", "waited_s": time.monotonic() - began}


def unlike() -> Any:
    """Ranks that are not alike: what each is told."""
    rank = dist.get_rank()
    results = {}
    with _loader(random_graph(), total_shards=TOTAL, seed=5 + rank) as made:
        results["seeds"] = _error_of(lambda: iter(made))
    with tempfile.TemporaryDirectory() as own:  # a file has come before rank 1 looked for them
        for number in range(4 + (rank == 1)):
            Path(own, f"{number}.txt").write_text("a\nb\n")
        with _loader(TextLineReader(f"{own}/*").shard_pieces(), total_shards=4) as made:
            results["files"] = _error_of(lambda: iter(made))
        for number in range(4):  # beside the last, which alone is large, only some ranks have an index
            with tarfile.open(f"{own}/{number}.tar", "w") as archive:
                for name in ("a.bin", "b.bin"):
                    info = tarfile.TarInfo(name)
                    info.size = (24 if name == "a.bin" else 16) << (20 if number == 3 else 1)
                    archive.addfile(info, io.BytesIO(bytes(info.size)))
        if rank:
            Path(f"{own}/3.tar.idx").write_bytes(struct.pack("<3Q", 0, 512 + (24 << 20), archive.offset))
        with _loader(WebDatasetReader(f"{own}/*.tar").shard_pieces(), total_shards=4) as made:
            results["indexes"] = _error_of(lambda: iter(made))
    with _loader(random_graph(48 + rank)) as made:
        results["graphs"] = _error_of(lambda: iter(made))
    with _loader(random_graph(), seed=None) as made:
        results["no seed yet"] = _error_of(lambda: made.state_dict("all"))
        stream = iter(made)
        next(stream)
        results["state"] = _error_of(lambda: made.state_dict("all") if rank == 0 else next(stream))
    states = []
    with _loader(random_graph()) as made:
        stream = iter(made)
        for _ in range(2):
            next(stream)
            states.append((made.state_dict("all"), made.state_dict()))
    with _loader(random_graph()) as made:
        if rank == 0:
            made.load_state_dict(states[0][1])
        results["a rank without state"] = _error_of(lambda: iter(made))
        made.load_state_dict(states[0][0] if rank else states[0][1])
        results["own and of all"] = _error_of(lambda: iter(made))
        made.load_state_dict(states[rank == 0][0])
        results["other states"] = _error_of(lambda: iter(made))
    with _made(batch_size=4 + rank) as batches:
        results["batch sizes"] = _error_of(lambda: iter(batches))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(rank)).tolist()
    for name, data in (("another split", Subset(Numbers(), order)), ("another order", order)):
        results[name] = _error_of(lambda data=data: iter(DataLoader(data, 4, distributed=True)))
        with _loader(SequenceWrapper(data).to_iter_datapipe().sharding_filter()) as made:
            results[f"{name} in a graph"] = _error_of(lambda made=made: iter(made))
    own: Any = Numbers()
    own.device = f"cuda:{rank}"
    results["a device of its own"] = _error_of(lambda: iter(DataLoader(own, 4, distributed=True)))
    results["uneven batches"] = _error_of(lambda: iter(_made(distributed=Ranks(uneven="raise"))))
    return results


def alone_in_state_dict() -> Any:
    """Rank 0 asks for the state of all, and nobody else does."""
    service = DistributedReadingService(SHORT_S, states="all")
    made: DataLoader2[Any] = DataLoader2(random_graph(), reading_service=service)
    try:
        next(iter(made))
        return _error_of(made.state_dict) if dist.get_rank() == 0 else None
    finally:
        dist.barrier()
        made.shutdown()


def destroyed() -> Any:
    """The process group goes in mid-epoch: what a loader tells other ranks does not need it. Comes last."""
    with _loader(random_graph()) as made:
        whole = _text(made)
        made.set_epoch(0)
        stream = iter(made)
        items = [repr(next(stream))]
        dist.barrier()
        dist.destroy_process_group()
        return items + _text(stream) == whole


def _rows(file: int) -> Any:
    return iter([(file, row) for row in range(20 if file % 4 else 6)])


def files_graph() -> Any:
    """Divided at files, of which two are short."""
    return IterableWrapper(range(8)).sharding_filter().flatmap(_rows)


def rows_graph() -> Any:
    """The same, divided at rows."""
    return IterableWrapper(range(8)).flatmap(_rows).sharding_filter()


class _Reenters:
    """Tells the other ranks something else while it is being told: as a signal handler in that moment does."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act
        self.error: Exception | None = None

    def __reduce__(self) -> Any:
        try:
            self.act()
        except Exception as error:
            self.error = error
        return str, ("told",)


def in_a_handler() -> Any:
    """State of all ranks, asked for by rank 0's signal handler: inside next(), and while ranks talk."""
    errors: list[str] = []
    items: list[Any] = []
    loader: DataLoader2[Any]

    def save(*_: Any) -> None:
        try:
            loader.state_dict("all")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    def strike(number: int) -> int:
        if number in (4, 10) and dist.get_rank() == 0:
            signal.raise_signal(signal.SIGUSR1)
        return number

    before = signal.signal(signal.SIGUSR1, save)
    try:
        with _loader(IterableWrapper(range(24)).sharding_filter().map(strike)) as loader:
            items.extend(loader)
    finally:
        signal.signal(signal.SIGUSR1, before)
    group = RankGroup(data_ranks(True, "the test"), TIMEOUT_S)
    reenters = _Reenters(lambda: group.objects(Talk.STATES, "a state"))
    told = group.objects(Talk.BEGIN, reenters if dist.get_rank() == 0 else "told")
    after = group.objects(Talk.STATES, dist.get_rank())
    group.close()
    return [items, errors, f"{type(reenters.error).__name__}: {reenters.error}", told, after]


def left_out() -> Any:
    """The epochs of graphs that end early, what is told of it, and what follows a resume."""
    results: dict[str, Any] = {}
    for name, graph, total, workers in (
        ("files", files_graph, 8, None),
        ("files with workers", files_graph, 8, 2),
        ("files without a total", files_graph, None, None),
        ("rows", rows_graph, 8, None),
        ("rows without a total", rows_graph, None, 2),
        ("sized", lambda: IterableWrapper(range(41)).sharding_filter(), 4, 1),
        ("empty shards", files_graph, 24, None),
        ("empty rank", lambda: IterableWrapper(range(1)).sharding_filter(), None, 1),
        ("nothing", lambda: IterableWrapper(range(0)).sharding_filter(), 4, None),
    ):
        with warnings.catch_warnings(record=True) as told, _loader(graph(), workers, total_shards=total) as loader:
            warnings.simplefilter("always")
            error, epochs = "", []
            try:
                while loader.epoch < 2 and len(epochs) < 3:
                    epochs.append(len(list(loader)))
                state = loader.state_dict()
                loader.load_state_dict(state)
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
            stats = loader.stats()
        results[name] = {
            "epochs": epochs,
            "error": error,
            "told": [str(item.message) for item in told if item.category is UnevenWarning],
            "left": stats.left_over,
            "events": [event.text for event in stats.events if event.kind == "uneven"],
        }
    return results


def end_together(folder: Path, rank: int, world_size: int) -> None:
    """Leave the process group when all ranks are done: one that ends while another still talks to it fails that one.

    By a store in ``folder``: a barrier of the group itself is such talk.
    """
    store = dist.FileStore(str(folder / "ended"), world_size)
    store.set(str(rank), "")
    store.wait([str(other) for other in range(world_size)], timedelta(seconds=TIMEOUT_S))
    dist.destroy_process_group()


def main(scenarios: dict[str, Any]) -> None:
    """Plays those of ``scenarios`` that the command line names, in a process group."""
    folder, rank, world_size, names = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    for name in names:
        result = scenarios[name]()
        (folder / f"{name}.{rank}.json").write_text(json.dumps(result))
    if "a_rank_is_killed" not in names and dist.is_initialized():
        end_together(folder, rank, world_size)


if __name__ == "__main__":
    main(globals())
