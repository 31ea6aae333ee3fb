"""Which way processes are started, and what a forkserver has imported before it is asked for the first one.

Runs in the main process.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import BaseContext
from pathlib import Path

from torchpipe import errors
from torchpipe.places import NAMES

__all__ = ["PRELOADED", "start_method"]

PRELOADED = (
    "reading_services._workers.dispatcher",
    *sorted({place for names in NAMES.values() for place in names.values()}),
)
"""All that workers may need: what the server has imported, none of them imports."""


def start_method(name: BaseContext | str | None, *, on_device: bool) -> BaseContext:
    """The context ``name``, or of that name. None: forkserver where a device is or will be in use, else the default.

    A forkserver's server, if it does not run yet, imports torch once, for all workers. Raises: ValueError for a name
    that this platform does not have.
    """
    known = multiprocessing.get_all_start_methods()
    if not isinstance(name, BaseContext | None) and name not in known:
        raise ValueError(f"multiprocessing_context must be one of {', '.join(known)} or None, got {name!r}")
    if name is None and "forkserver" in known and (on_device or _accelerator_runtime_lives()):
        # Forking a process that has the runtime's threads is unsafe; a forkserver is forked before they exist.
        name = "forkserver"
    context = name if isinstance(name, BaseContext) else multiprocessing.get_context(name)
    if context.get_start_method() == "forkserver":
        # The server looks for modules in the current folder first, whatever this process's path says: another copy of
        # torchpipe there must not end up in the workers, which would follow this process's path without a preload.
        here = Path("torchpipe")
        shadowed = here.exists() and not here.samefile(Path(errors.__file__).parent)
        context.set_forkserver_preload(["torch"] if shadowed else list(PRELOADED))
    return context


def _accelerator_runtime_lives() -> bool:
    torch = sys.modules.get("torch")
    return "torch_xla" in sys.modules or (torch is not None and torch.cuda.is_initialized())
