"""The way processes are started, the modules that a forkserver imports before it is asked for the first one, and the
user's script, which processes that are not forked import as they start.

Runs in the main process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import spawn
from multiprocessing.context import BaseContext
from pathlib import Path

from torchpipe import errors
from torchpipe.public_names import NAMES

__all__ = ["PRELOADED", "check_main_module", "default_start_method", "start_method"]

PRELOADED = (
    "reading_services.processes.dispatcher",
    *sorted({path for names in NAMES.values() for path in names.values()}),
)
"""All that workers may need: what the server of forkserver has imported, none of them imports, for itself, again.

For the list of modules that a program gives to ``set_forkserver_preload``.
"""


def start_method(name: BaseContext | str | None, *, on_device: bool) -> BaseContext:
    """The context ``name``, or of that name. None: forkserver where a device is or will be in use, else the default.

    The server of a forkserver that is named here, or chosen here, imports torch once, for all workers. A program has
    one list of what it imports, and none can ask what is on it: whoever gives a context keeps the one that he has set.

    Raises: ValueError for a name that this platform does not have.
    """
    if isinstance(name, BaseContext):
        return name
    methods = multiprocessing.get_all_start_methods()
    if name is not None and name not in methods:
        raise ValueError(f"multiprocessing_context must be one of {', '.join(methods)} or None, got {name!r}")
    if name is None and "forkserver" in methods and (on_device or _accelerator_runtime_lives()):
        # Forking a process that has the runtime's threads is unsafe; a forkserver is forked before they exist.
        name = "forkserver"
    context = multiprocessing.get_context(name or default_start_method())
    if context.get_start_method() == "forkserver":
        # The server looks for modules in the current folder first, whatever this process's path says: another copy of
        # torchpipe there must not end up in the workers, which would follow this process's path without a preload.
        here = Path("torchpipe")
        shadowed = here.exists() and not here.samefile(Path(errors.__file__).parent)
        context.set_forkserver_preload(["torch"] if shadowed else list(PRELOADED))
    return context


def default_start_method() -> str:
    """The name of the program's, or the platform's. multiprocessing's own question would settle it for the program."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _accelerator_runtime_lives() -> bool:
    torch = sys.modules.get("torch")
    return "torch_xla" in sys.modules or (torch is not None and torch.cuda.is_initialized())


def check_main_module(name: str) -> None:
    """Look whether a process that is not forked can begin where this one stands, in whatever script it runs.

    Raises: RuntimeError if it would have to import a script that is no file; FileNotFoundError if it would have to
    begin in a directory that is gone.
    """
    try:
        script = spawn.get_preparation_data(name).get("init_main_from_path")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name} cannot be started: it begins in this process's working directory, which is gone. Change to another"
            " one (os.chdir) first"
        ) from error
    # A frozen program's is in no file, and its processes have it already
    if script is not None and not os.path.exists(script) and not getattr(sys, "frozen", False):
        raise RuntimeError(
            f"{name} cannot be started: it imports the script, and {script} is no file (it was read from standard "
            'input, or is gone). Run it from a file, or use multiprocessing_context="fork"'
        )
