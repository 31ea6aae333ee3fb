"""The limits of a container: those of control groups, read from the system's files. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["Limits"]

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
