"""Which part of a run this process or thread is (``ordinal``), and ``spawn``: torch_xla's, for any function.

Runs in the process that starts others and in those. torch_xla is imported when it is needed, not before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch.distributed as dist

from torchpipe.compat.xla_private import runtime_runs
from torchpipe.node.validate import check_count
from torchpipe.xla.one_copy import SharedCopy
from torchpipe.xla.serial import SerialExecutor

__all__ = ["Ordinal", "SerialExecutor", "SharedCopy", "ordinal", "spawn"]


@dataclass(frozen=True, slots=True)
class Ordinal:
    """This process or thread is number ``rank`` of the ``world_size`` that divide the stream."""

    rank: int
    world_size: int


def ordinal(rank: int | None = None, world_size: int | None = None) -> Ordinal:
    """Which part of the run this process, or thread of ``xmp.spawn``, is: as given, or as the surroundings say.

    Asked are the XLA runtime, if it has been started here (under SPMD, where one process drives all devices, its
    process index), torch.distributed, if initialized, and ``RANK`` and ``WORLD_SIZE`` as torchrun sets them. Those that
    say 0 of 1 know of no others and do not count. Call it in the thread that it is about.

    Raises: ValueError if only one is given, if ``rank`` is not below ``world_size``, or if two sources differ.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"give both rank and world_size, or none of them; got rank={rank}, world_size={world_size}")
    if rank is not None and world_size is not None:
        return _checked(rank, world_size)
    found = {name: source for name, source in _sources().items() if source.world_size > 1}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} says {source.rank} of {source.world_size}" for name, source in found.items())
        raise ValueError(f"it is not clear which part of the run this is: {shown}. Give rank and world_size")
    return next(iter(found.values()), Ordinal(0, 1))


def _checked(rank: int, world_size: int) -> Ordinal:
    world_size, rank = check_count("world_size", world_size, at_least=1), check_count("rank", rank, at_least=0)
    if rank >= world_size:
        raise ValueError(f"rank must be below world_size, got rank={rank}, world_size={world_size}")
    return Ordinal(rank, world_size)


def _sources() -> Mapping[str, Ordinal]:
    found = {}
    if "torch_xla" in sys.modules:
        source = _of_xla()
        if source is not None:
            found["the XLA runtime"] = source
    if dist.is_available() and dist.is_initialized():
        found["torch.distributed"] = Ordinal(dist.get_rank(), dist.get_world_size())
    environment = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if all(environment):
        try:
            numbers = [int(value or "") for value in environment]
        except ValueError:
            raise ValueError(
                f"RANK={environment[0]!r} and WORLD_SIZE={environment[1]!r} in the environment are no numbers: mend "
                "them, or give rank and world_size"
            ) from None
        found["the environment"] = _checked(*numbers)
    return found


def _of_xla() -> Ordinal | None:
    import torch_xla.runtime as runtime

    if not runtime_runs():  # asking would start it, and workers can no longer be forked then
        return None
    asked: Any = runtime
    if asked.is_spmd():
        return Ordinal(asked.process_index(), asked.process_count())
    return Ordinal(asked.global_ordinal(), asked.world_size())


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """``xmp.spawn`` of torch_xla 2.9, for any function: ``fn(index, *args)`` once for each device of this host.

    torch_xla decides about processes and threads: on TPUs a process for each chip, on the CPU one process with a thread
    for each device; ``nprocs=1`` calls ``fn`` here. ``fn`` and ``args`` may be lambdas and local functions under any
    start method. An error has a note that says which ordinal raised it.

    Raises: what ``fn`` raises; ValueError for other ``nprocs``, and for ``join=False`` or ``daemon=True``, which
    torch_xla takes and ignores; ImportError without torch_xla.
    """
    if not callable(fn):
        raise TypeError(f"spawn() calls fn(index, *args), got {fn!r}, which is no function")
    if not join or daemon:
        raise ValueError(f"spawn() always waits for its processes, got join={join}, daemon={daemon}: leave them out")
    if nprocs not in (None, 1):
        raise ValueError(
            f"nprocs must be None, for all devices of this host, or 1, got {nprocs!r}: set CPU_NUM_DEVICES or "
            "TPU_NUM_DEVICES in the environment to use fewer"
        )
    try:
        import torch_xla.distributed.xla_multiprocessing as xmp
    except ImportError as error:
        raise ImportError(
            f"spawn() needs torch_xla ({error}): pip install torch==2.9.0 torch_xla==2.9.0", name="torch_xla"
        ) from error
    multiprocessing: Any = xmp
    multiprocessing.spawn(_Call(fn, args), nprocs=nprocs, start_method=start_method)


class _Call:
    """``fn(index, *args)``, pickled by cloudpickle where it is pickled."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn, self._args = fn, args

    def __call__(self, index: int) -> None:
        try:
            self._fn(index, *self._args)
        except BaseException as error:
            error.add_note(f"torchpipe: raised in ordinal {index}, process {os.getpid()}")
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_call, (cloudpickle.dumps((self._fn, self._args)),)


def _load_call(data: bytes) -> _Call:
    return _Call(*cloudpickle.loads(data))
