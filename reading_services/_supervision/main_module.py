"""The user's script, which processes that are not forked import as they start.

Runs in the main process, and in a worker whose script starts a loader while it is being imported.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import spawn

__all__ = ["NO_GUARD_CODE", "WORKER_NAME", "check_main_module", "missing_guard"]

WORKER_NAME = "torchpipe-"  # what the names of our processes begin with
NO_GUARD_CODE = 117  # of one that found that the user's script has no guard


def check_main_module(name: str, method: str) -> None:
    """Look whether a process can be started at all from where this one stands, in whatever script it runs.

    A worker of ours that is importing the user's script must not have workers itself: it is ended here.
    multiprocessing raises an error there too; it prints its traceback, and the main process learns nothing.

    Raises: RuntimeError if the process would have to import a script that is no file; FileNotFoundError if it would
    have to begin in a directory that is gone.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False) and process.name.startswith(WORKER_NAME):
        sys.stdout.flush()
        os._exit(NO_GUARD_CODE)
    if method == "fork":
        return
    try:
        script = spawn.get_preparation_data(name).get("init_main_from_path")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name} cannot be started: under {method!r} it begins in this process's working directory, which is gone. "
            "Change to another one (os.chdir) first"
        ) from error
    # A frozen program's is in no file, and its processes have it already
    if script is not None and not os.path.exists(script) and not getattr(sys, "frozen", False):
        raise RuntimeError(
            f"{name} cannot be started: under {method!r} it imports the script, and {script} is no file (it was read "
            'from standard input, or is gone). Run it from a file, or use multiprocessing_context="fork"'
        )


def missing_guard(name: str, method: str) -> RuntimeError:
    """What to raise if a process ended with :data:`NO_GUARD_CODE`."""
    script = getattr(sys.modules.get("__main__"), "__file__", "your script")
    return RuntimeError(
        f"{name} could not start: under {method!r} it imports {script}, and that iterates a loader again, outside of "
        'any function. Put what your script does behind `if __name__ == "__main__":` (definitions and imports stay '
        'above it), or use multiprocessing_context="fork"'
    )
