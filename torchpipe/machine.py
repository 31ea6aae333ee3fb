"""The machine's resources, and this process's use of them: cores, memory, limits of containers, the bytes of items.

The limits of a container: those of control groups, read from the system's files. Runs anywhere.

The part of the machine that choosing by measurement (``autotune``) may use.

The memory that this process takes, as the system tells.

The number of bytes of an item. Runs wherever items are made, where nodes are measured.

Known are tensors, arrays, bytes, text, tables of pyarrow and open files that have a length, also within lists, tuples
and dicts, where numbers count nothing. An item that holds anything else (images of other libraries, objects of the
user's) has no size that is known: a part of it would mislead. None of their code is run.
"""

from __future__ import annotations

import io
import os
import resource
import stat
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import StreamWrapper

__all__ = [
    "Budget",
    "Limits",
    "available_cores",
    "budget_of",
    "bytes_of",
    "format_bytes",
    "machine_busy_s",
    "private_bytes",
    "resident_bytes",
    "visible_cores",
]

_NONE = 1 << 60  # what the first version writes where there is no limit is larger


class Limits:
    """The limits of this process's control groups, of which the tightest counts. ``root``: their files' folder."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._groups = root / "sys/fs/cgroup"
        self._folders = [self._groups]
        try:
            lines = (root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            if line.startswith("0::"):
                own = self._groups / line[3:].lstrip("/")
                self._folders += [folder for folder in (own, *own.parents) if self._groups in folder.parents]

    def cores(self) -> float | None:
        """Processors, as CPU seconds to a second; None: no limit."""
        fields = [text.split() for text in self._texts("cpu.max")]
        pairs = [(int(words[0]), int(words[1])) for words in fields if len(words) == 2 and all(map(str.isdigit, words))]
        quotas = [quota / period for quota, period in pairs if period]
        quota, period = (_number(self._groups / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota is not None and period:
            quotas.append(quota / period)
        return min(quotas, default=None)

    def memory_bytes(self) -> int | None:
        return self._least("memory.max", "memory/memory.limit_in_bytes")

    def processes(self) -> int | None:
        return self._least("pids.max", "pids/pids.max")

    def memory_left_bytes(self) -> int | None:
        """The free memory, with files' memory that can be read again; None without a limit."""
        left = [
            limit - used + _idle_bytes(folder / "memory.stat")
            for folder in self._folders
            if (limit := _number(folder / "memory.max")) is not None
            and (used := _number(folder / "memory.current")) is not None
        ]
        older = self._groups / "memory"
        limit, used = _number(older / "memory.limit_in_bytes"), _number(older / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NONE:
            left.append(limit - used + _idle_bytes(older / "memory.stat"))
        return max(0, min(left)) if left else None

    def _least(self, name: str, older: str) -> int | None:
        found = [_number(folder / name) for folder in self._folders] + [_number(self._groups / older)]
        return min((number for number in found if number is not None and number < _NONE), default=None)

    def _texts(self, name: str) -> Iterator[str]:
        for folder in self._folders:
            try:
                yield (folder / name).read_text()
            except OSError:
                pass


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _idle_bytes(path: Path) -> int:
    try:
        found = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(found.get("inactive_file", 0))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget of ``autotune``: CPU cores, this process's included, and memory of all workers together.

    None: the cores that this process may use; half of the memory that is available when the first epoch begins. Limits
    of a container count in both.
    """

    cores: float | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("cores", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise ValueError(f"{name} of a Budget must be a positive number or None, got {value!r}")

    def filled(self) -> Budget:
        """With what this machine has."""
        return Budget(cores=self.cores or available_cores(), memory_bytes=self.memory_bytes or _available_bytes() // 2)


def available_cores() -> int:
    """The number of cores that this process may use: those that it may run on, at most its container's share."""
    quota = Limits().cores()
    return visible_cores() if quota is None else max(1, min(visible_cores(), round(quota)))


def visible_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_busy_s() -> float:
    """CPU seconds of all processes since the machine was started; 0 where the system does not tell."""
    try:
        with open("/proc/stat", "rb") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def budget_of(autotune: bool | Budget, num_workers: int) -> Budget | None:
    """The budget of a loader's argument; None: nothing is chosen. Raises: TypeError, and ValueError without workers."""
    if not isinstance(autotune, bool | Budget):
        raise TypeError(f"autotune must be True, False or a torchpipe.stats.Budget, got {autotune!r}")
    if autotune is False:
        return None
    if not num_workers:
        raise ValueError(
            "autotune chooses how many of num_workers processes are at work, and num_workers=0 starts none: give the "
            "most that it may start"
        )
    return Budget() if autotune is True else autotune


def _available_bytes() -> int:
    """Memory that could be taken now, as far as the system tells."""
    try:
        with open("/proc/meminfo", "rb") as file:
            fields = dict(line.split(b":") for line in file)
        free = int(fields[b"MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    left = Limits().memory_left_bytes()
    return free if left is None else max(1, min(free, left))


def private_bytes() -> int:
    """The bytes of this process that are in memory and in no other process's; 0 where the system does not tell."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(b"Private_"))
    except OSError:
        return 0


def resident_bytes() -> int:
    """The bytes of this process that are in memory now; where the system does not tell, their maximum so far."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


_DEEPEST = 6
_MOST_PARTS = 8  # of a container that are looked at, and speak for the others
_MOST_VALUES = 64  # of a dict, which are of many kinds
_MOST_TEXT = 4096  # characters likewise
_TABLES = (("pyarrow", "Table"), ("pyarrow", "RecordBatch"))


def bytes_of(item: Any, depth: int = 0) -> int | None:
    """The bytes of what ``item`` holds, in which numbers are none; None if a part of it has no size that is known."""
    if isinstance(item, torch.Tensor | np.ndarray | np.generic | memoryview):
        return _size(item)
    if item is None or isinstance(item, int | float | complex):
        return 0
    if isinstance(item, bytes | bytearray):
        return len(item)
    if isinstance(item, str):
        if item.isascii() or not item:
            return len(item)
        begin = item[:_MOST_TEXT]
        return round(len(begin.encode("utf-8", "surrogatepass")) * len(item) / len(begin))
    if isinstance(item, dict):
        return _of_parts(dict.values(item), len(item), depth)
    if isinstance(item, list | tuple):
        plain: Any = list if isinstance(item, list) else tuple
        count = plain.__len__(item)
        few = item if count <= _MOST_PARTS else plain.__getitem__(item, slice(None, None, -(-count // _MOST_PARTS)))
        return _of_parts(few, count, depth)
    if isinstance(item, StreamWrapper):
        return _of_file(vars(item).get("file_obj"))
    kind = (type(item).__module__.partition(".")[0], type(item).__name__)
    return _size(item) if kind in _TABLES else None


def _size(item: Any) -> int | None:
    try:
        return int(item.nbytes)
    except Exception:  # a subclass of somebody's, whose elements lie nowhere
        return None


def _of_parts(parts: Collection[Any], count: int, depth: int) -> int | None:
    """The sum over ``parts``, the first of which speak for ``count`` of them."""
    if depth >= _DEEPEST:
        return None
    total = looked = 0
    for part in islice(parts, _MOST_VALUES):
        size = bytes_of(part, depth + 1)
        if size is None:
            return None
        total += size
        looked += 1
    return total if looked == count else round(total * count / looked)


def _of_file(file: Any) -> int | None:
    """The length of an open file: in memory, on disk, at a URL, in a tar archive."""
    if type(file) is io.BytesIO:
        return file.getbuffer().nbytes
    if type(file) is io.TextIOWrapper:
        file = file.buffer
    raw = file.raw if isinstance(file, io.BufferedReader) else file
    try:
        if type(raw) is not io.FileIO:
            size = raw.size if type(raw).__module__.partition(".")[0] in ("torchpipe", "tarfile") else None
            return size if type(size) is int else None
        status = os.fstat(raw.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    except (AttributeError, OSError, ValueError):  # it has none, or is closed
        return None


def format_bytes(value: float) -> str:
    """With three digits, in powers of 1000."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"
