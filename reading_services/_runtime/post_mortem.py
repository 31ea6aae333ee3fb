"""What is said of a process that has died: how, where in the stream, and, if it is no accident, the error. No I/O.

Runs in the main process. Imports ``torchpipe`` only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchpipe.errors import WorkerDiedError

__all__ = ["PostMortem"]


@dataclass(frozen=True, kw_only=True)
class PostMortem:
    """``lane`` and ``shard`` are -1 where no item was being made.

    With ``dispatcher``, items are those of the dispatched stream. ``items`` were begun together: one of them, if any,
    is what killed the process.
    """

    name: str
    pid: int
    cause: str
    dispatcher: bool
    lane: int
    shard: int
    items: range
    node: str | None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) {self.cause} while making {self._item()}"

    def _item(self) -> str:
        if self.shard < 0:
            return "no item (starting, or waiting for the consumer)"
        item = f"item {self.items[0]}" if len(self.items) == 1 else f"one of items {self.items[0]} to {self.items[-1]}"
        return f"{item} of " + ("the dispatched stream" if self.dispatcher else f"shard {self.shard}")

    def error(self, deaths: int) -> WorkerDiedError:
        """The error for a position that has killed its process ``deaths`` times."""
        where = f" in {self.node}" if self.node is not None else ""
        guard = (
            ""
            if self.shard >= 0
            else 'Under forkserver and spawn, a script needs `if __name__ == "__main__":` around '
            "what starts the loader: each process runs the rest of it. "
        )
        return WorkerDiedError(
            f"{self}{where}: death number {deaths} at this position, so no accident. {guard}SIGKILL often means that "
            "memory ran out, SIGSEGV a crash in native code, an exit code that user code called exit(). Run the graph "
            "with InProcessReadingService to see it happen in a debugger"
        )
