"""The audited process: makes the loader, loops over it as a training does, and writes down what comes.

Runs as ``python -m torchpipe.testing.audit.child``: that process has imported torch, and forks one for each
:class:`Order` that it reads (a line of JSON); each one has a session of its own, and imports the user's code anew. It
tells its parent the number of each such process, and then its exit code.

The loader under audit, whatever it is: made by the user's function, with a state if it has one.

Runs in the audited process.

Asks the user's code twice for one thing, under the same random states: does it count, remember, or read the clock?
"""

from __future__ import annotations

import copy
import gc
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from types import ModuleType
from typing import Any, NoReturn

import numpy
import numpy as np
import torch

from reading_services.processes.status_page import signal_at_parents_end
from torchpipe.data.loader import DataLoader
from torchpipe.iter import IterableWrapper
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.node.datapipe import IterDataPipe, iterate
from torchpipe.node.traits import inputs_of, is_node, node_name, walk, with_inputs
from torchpipe.observe.named import Maker, object_named
from torchpipe.testing.audit.processes import Family, Order, children_of
from torchpipe.testing.audit.samples import samples_of
from torchpipe.testing.compare import digest_of

__all__ = ["Made"]

_PAIRS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class Made:
    """A loader: iterated once for each epoch, and saved by what it has, or else by what its iterator has."""

    def __init__(self, loader: Any) -> None:
        self.loader = DataLoader2(loader) if is_node(loader) else loader
        self._iterator: Iterator[Any] | None = None
        self._pending: list[Any] = []
        if not hasattr(type(self.loader), "__iter__") and not hasattr(type(self.loader), "__getitem__"):
            raise TypeError(f"a loader should be iterable, and {type(self.loader).__name__} is not")

    @property
    def name(self) -> str:
        kind = type(self.loader)
        return f"{kind.__module__}.{kind.__qualname__}"

    @property
    def is_ours(self) -> bool:
        return isinstance(self.loader, DataLoader | DataLoader2)

    @property
    def has_state(self) -> bool:
        """True if it can be saved and loaded. Known of an iterator only once there is one."""
        return _methods(self.loader) is not None or _methods(self._iterator) is not None

    def save(self) -> Any:
        """The state, or None if there is none."""
        methods = _methods(self.loader) or _methods(self._iterator)
        return None if methods is None else methods[0]()

    def load(self, state: Any) -> None:
        """Before an epoch. Without a state it begins anew."""
        methods = _methods(self.loader)
        if methods is not None:
            methods[1](state)
        else:
            self._pending = [state]

    def epoch(self) -> Iterator[Any]:
        """One loop over it."""
        self._iterator = iter(self.loader)
        if self._pending and (methods := _methods(self._iterator)) is not None:
            methods[1](self._pending[0])
        self._pending = []
        yield from self._iterator


def _methods(holder: Any) -> tuple[Any, Any] | None:
    for save, load in _PAIRS:
        if callable(getattr(holder, save, None)) and callable(getattr(holder, load, None)):
            return getattr(holder, save), getattr(holder, load)
    return None


_PROBED = 3
_CAUSES = (
    "it counts or remembers its calls, changes in place what it keeps, or draws from a clock or a generator of its own"
)


def _probe(loader: Any) -> str:
    """The fault of the first of the user's objects that gives two different answers, as text; empty if there is none.

    Asked are a map-style dataset, for its first samples, and each function of a torchpipe graph, for its first item.
    """
    found = _of_graph(loader.datapipe) if isinstance(loader, DataLoader2) else _of_dataset(loader)
    return next(found, "")


def _of_dataset(loader: Any) -> Iterator[str]:
    dataset: Any = getattr(loader, "dataset", None)
    if not hasattr(type(dataset), "__getitem__") or not hasattr(type(dataset), "__len__"):
        return
    for index in range(min(_PROBED, len(dataset))):
        name = f"{type(dataset).__qualname__}[{index}]"
        first = _seeded(lambda: dataset[index])  # noqa: B023
        before = digest_of(first)
        second = digest_of(_seeded(lambda: dataset[index]))  # noqa: B023
        if digest_of(first) != before:
            yield f"{name} gives an object that it changes when it is asked again"
        elif second != before:
            yield f"{name}, asked twice under the same random states, gives two different samples: {_CAUSES}"


def _of_graph(root: Any) -> Iterator[str]:
    for node in walk(root):
        sources: list[Any] = [source for source in inputs_of(node) if isinstance(source, IterDataPipe)]
        if not callable(getattr(node, "fn", None)) or len(sources) != 1:
            continue
        for item in _seeded(lambda: list(islice(iterate(sources[0]), 1))):  # noqa: B023
            first, second = (_seeded(lambda: _through(node, item)) for _ in range(2))  # noqa: B023
            if first != second:
                yield f"{node_name(node)}, asked twice for one item, gives two different results: {_CAUSES}"


def _through(node: Any, item: Any) -> list[str]:
    """Digests of what ``node`` makes of a copy of ``item``."""
    source = IterableWrapper([copy.deepcopy(item)], deepcopy=False)
    return [digest_of(result) for result in iterate(with_inputs(node, lambda _: source))]


def _seeded(function: Callable[[], Any]) -> Any:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return function()


# What most loaders need: imported once. Nobody needs the names here.
_PRELOADED = ("torch.utils.data", "torchpipe.iter", "torchpipe.map", "reading_services")


def _serve(parent: int, folder: str) -> Order | None:
    """In the process that forks: None at the end. In each forked one: what it has to do."""
    family = Family.of_this_process()

    def clear_up(*_: object) -> NoReturn:
        family.end()
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(1)

    signal.signal(signal.SIGTERM, clear_up)
    signal_at_parents_end(signal.SIGTERM)
    if os.getppid() != parent:
        clear_up()
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that no forked process looks at it again, at its end least of all
    this = os.getpid()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal_at_parents_end(signal.SIGKILL)
            if os.getppid() != this:
                sys.exit(1)
            os.setsid()
            torch.seed()  # a new process has random states of its own, which Python gives to a forked one
            numpy.random.seed()
            return Order.from_json(line)
        family.sessions.add(pid)
        print(json.dumps(pid), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
    return None


def _to_log(order: Order) -> None:
    """Send the output of the user's code to the log; nobody types."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    sys.stdin = open(0, closefd=False)
    os.close(log)
    os.close(nothing)
    os.environ.update(order.environment)
    if order.strict:
        os.environ["TORCHPIPE_STRICT"] = "1"


class _Records:
    """Lines, each written at once: a SIGKILL takes away none of those before it."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.set_inheritable(self._number, False)

    def tell(self, what: str, value: Any = None) -> None:
        os.write(self._number, (json.dumps([what, value]) + "\n").encode())


def _carry_out(order: Order) -> int:
    records = _Records(order.records)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            _run(order, records)
        except Exception as error:
            notes = [note for note in getattr(error, "__notes__", ()) if str(note).startswith("torchpipe: raised")]
            text = " ".join([str(error), *map(str, notes)])
            records.tell("error", [type(error).__name__, text, traceback.format_exc()])
            return 1
        finally:
            records.tell("warnings", [f"{item.category.__name__}: {item.message}" for item in told])
    return 0


def _run(order: Order, records: _Records) -> None:
    identify = None if order.identify is None else object_named(order.identify)
    if identify is not None and not callable(identify):
        raise ValueError(f"{order.identify} is {type(identify).__name__}: name a function of a batch")
    maker = Maker(order.target)
    made = Made(maker.value({"epoch": order.epoch, **order.arguments}))
    records.tell("made", {"name": made.name, "ours": made.is_ours, "takes": maker.takes})
    if order.probe:
        records.tell("probed", _probe(made.loader))
        records.tell("finished", "end")
        return
    if order.load is not None:
        state = torch.load(order.load, weights_only=False)
        if state is not None:
            made.load(state)
    _Loop(order, records, maker, made, identify).run()


class _Loop:
    """The loops of a training: ``for epoch in range(epoch, epochs): for batch in loader``."""

    def __init__(self, order: Order, records: _Records, maker: Maker, made: Made, identify: Any) -> None:
        self.order, self.records, self.maker, self.made, self.identify = order, records, maker, made, identify
        self.count = 0

    def run(self) -> None:
        order = self.order
        # A state behind an epoch's last batch: the rest of that loop is empty, or the next epoch begins at once.
        expect_empty = order.at_end
        epoch = order.epoch
        first = True
        while epoch + expect_empty < order.epochs:
            if not first and "epoch" in self.maker.takes:
                self.made = Made(self.maker.value({**order.arguments, "epoch": epoch}))
            first = False
            came = self._epoch(epoch + expect_empty, silent=expect_empty)
            if came is None:
                return
            epoch += 1 if not expect_empty or not came else 2
            expect_empty = False
        self.records.tell("finished", "end")

    def _epoch(self, epoch: int, *, silent: bool) -> int | None:
        """Run an epoch. The number of batches that came; None if the run is over."""
        order, came = self.order, 0
        if not silent:
            self.records.tell("epoch", epoch)
        for batch in self.made.epoch():
            if self.count == 0:
                self.records.tell("has_state", self.made.has_state)
            self.count += 1
            came += 1
            samples = samples_of(batch, self.identify)
            self.records.tell("batch", [epoch, [[one.id, dict(one.fields)] for one in samples]])
            if order.save_ends is not None and self.count == order.ends:
                self._save(order.save_ends[0])
            if self.count in order.kill:
                self._kill_worker()
            if self.count == order.stop:
                self._stop()
                return None
            if self.count >= order.limit:
                self.records.tell("finished", "limit")
                return None
        if order.save_ends is not None and self.count == order.ends:
            self._save(order.save_ends[1])
            self.records.tell("finished", "stop")
            return None
        return came

    def _save(self, path: str) -> None:
        torch.save(self.made.save(), path)

    def _stop(self) -> None:
        if self.order.save is not None:
            self._save(self.order.save)
        self.records.tell("finished", "stop")
        if self.order.by_kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def _kill_worker(self) -> None:
        """One of those that multiprocessing knows, else of this process's children."""
        workers = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
        workers = sorted(workers or children_of(os.getpid()))
        if not workers:
            return
        os.kill(workers[self.count % len(workers)], signal.SIGKILL)
        self.records.tell("killed", self.count)


if __name__ == "__main__":
    begun = _serve(int(sys.argv[1]), sys.argv[2])
    if begun is not None:
        sys.modules["__main__"] = ModuleType("__main__")  # which processes that are started anew import: not this one
        _to_log(begun)
        sys.exit(_carry_out(begun))
