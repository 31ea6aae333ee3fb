"""Keeps torch.compile out of the loader: a loop that is compiled calls it as it is. Runs in the user's process.

Such a loop is left to Python, as one over torch's own loader is, and what it calls is compiled: not the loader's
functions, whose threads, sockets and random states are no tensors. ``torch.compiler.disable`` imports torch's compiler,
which takes a second, so it is used only where that was imported: otherwise there is nothing to be kept out.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from torchpipe.compat.torch_private import COMPILER

__all__ = ["untraced", "without_tracing"]

P = ParamSpec("P")
R = TypeVar("R")

_disabled: dict[Callable[..., Any], Callable[..., Any]] = {}


def without_tracing(function: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """Call ``function``; neither it nor what it calls is traced."""
    # The compiler may see these lines. It takes a variable that is kept elsewhere than in a dict for what it was before
    if function not in _disabled:
        _disabled[function] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return _disabled[function](*args, **options)  # type: ignore[no-any-return]


def untraced(method: Callable[P, R]) -> Callable[P, R]:
    """``method``, which is never traced."""

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        if COMPILER in sys.modules:
            return without_tracing(method, *args, **options)
        return method(*args, **options)

    return call
