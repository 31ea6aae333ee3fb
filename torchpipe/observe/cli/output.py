"""The output of a command: to stdout, apart from the prints of the user's code, where it is for programs."""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchpipe.observe.text import plain

__all__ = ["accept_all_characters", "reader_is_gone", "stdout_to_stderr", "tell"]


def accept_all_characters() -> None:
    """Names of the user's may have some that a terminal lacks: escapes stand for these, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send the output to stdout meanwhile, of modules and processes alike, to stderr."""
    stdout, stderr = sys.stdout, sys.stderr
    if stdout is None or stderr is None:  # closed
        yield
        return
    stdout.flush()
    numbers = _number(stdout), _number(stderr)
    kept = None if None in numbers else os.dup(numbers[0])  # type: ignore[arg-type]
    if kept is not None:
        os.dup2(numbers[1], numbers[0])  # type: ignore[arg-type]
    sys.stdout = stderr
    try:
        yield
    finally:
        sys.stdout = stdout
        if kept is not None:
            stdout.flush()  # of who had kept the stream
            os.dup2(kept, numbers[0])  # type: ignore[arg-type]
            os.close(kept)


def _number(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):  # none, as in tests and notebooks, or closed
        return None


def tell(answer: Any) -> None:
    """Text, line by line without what would command a terminal, or a JSON document."""
    text = "\n".join(map(plain, answer.split("\n"))) if isinstance(answer, str) else json.dumps(answer, indent=2)
    print(text, flush=True)


def reader_is_gone() -> bool:
    """True if nobody reads stdout any more, as after ``head``."""
    number = _number(sys.stdout)
    if number is None:
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
