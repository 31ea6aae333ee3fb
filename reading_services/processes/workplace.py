"""Workers that are processes of this machine: how they start, and what they are sent. Runs in the main process."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

from reading_services.engine.workers import Section, WorkerPool, Workplace
from reading_services.processes.graph_image import GraphImage

__all__ = ["Processes"]


@dataclass(frozen=True)
class Processes(Workplace):
    """Processes that ``context`` starts. ``inherits``: those that are forked have the graph as it is then, and need no
    pickle of it.
    """

    context: BaseContext
    inherits: bool = False

    worker = "worker process"
    kind = "process"

    def __post_init__(self) -> None:
        # Here, since workers import this module and need none of it, and not at the first epoch, which it would delay.
        import reading_services.processes.pool  # noqa: F401

    @property
    def method(self) -> str:  # type: ignore[override]
        return self.context.get_start_method()

    @property
    def advice(self) -> str:  # type: ignore[override]
        return '. multiprocessing_context="fork" needs no pickling' if self.inherits else ""

    def open_pool(
        self, shards: Section, dispatched: Section | None = None, *, silent_s: float | None = None
    ) -> WorkerPool:
        from reading_services.processes.pool import ProcessPool

        return ProcessPool(self.context, shards, dispatched, silent_s=silent_s)

    def image(self, *parts: Any) -> GraphImage:
        return (GraphImage.inherited if self.inherits and self.method == "fork" else GraphImage.of)(*parts)

    def forget(self, image: GraphImage) -> None:
        image.close()

    def described(self, workers: int) -> str:
        return f"{workers} worker processes ({self.method})"

    def check(self) -> None:
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                f"{multiprocessing.current_process().name} is a daemonic process, which may have no children, so no "
                "worker can be started here: use num_workers=0 (in a reading service with num_shards=..., and the "
                "stream is the same), or start this process with daemon=False. Workers of torch's DataLoader and of "
                "pools are daemonic"
            )
