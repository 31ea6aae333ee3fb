"""The audited process: makes the loader, loops over it as a training does, and writes down what comes.

Runs as ``python -m torchpipe.testing.audit.child``: that process has imported torch, and forks one for each
:class:`Order` that it reads (a line of JSON); each one has a session of its own, and imports the user's code anew. It
tells its parent the number of each such process, and then its exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import traceback
import warnings
from types import ModuleType
from typing import Any, NoReturn

import numpy
import torch

from reading_services.processes.parent import signal_at_parents_end
from torchpipe.observe.making import Maker
from torchpipe.observe.named import object_named
from torchpipe.testing.audit.loaders import Made
from torchpipe.testing.audit.orders import Order
from torchpipe.testing.audit.probes import probe
from torchpipe.testing.audit.processes import Family, children_of
from torchpipe.testing.audit.samples import samples_of

__all__: list[str] = []

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
        records.tell("probed", probe(made.loader))
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
