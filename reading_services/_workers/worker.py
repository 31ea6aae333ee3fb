"""The loop of a worker process: take messages, produce chunks of the shards that have credit, send them.

Runs as the main thread of a worker. It owns the shards of the present epoch and its end of the channel. Its waits: for
a message, when no shard has credit (ends with a message, or when the main process is gone); for room in the socket.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from reading_services._transport.arena import Arena
from reading_services._transport.channel import Channel, ChannelClosed, Frame, SocketChannel
from reading_services._transport.graph_image import GraphImage
from reading_services._transport.items import unsendable
from reading_services._transport.messages import (
    ChunkMessage,
    Deal,
    EndEpoch,
    Failed,
    Grant,
    Message,
    Notice,
    Ready,
    ShardStart,
    StartEpoch,
    Stop,
)
from reading_services._transport.payloads import Packer, shortage_text
from reading_services._transport.status_page import PageTrace, StatusPage
from reading_services._workers.dealt import DealtSupply
from reading_services._workers.dispatch_link import RemoteSupply, Superseded, connect
from reading_services._workers.left_out import LeftOutItems
from reading_services._workers.parent import watch_parent
from torchpipe.errors import ReplayWarning
from torchpipe.execution.shard import Chunk, InitFn, ResetFn, Shard, ShardGraphs
from torchpipe.node.failures.failure import add_note
from torchpipe.node.failures.remote_error import dump_error
from torchpipe.node.traits import DataPipe
from torchpipe.state import Cursor, SnapshotPolicy
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, IDLE, MAKING, SENDING, STARTING
from torchpipe.stats.tracing import Tracing

__all__ = ["Worker", "WorkerSetup", "run_worker", "serve", "tracing"]

_CHUNK_S = 0.002  # no further item is begun after this: longer chunks would keep a waiting consumer waiting
_HUNGRY_S = 0.0003  # the same, if the consumer has used up all: long enough to make up for the cost of a chunk
_CHUNK_BYTES = 1 << 20  # a chunk costs the consumer 50 us or so, whatever is in it
_PICKLE_BYTES = 256 << 10  # of these: what is read once more, and best out of the cache
_CHUNK_ITEMS = 4096
_QUICK_CHUNKS = 10  # of items that are dealt, small and quickly made: so many chunks may be ahead in any case


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker process starts with. ``graph`` is the image of (branches, init_fn, reset_fn, policy)."""

    worker: int
    graph: GraphImage
    parent_pid: int
    death_signal: bool
    inherited_fds: tuple[int, ...]  # of the main process: a forked child has copies, which would keep them open
    ignored_signals: tuple[int, ...]  # besides Ctrl-C; blocked while the process is being started


def run_worker(setup: WorkerSetup, sock: socket.socket, page: StatusPage, arena: Arena) -> None:
    """The entry point of the process."""

    def run(channel: SocketChannel) -> None:
        graphs, init_fn, reset_fn, policy = setup.graph.load()
        setup.graph.close()
        with closing(Worker(setup.worker, channel, page, graphs, init_fn, reset_fn, policy, arena)) as worker:
            worker.run()

    serve(setup, sock, page, run)


def serve(setup: WorkerSetup, sock: socket.socket, page: StatusPage, run: Callable[[SocketChannel], None]) -> None:
    """What worker and dispatcher processes have in common: set the process up, say Ready, ``run`` until the end."""
    gc.freeze()  # what a forked process has inherited is not its own to finalize: groups with threads, say
    _set_signals(setup.ignored_signals)
    for fd in setup.inherited_fds:
        os.close(fd)
    watch_parent(setup.parent_pid, page, death_signal=setup.death_signal)
    torch.set_num_threads(1)
    channel = SocketChannel(sock, queued=False)
    try:
        channel.send(Ready(pid=os.getpid()))
        try:
            with _on_the_cpu():
                run(channel)
        except ChannelClosed:
            raise
        except Exception as error:  # the graph cannot be rebuilt here, or the runtime itself is at fault
            name = "the dispatcher" if setup.worker < 0 else f"worker {setup.worker}"
            add_note(error, f"torchpipe: in {name} (pid {os.getpid()}), which cannot go on")
            channel.send(Failed(error=dump_error(error)))
    except ChannelClosed:
        pass  # the main process has gone or has given this worker up


def _on_the_cpu() -> AbstractContextManager[Any]:
    """A forked process has the main one's default device too, where nothing that is to be sent can be made."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _set_signals(ignored: tuple[int, ...]) -> None:
    """A forked process has the main one's handlers, which are not meant for it: saving a checkpoint on SIGTERM, say."""
    for number in (signal.SIGINT, *ignored):  # they go to the whole group; the main process decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, [signal.SIGINT, *ignored]
        )  # blocked while the process was being started


@dataclass(slots=True)
class _Lane:
    """A shard of a branch at work. ``ahead`` has the sizes in bytes of the chunks that the consumer has not used up."""

    shard: Shard
    doubtful: int
    ahead: deque[int]
    limit: int = 1  # items of a chunk; the first is sent at once
    quick: bool = False  # did the last chunk hold several items?

    def may_go_on(self, window: int, window_bytes: int, *, dealt: bool) -> bool:
        if dealt and self.quick:  # how many items that may be is up to whoever deals
            window = max(window, _QUICK_CHUNKS)
        return len(self.ahead) < window and (len(self.ahead) < 2 or sum(self.ahead) < window_bytes)

    def sent(self, items: int, sizes: tuple[int, ...]) -> None:
        """``items`` are on their way, whose pickle and buffers have these sizes in bytes."""
        self.ahead.append(sum(sizes))
        self.quick = items > 1
        if items:
            fitting = items * min(_CHUNK_BYTES / max(1, sum(sizes)), _PICKLE_BYTES / max(1, sizes[0]))
            self.limit = max(1, min(_CHUNK_ITEMS, round(fitting)))


class Worker:
    """The loop itself, apart from the process around it, so that a test can drive it through a MemoryChannel."""

    def __init__(
        self,
        worker: int,
        channel: Channel,
        page: StatusPage,
        graphs: tuple[DataPipe, ...],
        init_fn: InitFn | None,
        reset_fn: ResetFn | None,
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
        arena: Arena | None = None,
    ) -> None:
        self._worker = worker
        self._channel = channel
        self._page = page
        self._times = page.times
        self._graphs = ShardGraphs(graphs, init_fn)
        self._reset_fn = reset_fn
        self._policy = policy
        self._packer = Packer(arena)
        self._told_of_shortage = False
        self._epoch: StartEpoch | None = None
        self._supply: RemoteSupply | DealtSupply | None = None
        self._early: list[Deal] = []  # of a generation that has yet to begin
        self._lanes: dict[int, _Lane] = {}
        self._turns: list[int] = []
        self._left_out = LeftOutItems()
        self._installed: Shard | None = None  # whose global random states are in place

    def run(self) -> None:
        """Serve until told to stop. Raises: ChannelClosed when the main process is gone, or has cut the connection."""
        frame: Frame | None = None
        while True:
            try:
                lane = None if frame is not None else self._next_lane()
                if frame is None and lane is None:
                    self._times.turn_to(self._awaited())
                frame = frame or self._channel.receive(wait=lane is None)
                if frame is not None:
                    message, frame = frame[0], None
                    if isinstance(message, Stop):
                        return
                    self._handle(message)
                elif lane is not None:
                    self._produce(lane)
            except Superseded:
                self._page.rest()
                assert isinstance(self._supply, RemoteSupply)
                frame = self._supply.instead
                if frame is None:
                    raise ChannelClosed("the main process is gone") from None

    def _awaited(self) -> int:
        """What it is that nothing can be made without."""
        if self._epoch is None or not self._turns:
            return IDLE
        if isinstance(self._supply, DealtSupply) and not any(map(self._supply.left, self._turns)):
            return AWAITING_INPUT
        return AWAITING_CREDIT

    def _next_lane(self) -> int | None:
        epoch = self._epoch
        if epoch is not None:
            supply = self._supply if isinstance(self._supply, DealtSupply) else None
            for place, lane in enumerate(self._turns):
                at_hand = supply is None or supply.left(lane)
                if at_hand and self._lanes[lane].may_go_on(epoch.window, epoch.window_bytes, dealt=supply is not None):
                    self._turns.append(self._turns.pop(place))  # the next turn is another's
                    return lane
        return None

    def _handle(self, message: Message) -> None:
        match message:
            case StartEpoch():
                self._times.turn_to(STARTING)
                self._times.count_cpu()
                self._end_epoch()
                self._epoch = message
                self._supply = self._connect(message)
                for start in message.shards:
                    self._start_lane(message, start)
                self._take_grants()  # a shard that starts after dropped items waits for them
            case Grant(generation=generation, lane=lane, chunks=chunks):
                if self._epoch is not None and generation == self._epoch.generation and lane in self._lanes:
                    ahead = self._lanes[lane].ahead
                    for _ in range(min(chunks, len(ahead))):
                        ahead.popleft()
            case EndEpoch(generation=generation):
                if self._epoch is not None and generation == self._epoch.generation:
                    self._end_epoch()
            case Deal():
                supply, epoch = self._supply, self._epoch
                if isinstance(supply, DealtSupply) and epoch is not None and message.generation == epoch.generation:
                    supply.add(message)
                else:
                    self._early.append(message)
            case _ as never:
                raise TypeError(f"a worker cannot handle {never!r}")

    def _connect(self, epoch: StartEpoch) -> RemoteSupply | DealtSupply | None:
        if epoch.dealt:
            dealt = DealtSupply()
            for deal in self._early:
                if deal.generation == epoch.generation:
                    dealt.add(deal)
            self._early.clear()
            return dealt
        shards = [start.shard for start in epoch.shards if start.branch == epoch.dispatch_branch]
        if epoch.dispatch_address is None or not shards:
            return None
        return RemoteSupply(
            SocketChannel(connect(epoch.dispatch_address), queued=False),
            self._channel,
            worker=self._worker,
            generation=epoch.generation,
            shards=shards,
            window=epoch.window,
            waiting=self._page.waiting,
        )

    def _start_lane(self, epoch: StartEpoch, start: ShardStart) -> None:
        self._page.approach(start.lane, start.count)
        spec = epoch.spec(start.shard)
        self._install(None)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                shard = Shard(
                    self._graphs.of(spec),
                    spec,
                    branch=start.branch,
                    reset_fn=self._reset_fn,
                    policy=self._policy,
                    supply=self._supply,
                    trace=PageTrace(self._page) if epoch.careful else tracing(self._page),
                    memory=self._packer.memory,
                    on_left_out=partial(self._left_out.note, start.shard),
                    passing=(SystemExit, Superseded),
                )
                shard.within(partial(shard.start, Cursor(start.snapshot, start.skip), start.count))
                self._check_wanted()
        except Exception as error:
            self._check_wanted()
            add_note(error, f"torchpipe: while shard {start.shard} of {epoch.num_shards} was being started")
            self._send(epoch, start.lane, Chunk(error=error))
            return
        finally:
            self._page.rest()
            for warning in caught:
                self._channel.send(Notice(category=warning.category.__name__, text=str(warning.message)))
        self._lanes[start.lane] = _Lane(shard, start.doubtful, deque([0] * start.held))
        self._turns.append(start.lane)

    def _install(self, shard: Shard | None) -> None:
        """Let the global random states be those of ``shard``; they stay while no other one is at work."""
        if shard is not self._installed:
            if self._installed is not None:
                self._installed.leave()
            self._installed = shard
            if shard is not None:
                shard.enter()

    def _produce(self, number: int) -> None:
        epoch, lane = self._epoch, self._lanes[number]
        assert epoch is not None
        shard = lane.shard
        one_by_one = epoch.careful or shard.produced < lane.doubtful
        self._install(shard)
        limit = 1 if one_by_one else lane.limit
        if isinstance(self._supply, DealtSupply):
            limit = min(limit, self._supply.left(number))
        self._times.turn_to(MAKING)
        chunk = shard.produce(limit, _CHUNK_S if lane.ahead else _HUNGRY_S, partial(self._page.begin, number))
        self._check_wanted()
        self._page.rest()
        self._times.turn_to(SENDING)
        self._times.count(len(chunk.items))
        self._take_grants()
        if chunk.notice is not None:
            self._channel.send(Notice(category=ReplayWarning.__name__, text=chunk.notice))
        self._left_out.send(self._channel)
        if chunk.ended or chunk.error is not None:
            self._times.publish()  # before anybody knows of the end, and asks
        items, sizes = self._send(epoch, number, chunk)
        if chunk.ended or chunk.error is not None:
            self._retire(number)
        else:
            lane.sent(items, sizes)

    def _check_wanted(self) -> None:
        """Raises: Superseded if what was made is not wanted any more, whatever the user's code has made of that."""
        if isinstance(self._supply, RemoteSupply):
            self._supply.check()

    def _take_grants(self) -> None:
        """Those that came while a dispatched item was awaited."""
        if isinstance(self._supply, RemoteSupply):
            grants, self._supply.grants = self._supply.grants, []
            for grant in grants:
                self._handle(grant)

    def _retire(self, number: int) -> None:
        self._turns.remove(number)
        shard = self._lanes.pop(number).shard
        self._install(shard)
        shard.close()
        self._install(None)

    def close(self) -> None:
        """Close what the passes have opened, whatever has ended :meth:`run`. Idempotent."""
        self._end_epoch()

    def _end_epoch(self) -> None:
        for number in list(self._lanes):
            self._retire(number)
        self._epoch = None
        self._left_out.forget()
        if self._supply is not None:
            self._supply.close()
            self._supply = None

    def _send(self, epoch: StartEpoch, lane: int, chunk: Chunk) -> tuple[int, tuple[int, ...]]:
        """Send a chunk: its number of items, the sizes of pickle and buffers in bytes. It has no items any more then.

        One that cannot be pickled is cut before the culprit, which is its error.
        """
        count = len(chunk.items)
        try:
            layout, payload = self._packer.pack(chunk.items)
        except Exception as error:
            _keep_sendable(chunk, error)
            count = len(chunk.items)
            layout, payload = self._packer.pack(chunk.items)
        if chunk.error is not None:
            add_note(chunk.error, f"torchpipe: in worker {self._worker} (pid {os.getpid()})")
        message = ChunkMessage(
            generation=epoch.generation,
            lane=lane,
            count=count,
            layout=layout,
            snapshot=chunk.snapshot,
            ended=chunk.ended,
            error=None if chunk.error is None else dump_error(chunk.error),
        )
        self._channel.send(message, payload)
        if self._packer.shortage is not None and not self._told_of_shortage:
            self._told_of_shortage = True
            self._channel.send(Notice(category="UserWarning", text=shortage_text(self._packer.shortage)))
        return count, layout.sizes


def tracing(page: StatusPage) -> Tracing | None:
    """Times the nodes of a pass, if that is wanted."""
    return Tracing(page.sheet) if page.times.wanted else None


def _keep_sendable(chunk: Chunk, error: Exception) -> None:
    """Cut the chunk before the first item that cannot be sent, which becomes its error."""
    # None: each for itself can be sent
    index, chunk.error = unsendable(chunk.items, "from the worker to the main process") or (0, error)
    del chunk.items[index:]
    chunk.snapshot, chunk.ended = None, False
