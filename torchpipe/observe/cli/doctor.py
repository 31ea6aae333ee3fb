"""``torchpipe doctor``: what will go wrong on this machine, before it does, and how to mend it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from torchpipe.machine import Limits, format_bytes, visible_cores

__all__ = ["Finding", "examine"]

_FEW_FILES = 4096  # a worker takes some 8 descriptors, each file that a pipeline holds open one
_LITTLE_MEMORY = 2 << 30  # a worker that imports torch takes some 200 MB
_LITTLE_SHM = 1 << 30
_PATIENCE_S = 60.0  # for a worker's first item


@dataclass(frozen=True)
class Finding:
    """``level``: ``ok``; ``note``, which may matter; ``problem``, which will. ``mend`` says what to do about it."""

    about: str
    level: Literal["ok", "note", "problem"]
    text: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.level:<7}  {self.about}: {self.text}" + (f"\n         {self.mend}" if self.mend else "")

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def examine(*, start_processes: bool = True) -> list[Finding]:
    """All findings. ``start_processes``: run a small pipeline with each start method (some seconds)."""
    findings = [*_versions(), *_accelerators(), *_memory(), *_limits(), *_extras()]
    return findings + (list(_start_methods()) if start_processes else [])


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("versions", "ok", f"Python {python}, torch {torch.__version__}, {sys.platform}")
    if not sys.platform.startswith("linux"):
        yield Finding(
            "platform",
            "note",
            f"{sys.platform} is not tested: workers may outlive a main process that is killed",
            "Run on Linux, or end leftover processes yourself after a crash.",
        )


def _accelerators() -> Iterator[Finding]:
    if torch.cuda.is_available():
        yield Finding("CUDA", "ok", f"{torch.cuda.device_count()} device(s), CUDA {torch.version.cuda}")
    elif torch.version.cuda:
        yield Finding(
            "CUDA",
            "note",
            f"torch is built for CUDA {torch.version.cuda}, and sees no device",
            "If there should be one: nvidia-smi, the driver's version, and CUDA_VISIBLE_DEVICES say more.",
        )
    xla = _installed("torch_xla")
    if xla is None:
        return
    ours = torch.__version__.partition("+")[0]
    if xla.split(".")[:2] != ours.split(".")[:2]:
        yield Finding(
            "XLA",
            "problem",
            f"torch_xla {xla} is beside torch {ours}: it only works with the torch of its own version",
            f"pip install torch=={xla.partition('+')[0]}",
        )
    elif not os.environ.get("PJRT_DEVICE"):
        yield Finding(
            "XLA",
            "note",
            f"torch_xla {xla} is installed, and PJRT_DEVICE is not set",
            "Set PJRT_DEVICE=TPU, CUDA or CPU, or torch_xla guesses.",
        )
    else:
        yield Finding("XLA", "ok", f"torch_xla {xla}, PJRT_DEVICE={os.environ['PJRT_DEVICE']}")


def _memory() -> Iterator[Finding]:
    limit = Limits().memory_bytes()
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = whole if limit is None else min(limit, whole)
    text = f"{format_bytes(most)} may be used" + (
        "" if most == whole else f", by this container's limit ({format_bytes(whole)} there are)"
    )
    if most < _LITTLE_MEMORY:
        yield Finding(
            "memory",
            "note",
            text,
            "A worker takes some 200 MB and its share of worker_prefetch_bytes: take few of them.",
        )
    else:
        yield Finding("memory", "ok", text)
    cores, quota = visible_cores(), Limits().cores()
    if quota is not None and quota < cores:
        yield Finding(
            "CPU",
            "note",
            f"{cores} cores are visible, and this container may use {quota:g} of them",
            f"More than {max(1, round(quota))} busy workers only take turns, and so do more threads of torch.",
        )
    else:
        yield Finding("CPU", "ok", f"{cores} cores")
    yield from _shared_memory()


def _shared_memory() -> Iterator[Finding]:
    if not hasattr(os, "memfd_create"):
        yield Finding(
            "shared memory", "note", "no memfd_create: batches travel through files in /dev/shm, or are copied", ""
        )
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        yield Finding(
            "/dev/shm",
            "problem",
            "it is missing or cannot be written, and semaphores and locks of multiprocessing need it",
            "docker run --shm-size=1g, or mount a tmpfs there.",
        )
        return
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_SHM:
        yield Finding(
            "/dev/shm",
            "note",
            f"{format_bytes(free)} free: torchpipe's batches do not go there, but those of torch's own DataLoader do, "
            "and it ends with 'bus error' when it is full",
            "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm.",
        )
    else:
        yield Finding("/dev/shm", "ok", f"{format_bytes(free)} free")


def _limits() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "any number" if soft == resource.RLIM_INFINITY else str(soft)
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        yield Finding(
            "open files",
            "note",
            f"{shown} at a time: enough for a few workers, not for many open shards ('Too many open files')",
            f"ulimit -n {'65536' if hard == resource.RLIM_INFINITY else hard}, in the shell that starts the training.",
        )
    else:
        yield Finding("open files", "ok", f"{shown} at a time")
    numbers = [Limits().processes(), resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    limits = [number for number in numbers if number is not None and number != resource.RLIM_INFINITY]
    if limits and min(limits) < 512:
        yield Finding(
            "processes",
            "note",
            f"{min(limits)} processes and threads at most: a worker that imports torch may start one for each core",
            "docker run --pids-limit=-1, ulimit -u, or OMP_NUM_THREADS=1.",
        )
    else:
        yield Finding("processes", "ok", f"{min(limits) if limits else 'any number of'} processes and threads")
    address, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address != resource.RLIM_INFINITY:
        yield Finding(
            "address space",
            "note",
            f"limited to {format_bytes(address)}, which mapped files and shared memory count against",
            "ulimit -v unlimited; limit memory by a cgroup instead.",
        )


def _extras() -> Iterator[Finding]:
    try:
        wanted = metadata.requires("torchpipe-data") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "extras",
            "note",
            "torchpipe is not installed, only importable: its extras are not known",
            "pip install -e .",
        )
        return
    missing: dict[str, list[str]] = {}
    for line in wanted:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match and match[2] not in ("test", "check", "demo", "trainers", "docs") and _installed(match[1]) is None:
            missing.setdefault(match[2], []).append(match[1])
    if not missing:
        yield Finding("extras", "ok", "all are installed")
    for extra, packages in missing.items():
        yield Finding(
            f"extra {extra}",
            "note",
            f"{', '.join(packages)} not installed",
            f"If you use it: pip install {' '.join(packages)}",
        )


def _installed(package: str) -> str | None:
    """Its version; None if it is not there or cannot be found."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _start_methods() -> Iterator[Finding]:
    for name in torch.multiprocessing.get_all_start_methods():
        error = _runs_with(name)
        if error is None:
            yield Finding(f"start method {name}", "ok", "a worker started, made items and ended")
        else:
            yield Finding(
                f"start method {name}",
                "problem",
                f"a worker did not get on: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                "Choose another one: MultiProcessingReadingService(multiprocessing_context=...).",
            )


def _runs_with(method: str) -> Exception | None:
    from torchpipe.data.loader import DataLoader

    items: Any = [0, 1, 2]
    try:
        with DataLoader(
            items, batch_size=None, num_workers=1, multiprocessing_context=method, timeout=_PATIENCE_S
        ) as loader:
            return None if list(loader) == items else RuntimeError("its items were not those that were asked for")
    except Exception as error:
        return error
