"""A fault that a process does to itself at a chosen moment, and the node that carries it into a graph.

Runs in whichever process is to be struck. Imports ``torchpipe``. A folder is the memory: ``armed`` lies there until the
fault strikes (once), or stays (again and again); ``struck`` says who was struck and when.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any, NamedTuple

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["DEADLY", "FAULTS", "MOMENTS", "SNAPSHOT_BEHIND", "Fault", "Strike", "Struck", "Vulnerable", "inflict"]

DEADLY = ("SIGKILL", "SIGSEGV", "exit 0", "exit 1")
FAULTS = (*DEADLY, "SIGSTOP", "exception", "out of shared memory", "too many open files")
MOMENTS = (
    "start",  # the graph arrives in a process
    "epoch start",  # the second epoch's pass is made
    "mid-item",
    "during a snapshot",
    "last item",
    "epoch boundary",  # the process is idle
    "pass given up",  # the loader is iterated anew in mid-epoch
    "while stopping",  # the loader is shut down in mid-epoch, and a process is about to end
)
SNAPSHOT_BEHIND = 4  # items that a pass has made before a snapshot is the one to be hit


class Struck(ValueError):
    """What an injected exception is."""


class Strike(NamedTuple):
    pid: int
    at: float  # monotonic, in seconds


@dataclass(frozen=True)
class Fault:
    """``what`` happens at ``moment`` to the process that first gets there; with ``always``, to each that gets there."""

    folder: str
    what: str
    moment: str
    number: int = -1  # the item of the moments that have one
    always: bool = False

    def arm(self) -> None:
        self._armed.touch()

    def disarm(self) -> None:
        self._armed.unlink(missing_ok=True)

    @property
    def _armed(self) -> Path:
        return Path(self.folder, "armed")

    @property
    def strikes(self) -> list[Strike]:
        """Who was struck so far, and when."""
        try:
            lines = Path(self.folder, "struck").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Strike(int(pid), float(at)) for pid, at in (line.split() for line in lines)]

    def at(self, moment: str, number: int | None = None) -> None:
        """Strike if this is the moment (and the item) and the fault is armed."""
        if moment == self.moment and (number is None or number == self.number):
            self.strike()

    def strike(self) -> None:
        if not self._claim():
            return
        note = os.open(Path(self.folder, "struck"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(note, f"{os.getpid()} {time.monotonic()!r}\n".encode())
        os.close(note)
        inflict(self.what)

    def _claim(self) -> bool:
        if self.always:
            return self._armed.exists()
        try:
            self._armed.unlink()
        except FileNotFoundError:
            return False
        return True


def inflict(what: str) -> None:
    """Do it to this process."""
    if what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
    elif what.startswith("exit"):
        os._exit(int(what[-1]))
    elif what == "exception":
        raise Struck("an injected exception")
    elif what == "too many open files":
        forbid_files()
        os.open(os.devnull, os.O_RDONLY)
        raise AssertionError("a file could be opened beyond the limit")
    elif what == "out of shared memory":
        forbid_growth()
    else:
        raise NotImplementedError(f"nothing is known of how to bring about {what!r}")


def forbid_files() -> None:
    """From now on this process can open no file, no pipe and no connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))


def forbid_growth() -> None:
    """From now on no file of this process can grow, and so no slot of shared memory can be made."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))


class Unpickled:
    """Strikes where it is rebuilt in another process than the one that made it: while a process starts."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.maker = fault, os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if os.getpid() != self.maker:
            self.fault.at("start")


class Vulnerable(IterDataPipe[Any]):
    """Hands items on, numbered by content (integers); the fault strikes in here, at any of its moments.

    It also lets SIGUSR1 strike, in whichever process runs it: that is how one is struck in which no user code runs.
    """

    def __init__(self, source_datapipe: IterDataPipe[Any], fault: Fault) -> None:
        self.source_datapipe = source_datapipe
        self.fault = fault
        self.unpickled = Unpickled(fault)

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _VulnerableIterator(self, context)


class _VulnerableIterator(NodeIterator[Any]):
    node: Vulnerable

    def __init__(self, node: Vulnerable, context: Context) -> None:
        super().__init__(node, context, node.source_datapipe)
        self.seen = 0
        fault = node.fault
        if os.getpid() != node.unpickled.maker:
            signal.signal(signal.SIGUSR1, lambda *_: _by_signal(fault))
            # Not in close(): a worker that finds its connection closed ends without closing its passes
            util.Finalize(None, fault.at, args=("while stopping",), exitpriority=1)
        fault.at("epoch start")

    def get_state(self) -> dict[str, Any]:
        if self.seen >= SNAPSHOT_BEHIND:
            self.node.fault.at("during a snapshot")
        return {"seen": self.seen}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]

    def run(self) -> Iterator[Any]:
        fault = self.node.fault
        for item in self.source.items():
            for moment in ("mid-item", "last item"):
                fault.at(moment, item)
            self.seen += 1
            yield item

    def close(self) -> None:
        if not self.pass_engine.is_closed:
            super().close()
            self.node.fault.at("pass given up")


def _by_signal(fault: Fault) -> None:
    try:
        fault.strike()
    except OSError:  # the limit on files is what stays; an error would be raised in code that is no user's
        pass
