"""Ctrl-C, or what another signal's handler raises, at a chosen instruction: wherever Python looks for signals, which is
behind calls, at the start of functions and at the end of each round of a loop. Used by tests alone.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["Alarm", "Handler", "Interrupt", "Interrupter", "Late", "before_first"]

_MODULES = ("torchpipe", "torch.random", "random", "contextlib")
_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
_names: dict[CodeType, dict[int, str]] = {}


def before_first(step: int) -> int:
    """Where to count from, by ``step``, so that the first place is among the first ``step``.

    In CI the places are the same in each run; elsewhere they are others, as hypothesis has other examples.
    """
    return 0 if os.environ.get("CI") else random.SystemRandom().randrange(1 - step, 1)


class Interrupt(KeyboardInterrupt):
    """The planted one."""


class Alarm(Exception):
    """One that is an exception like others, as handlers of SIGALRM raise it."""


class Late(TimeoutError):
    """One that is an exception as sockets and files raise them."""


def _name(code: CodeType, offset: int) -> str:
    if code not in _names:
        _names[code] = {item.offset: item.opname for item in dis.get_instructions(code)}
    return _names[code].get(offset, "")


def _is_in_finalizer(frame: FrameType | None) -> bool:
    """Python prints what is raised there, and goes on: nobody would be interrupted."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Interrupter:
    """Within ``with``, raises :class:`Interrupt`, or another ``kind``, at the ``number``-th place in this thread.

    ``hit`` says where that was. Places are those in ``modules``, a tuple of how their names begin, but for finalizers.
    Nothing is collected meanwhile: what Python calls for the sake of others' garbage is no place of this code.
    """

    def __init__(self, number: int, modules: tuple[str, ...] = _MODULES, kind: type[BaseException] = Interrupt) -> None:
        self.hit: str | None = None
        self._kind = kind
        self._modules = modules
        self._left = number
        self._last: dict[int, str] = {}
        self._pid = os.getpid()
        self._collects = True

    def __enter__(self) -> Interrupter:
        self._collects = gc.isenabled()
        gc.disable()
        sys._getframe().f_trace_opcodes = True  # Python 3.12: without it on some frame before, settrace tells of none
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        if self._collects:
            gc.enable()

    def _enter_function(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(self._modules) or os.getpid() != self._pid:
            return None  # a forked child's places are not counted
        if _is_in_finalizer(frame):
            return None
        frame.f_trace = self._step  # Python 3.13: before the next line, which tells of no instruction otherwise
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._last.pop(id(frame), None)
        elif event == "exception":  # what raised does not look
            self._last[id(frame)] = ""
        elif event == "opcode":
            last, self._last[id(frame)] = self._last.get(id(frame), ""), _name(frame.f_code, frame.f_lasti)
            if last.startswith(_LOOKS) and not last.startswith("CALL_INTRINSIC"):
                self._left -= 1
                if not self._left:
                    self.hit = f"{frame.f_code.co_qualname}, line {frame.f_lineno} of {frame.f_code.co_filename}"
                    sys.settrace(None)
                    self._strike()
        return self._step

    def _strike(self) -> None:
        raise self._kind


class Handler(Interrupter):
    """A signal's handler that calls ``action`` there, keeps what came of it as ``result``, and returns."""

    def __init__(self, number: int, modules: tuple[str, ...], action: Callable[[], Any]) -> None:
        super().__init__(number, modules)
        self._action = action
        self.result: Any = None

    def _strike(self) -> None:
        try:
            self.result = self._action()
        except Exception as error:
            self.result = error.with_traceback(None)  # whose frames hold all that was at work
