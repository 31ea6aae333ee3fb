"""``with loader.watch():``: a live table of what loaders do, on whatever there is to draw on.

One thread for all that are watched in a process: it looks at ``loader.stats()`` now and then, and ends with the last
watch. In a forked child nothing is watched.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from torchpipe.observe.text import FigureSource, check_seconds
from torchpipe.observe.views.screen import Lines, Notebook, Pace, Screen, drawn, page, progress_line, screen_here

if TYPE_CHECKING:
    from torchpipe.loader.observing import Looks

__all__ = ["Watch", "begin_watch", "watch_while_it_runs"]


class Watch:
    """A loader that is shown live until :meth:`close`, or the end of the ``with`` block.

    ``until_idle``: only for the epoch of ``iterator``, and without keeping that alive, nor the loader: what is shown
    last is what they came to, also where both have been dropped by then.
    """

    def __init__(self, loader: Looks, every_s: float, *, until_idle: bool = False, iterator: Any = None) -> None:
        self.every_s = every_s
        self._weak = weakref.ref(loader)
        self._iterator: Callable[[], Any] | None = None
        self._figures: FigureSource | None = None  # what knows the figures without these two
        self.follow(loader, iterator)
        self._kept = None if until_idle else loader
        self._until_idle = until_idle
        self._pace = Pace()
        self._measured: bool | None = None  # what the loader said before
        self.lines: list[str] = []

    def follow(self, loader: Looks, iterator: Any) -> None:
        """From now on, watch another epoch of the loader."""
        if hasattr(iterator, "figures_handle"):
            self._iterator, self._figures = weakref.ref(iterator), iterator.figures_handle
        elif iterator is not None:  # it has the loader, and tells it what it has come to as it ends
            self._figures = loader

    @property
    def loader(self) -> Looks | None:
        return self._weak()

    def measure(self) -> None:
        """Let the loader measure its nodes as long as this is open: in passes that begin from now on."""
        if self._kept is not None:
            self._measured, self._kept.measuring = self._kept.measuring, True

    @property
    def open(self) -> bool:
        """True if it is shown."""
        return self in _watcher.watches

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Show how it stands now, for the last time. Idempotent."""
        _watcher.remove(self)
        if self._kept is not None and self._measured is not None:
            self._kept.measuring = self._measured
        self._kept = self._measured = None

    def look(self, screen: Screen) -> bool:
        """Take the figures: False if there is no more to watch."""
        loader: FigureSource | None = self.loader
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None:
            self._figures = iterator.figures_handle  # as it stands now
        if loader is None:
            loader = self._figures
        if loader is None:
            return False
        stats = loader.stats()
        rate = self._pace.rate(stats, time.monotonic())
        if isinstance(screen, Lines):
            self.lines = [progress_line(stats, rate)]
        elif isinstance(screen, Notebook):
            self.lines = [page(stats, rate)]
        else:
            self.lines = drawn(stats, rate, screen.width, encoding=screen.encoding)
        if self._until_idle and self.loader is None and iterator is None:
            return False
        return stats.state == "running" or not self._until_idle


class _Watcher:
    """All watches of this process, the thread that looks at them, and what it draws on."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.writing = threading.Lock()  # held across a fork, too: a child must find no stream locked
        self.watches: list[Watch] = []
        self._screen: Screen | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        """Raises: RuntimeError if its loader is watched already."""
        with self.lock:
            if any(other.loader is watch.loader for other in self.watches):
                raise RuntimeError(
                    "this loader is being watched already: end that watch first (close(), or its `with` block; with "
                    "TORCHPIPE_WATCH=1 every loader is watched while it runs)"
                )
            if self._screen is None:
                self._screen = _screen()
            _look(watch, self._screen)  # here, so that all that it imports is there before a process is forked
            self.watches.append(watch)
            self._show(self._screen)
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._wake,), name="torchpipe-watch", daemon=True
                )
                self._thread.start()

    def remove(self, watch: Watch) -> None:
        with self.lock:
            thread = self._thread
            if watch in self.watches:
                self._end(watch)
            if self.watches:
                return
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _end(self, watch: Watch) -> None:
        self.watches.remove(watch)
        screen = self._screen
        if screen is None:
            return
        _look(watch, screen)
        with self.writing:
            screen.leave(watch.lines)
            if self.watches:
                return
            screen.close()
        self._screen = self._thread = None
        self._wake.set()

    def _show(self, screen: Screen) -> None:
        lines = [line for watch in self.watches for line in watch.lines]
        with self.writing:
            screen.show(lines)

    def _run(self, wake: threading.Event) -> None:
        pause_s = 0.0
        while not wake.wait(pause_s):
            with self.lock:
                screen = self._screen
                if wake.is_set() or screen is None:
                    return
                self.sweep()
                if wake.is_set():
                    return
                self._show(screen)
                pause_s = min(watch.every_s for watch in self.watches)

    def sweep(self) -> None:
        """End those whose epoch is over."""
        screen = self._screen
        if screen is not None:
            for watch in [watch for watch in self.watches if not _look(watch, screen)]:
                self._end(watch)

    def close(self) -> None:
        """At exit: the terminal is as it was."""
        for watch in list(self.watches):
            self.remove(watch)

    def forget(self) -> None:
        """In a forked child, all of it belongs to the parent."""
        self.__init__()  # type: ignore[misc]


def _look(watch: Watch, screen: Screen) -> bool:
    try:
        return watch.look(screen)
    except OSError:  # the terminal is gone
        return False


def _screen() -> Screen:
    """Without rich, lines do."""
    screen = screen_here()
    if not isinstance(screen, Lines):
        try:
            import rich  # noqa: F401
        except ImportError:
            return Lines()
    return screen


_watcher = _Watcher()
atexit.register(_watcher.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _watcher.writing.acquire() and None,
        after_in_parent=lambda: _watcher.writing.release(),
        after_in_child=_watcher.forget,
    )


def begin_watch(loader: Looks, every_s: float) -> Watch:
    """Watch ``loader`` from now on.

    Raises: RuntimeError in a worker process, or if it is watched already; ValueError, TypeError for ``every_s``.
    """
    check_seconds(every_s)
    if _in_worker():
        raise RuntimeError(
            "watch() was called in a worker process, whose terminal is that of the main process: watch the loader that "
            "the training loop iterates, which shows its workers too"
        )
    watch = Watch(loader, every_s)
    _watcher.add(watch)
    watch.measure()
    return watch


def watch_while_it_runs(loader: Any, iterator: Any) -> None:
    """Watch ``loader``, which has just begun ``iterator``, unless it is watched or this is a worker process."""
    with _watcher.lock:
        _watcher.sweep()
        if _in_worker():
            return
        other = next((watch for watch in _watcher.watches if watch.loader is loader), None)
        if other is not None:
            other.follow(loader, iterator)
        else:
            _watcher.add(Watch(loader, 0.5, until_idle=True, iterator=iterator))


def _in_worker() -> bool:
    """Workers are daemonic, as torch's are; processes of ranks are not."""
    import torch

    return bool(torch.multiprocessing.current_process().daemon)
