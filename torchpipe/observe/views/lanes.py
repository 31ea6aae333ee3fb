"""``with loader.trace("trace.json"):`` what every process was at, over time, as a trace for Perfetto or chrome://tracing.

A thread looks at ``loader.stats()`` some fifty times a second, and writes for each process what took most of the time
since. Timestamps are those of torch.profiler's own traces: the events of both can stand in one file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torchpipe.observe.text import NewEvents, check_seconds, spent_s
from torchpipe.stats import LoaderStats

if TYPE_CHECKING:
    from torchpipe.loader.observing import Looks

__all__ = ["TraceFile"]

_QUARTER_S = 7_889_238  # kineto's ChromeTraceBaseTime: traces count from the begin of such a span since 1970
_LANE = 0x7470  # a thread number of our own among those of a process
_LEAST_S = 1e-4
_COLOURS = {"making": "good", "sending": "vsync_highlight_color", "waits for input": "bad", "waits for data": "bad"}


class TraceFile:
    """Writes until :meth:`close`, or the end of the ``with`` block; without that, until the process ends."""

    def __init__(self, loader: Looks, path: str | os.PathLike[str], every_s: float) -> None:
        check_seconds(every_s)
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"the folder {self.path.parent} does not exist, so {self.path.name} cannot be written: make it"
            )
        self._base_ns = time.time_ns() // 10**9 // _QUARTER_S * _QUARTER_S * 10**9
        self._file = self.path.open("w", encoding="utf-8")
        self._file.write(
            f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{self._base_ns},"traceEvents":[\n'
            + json.dumps(_name(os.getpid(), "process_name", "python"))
        )
        self._loader: Looks | None = loader
        self._every_s = every_s
        self._before: dict[str, dict[str, float]] = {}  # of each lane, what it had spent
        self._open: dict[str, dict[str, Any]] = {}  # of each lane, the slice that goes on
        self._named: set[str] = set()
        self._events = NewEvents()
        self._events.of(loader.stats())
        self._last_ns = time.time_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchpipe-trace", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The file is whole from here on. Idempotent."""
        loader, self._loader = self._loader, None
        if loader is None:
            return
        self._stop.set()
        self._thread.join()
        with self._file:
            self._look(loader.stats())
            self._write(self._open.values())
            self._file.write("\n]}\n")

    def _run(self) -> None:
        loader = self._loader
        while loader is not None and not self._stop.wait(self._every_s):
            self._look(loader.stats())

    def _look(self, stats: LoaderStats) -> None:
        now_ns = time.time_ns()
        lanes = [(os.getpid(), _LANE, "data: your loop", _of_loop(stats))]
        for process in stats.processes:
            if process.kind == "main":
                continue
            thread = _LANE + 1 + int(process.name.split()[-1]) if process.kind == "thread" else process.pid
            lanes.append((process.pid, thread, process.name, spent_s(process)))
        for pid, thread, name, spent in lanes:
            self._slice(f"{name} {pid}", pid, thread, name, spent, now_ns)
        pid = os.getpid()
        self._write(
            _event("C", f"{queue.name} ({queue.unit})", pid, 0, self._us(now_ns), args={queue.unit: queue.fill})
            for queue in stats.queues
        )
        for event in self._events.of(stats):
            args: dict[str, Any] = {"process": event.process, "text": event.text}
            if event.error:
                args |= {"node": event.node, "shard": event.shard, "error": event.error}
            self._write([_event("i", event.kind, pid, _LANE, self._us(round(event.at * 1e9)), s="g", args=args)])
        self._last_ns = now_ns

    def _slice(self, lane: str, pid: int, thread: int, name: str, spent: dict[str, float], now_ns: int) -> None:
        """Go on with the work that took most of the time since the last look, or begin it."""
        if lane not in self._named:
            self._named.add(lane)
            self._write([_name(pid, "thread_name", name, thread)])
            if pid != os.getpid():
                self._write([_name(pid, "process_name", name)])
        before = self._before.get(lane)
        self._before[lane] = spent
        took = {} if before is None else {doing: spent[doing] - before[doing] for doing in spent}
        doing = max(took, key=lambda doing: took[doing], default="")
        going = self._open.get(lane)
        if not doing or took[doing] < _LEAST_S:  # idle, or a new epoch
            if going is not None:
                self._write([self._open.pop(lane)])
            return
        if going is not None and going["name"] != doing:
            self._write([self._open.pop(lane)])
            going = None
        if going is None:
            going = _event("X", doing, pid, thread, self._us(self._last_ns), cat="torchpipe", dur=0.0)
            if doing in _COLOURS:
                going["cname"] = _COLOURS[doing]
            self._open[lane] = going
        going["dur"] = round(self._us(now_ns) - going["ts"], 3)

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._base_ns) / 1000

    def _write(self, events: Iterable[dict[str, Any]]) -> None:
        self._file.write("".join(",\n" + json.dumps(event) for event in events))


def _of_loop(stats: LoaderStats) -> dict[str, float]:
    return {"waits for data": stats.consumer.wait_s, "your code": stats.consumer.own_s}


def _event(phase: str, name: str, pid: int, thread: int, at_us: float, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": pid, "tid": thread, "ts": at_us, **more}


def _name(pid: int, kind: str, name: str, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": thread, "args": {"name": name}}
