"""What a container lets its processes use, as its control groups say."""

from __future__ import annotations

from pathlib import Path

from torchpipe.machine import Limits

GB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Limits:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Limits(root)


def test_without_control_groups_there_are_no_limits(tmp_path: Path) -> None:
    none = Limits(tmp_path)
    assert (none.cores(), none.memory_bytes(), none.memory_left_bytes(), none.processes()) == (None, None, None, None)


def test_the_tightest_on_the_way_up_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod"
    limits = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/run",
            f"{group}/cpu.max": "400000 100000",
            f"{group}/run/cpu.max": "max 100000",
            f"{group}/memory.max": str(16 * GB),
            f"{group}/memory.current": str(6 * GB),
            f"{group}/memory.stat": f"anon {4 * GB}\ninactive_file {GB}",
            f"{group}/run/memory.max": str(12 * GB),
            f"{group}/run/memory.current": str(GB),
            f"{group}/run/pids.max": "300",
        },
    )
    assert limits.cores() == 4
    assert limits.memory_bytes() == 12 * GB
    assert limits.memory_left_bytes() == 11 * GB  # the pod's files could be read again
    assert limits.processes() == 300


def test_the_first_version(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    limits = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/",
            f"{group}/cpu/cpu.cfs_quota_us": "150000",
            f"{group}/cpu/cpu.cfs_period_us": "100000",
            f"{group}/memory/memory.limit_in_bytes": str(8 * GB),
            f"{group}/memory/memory.usage_in_bytes": str(9 * GB),
        },
    )
    assert (limits.cores(), limits.memory_bytes(), limits.memory_left_bytes()) == (1.5, 8 * GB, 0)
    unlimited = write(
        tmp_path,
        {f"{group}/cpu/cpu.cfs_quota_us": "-1", f"{group}/memory/memory.limit_in_bytes": "9223372036854771712"},
    )
    assert (unlimited.cores(), unlimited.memory_bytes(), unlimited.memory_left_bytes()) == (None, None, None)
