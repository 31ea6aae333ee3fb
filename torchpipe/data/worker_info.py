"""``torch.utils.data.get_worker_info()`` in threads that are workers: what it returns, and generators of their own.

Runs in the user's process, in worker threads.

torch keeps the information in one global of its module, for a process is one worker there. Nobody can make that global
answer by thread, since the function reads it from its module's namespace; and replacing the function in its modules
would miss whoever has imported it before. So, while at least one worker thread lives, the function itself, the object
that everybody has, is given other code: ask the calling thread, and if that is no worker, do what torch's code does.
The global is left as it is: who reads or sets it, such as torch's workers in processes, finds what was there. The last
thread that ends puts torch's code back. A forked child has no worker threads, and begins with torch's code.
"""

from __future__ import annotations

import os
import random
import threading
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_private import WORKER_GENERATORS, worker
from torchpipe.iter._shared.batches import stack_as_torch, stack_without_files
from torchpipe.randomness.seeds import BatchSeeds

__all__ = ["BatchGenerators", "answer", "enter", "is_worker", "leave", "put_info", "thread_fields"]

_torchs: Any = worker.get_worker_info
_torchs_code: CodeType = _torchs.__code__  # kept: a thread may be running it while it is replaced


def _stand_in() -> Any:  # runs with the names of torch's module
    from torchpipe.data.worker_info import answer

    return answer()


_stand_in_code = _stand_in.__code__


class BatchGenerators:
    """The generators of one worker thread, seeded anew for each batch, from (seed, epoch, batch), or for each sample.

    ``rng`` has ``random_generator``, ``torch_generator`` and ``numpy_generator``. The first two give what ``random``
    and torch's default generator give in a worker process, or without workers, for the same batch.
    """

    def __init__(self) -> None:
        self._random, self._torch = random.Random(0), torch.Generator()
        self._seeds, words = BatchSeeds(), np.random.MT19937(0)
        self._numpy = np.random.RandomState(words)  # seeds the words that the generator below draws from
        numpy = np.random.Generator(words)
        self.rng = WORKER_GENERATORS(random_generator=self._random, torch_generator=self._torch, numpy_generator=numpy)

    def seed(self, seed: int, epoch: int, batch: int, sample: int | None = None) -> None:
        for_python, for_numpy, for_torch = self._seeds.of(seed, epoch, batch, sample)
        self._random.seed(for_python)
        self._numpy.seed(for_numpy)
        self._torch.manual_seed(for_torch)


class _Worker(threading.local):
    inside = False
    info: Any = None
    rng: Any = None


class _Switch:
    """The code of torch's function: the stand-in's while there are worker threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._before = _torchs_code
        self.original = _torchs  # a function of the code that was there before

    def enter(self) -> None:
        with self._lock:
            self._threads += 1
            stack_without_files()  # nothing is sent from here
            if _torchs.__code__ is not _stand_in_code:
                self._before = _torchs.__code__
                self.original = FunctionType(self._before, _torchs.__globals__)
                _torchs.__code__ = _stand_in_code

    def leave(self) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads:
                self.restore()

    def restore(self) -> None:
        stack_as_torch()
        if _torchs.__code__ is _stand_in_code:  # else somebody has put other code there since, and keeps it
            _torchs.__code__ = self._before


_worker = _Worker()
_switch = _Switch()


def _after_fork() -> None:
    """The forking thread's values would be here, and the lock as it was; the worker threads are not."""
    global _worker, _switch
    _switch.restore()
    _worker, _switch = _Worker(), _Switch()


os.register_at_fork(after_in_child=_after_fork)


def enter(info: Any, rng: Any) -> None:
    """The calling thread is a worker from now on, until :meth:`leave`."""
    _worker.inside, _worker.info, _worker.rng = True, info, rng
    _switch.enter()


def leave() -> None:
    _worker.inside, _worker.info, _worker.rng = False, None, None
    _switch.leave()


def is_worker() -> bool:
    """True if the calling thread is a worker."""
    return _worker.inside


def put_info(info: Any) -> Any:
    """Let the calling thread, a worker, have ``info``: what it had before."""
    before, _worker.info = _worker.info, info
    return before


def thread_fields() -> dict[str, Any]:
    """The fields of ``WorkerInfo`` that only worker threads have; nothing in another thread."""
    return {"rng": _worker.rng, "worker_method": "thread"} if _worker.inside else {}


def answer() -> Any:
    """The answer of ``get_worker_info()`` to the calling thread."""
    return _worker.info if _worker.inside else _switch.original()
