"""What the main process knows of each shard: what has arrived, what was used, where a restart must begin. Pure data.

Runs in the main process, in the consumer's thread. No I/O: the supervisor reads decisions here and carries them out.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from reading_services._runtime.messages import ShardStart
from torchpipe.merge import ShardPosition
from torchpipe.shard import Chunk
from torchpipe.state import Cursor

__all__ = ["DeathLedger", "ShardLedger", "restart_delay_s"]

_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 3.0


@dataclass(slots=True)
class ShardLedger:
    """One lane, a shard of a branch, in one epoch.

    At most ``window`` items are granted, on their way, or waiting for the consumer.
    """

    lane: int
    branch: int
    shard: int
    window: int
    cursor: Cursor  # behind the last item that arrived
    count: int  # items of the shard before that point
    over: bool = False  # its end or its error has arrived
    ready: deque[Chunk] = field(default_factory=deque)
    in_use: int = 0  # items of the chunk that the consumer has in hand

    @classmethod
    def begin(cls, position: ShardPosition, window: int) -> ShardLedger:
        return cls(
            lane=position.lane,
            branch=position.branch,
            shard=position.shard,
            window=window,
            cursor=position.cursor,
            count=position.count,
        )

    def arrive(self, chunk: Chunk) -> None:
        self.cursor = self.cursor.after(len(chunk.items), chunk.snapshot)
        self.count += len(chunk.items)
        self.over = chunk.ended or chunk.error is not None
        self.ready.append(chunk)

    def release(self) -> int:
        """The consumer asks for more, so it has used up its chunk: the number of items to grant anew."""
        used, self.in_use = self.in_use, 0
        return 0 if self.over else used

    def take(self) -> Chunk | None:
        """The next chunk for the consumer, or None if it has to wait."""
        if not self.ready:
            return None
        chunk = self.ready.popleft()
        self.in_use = len(chunk.items)
        return chunk

    def restart(self) -> ShardStart:
        """How a new process has to go on with this shard: behind what has arrived, with what is left of the window."""
        held = self.in_use + sum(len(chunk.items) for chunk in self.ready)
        return ShardStart(
            lane=self.lane,
            branch=self.branch,
            shard=self.shard,
            snapshot=self.cursor.snapshot,
            skip=self.cursor.skip,
            count=self.count,
            credit=max(0, self.window - held),
        )


class DeathLedger:
    """Counts deaths by position, to tell bad luck from a position that kills its worker again and again."""

    def __init__(self, max_deaths: int) -> None:
        self.max_deaths = max_deaths
        self._deaths: Counter[tuple[object, ...]] = Counter()

    def record(self, *position: object) -> int:
        """Note a death at ``position``: the number of deaths there so far."""
        self._deaths[position] += 1
        return self._deaths[position]


def restart_delay_s(deaths: int) -> float:
    """How long to wait with a process that has died ``deaths`` times at one position, where it got nowhere.

    At first not at all, then 0.1 s, 0.2 s and so on, to 3 s: what kills it (memory that runs out, a disk that is
    away) gets time to pass, and starting over and over does not take the machine from others.
    """
    return 0.0 if deaths <= 1 else min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(deaths - 2, 30))
