"""``spawn``: torch_xla's, for any function; beside it the other names that its users write.

Runs in the process that starts others and in those. torch_xla is imported when it is needed, not before.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

from reading_services.ranks.ordinals import Ordinal, ordinal
from torchpipe.state.pickling import ImagePickler, cloud_dumps
from torchpipe.xla.one_copy import SharedCopy
from torchpipe.xla.serial import SerialExecutor

__all__ = ["Ordinal", "SerialExecutor", "SharedCopy", "ordinal", "spawn"]


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
        return _load_call, (cloud_dumps((self._fn, self._args), ImagePickler),)


def _load_call(data: bytes) -> _Call:
    return _Call(*pickle.loads(data))
