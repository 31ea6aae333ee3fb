"""The user's script, which processes that are not forked import as they start. Runs in the main process."""

from __future__ import annotations

import os
import sys
from multiprocessing import spawn

__all__ = ["check_main_module"]


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
