"""The loop of a worker process: take messages, produce chunks of the shards that have credit, send them.

Runs as the main thread of a worker. It owns its end of the channel. Its waits: for a message, when no shard has credit
(ends with a message, or when the main process is gone); for room in the socket.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from reading_services.engine.credit import ChunkSize, Credit
from reading_services.engine.messages import Deal, Message, StartEpoch
from reading_services.hosting.shards import ShardHost, Supply, keep_sendable
from reading_services.hosting.supplies import EntrySupply
from reading_services.processes.arena import Arena
from reading_services.processes.channel import Channel, ChannelClosed, Frame, SocketChannel
from reading_services.processes.dispatch_link import RemoteSupply, Superseded, connect
from reading_services.processes.graph_image import GraphImage
from reading_services.processes.payloads import PayloadPacker
from reading_services.processes.status_page import StatusPage, watch_parent
from reading_services.processes.wire import ChunkMessage, EndEpoch, FailedMessage, Grant, ReadyMessage, Stop
from torchpipe.execution.shard import Chunk, InitFn, ResetFn
from torchpipe.node.failures import add_note, dump_error
from torchpipe.node.traits import DataPipe
from torchpipe.state import SnapshotPolicy
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, IDLE, MAKING, SENDING, STARTING

__all__ = ["WorkerLoop", "WorkerSetup", "run_worker", "serve"]

_CHUNK_S = 0.002  # no further item is begun after this: longer chunks would keep a waiting consumer waiting
_HUNGRY_S = 0.0003  # the same, if the consumer has used up all: long enough to make up for the cost of a chunk
# A chunk costs the consumer 50 us or so, whatever is in it; its pickle is read once more, best out of the cache
_CHUNK_SIZE = ChunkSize(nbytes=1 << 20, pickle_bytes=256 << 10)


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """The settings that a process starts with."""

    number: int
    parent_pid: int
    death_signal: bool
    inherited_fds: tuple[int, ...]  # of the main process: a forked child has copies, which would keep them open
    ignored_signals: tuple[int, ...]  # besides Ctrl-C; blocked while the process is being started


def run_worker(
    setup: WorkerSetup,
    sock: socket.socket,
    page: StatusPage,
    arena: Arena,
    image: GraphImage,
    dispatcher: str | None = None,
) -> None:
    """The entry point of the process. ``image``: (branches, init_fn, reset_fn, policy). ``dispatcher``: its address."""

    def run(channel: SocketChannel) -> None:
        parts = image.load()
        image.close()
        with closing(WorkerLoop(setup.number, channel, page, *parts, arena=arena, dispatcher=dispatcher)) as loop:
            loop.run()

    serve(setup, sock, page, run)


def serve(setup: WorkerSetup, sock: socket.socket, page: StatusPage, run: Callable[[SocketChannel], None]) -> None:
    """Serve as a worker or the dispatcher: set the process up, say Ready, ``run`` until the end."""
    gc.freeze()  # what a forked process has inherited is not its own to finalize: groups with threads, say
    _set_signals(setup.ignored_signals)
    for fd in setup.inherited_fds:
        os.close(fd)
    watch_parent(setup.parent_pid, page, death_signal=setup.death_signal)
    torch.set_num_threads(1)
    channel = SocketChannel(sock, queued=False)
    try:
        channel.send(ReadyMessage(pid=os.getpid()))
        try:
            with _on_the_cpu():
                run(channel)
        except ChannelClosed:
            raise
        except Exception as error:  # the graph cannot be rebuilt here, or the runtime itself is at fault
            name = "the dispatcher" if setup.number < 0 else f"worker {setup.number}"
            add_note(error, f"torchpipe: in {name} (pid {os.getpid()}), which cannot go on")
            channel.send(FailedMessage(error=dump_error(error)))
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, *ignored])  # blocked while it was being started


class WorkerLoop:
    """The loop itself, apart from the process around it."""

    def __init__(
        self,
        number: int,
        channel: Channel,
        page: StatusPage,
        graphs: tuple[DataPipe, ...],
        init_fn: InitFn | None,
        reset_fn: ResetFn | None,
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
        *,
        arena: Arena | None = None,
        dispatcher: str | None = None,
    ) -> None:
        self._number, self._channel, self._page, self._times = number, channel, page, page.times
        self._dispatcher = dispatcher
        self._packer = PayloadPacker(arena)
        self._host = ShardHost(
            graphs, init_fn, reset_fn, policy, page, memory=self._packer.memory, passing=(Superseded,)
        )
        self._early: list[Deal] = []  # of a generation that has yet to begin
        self._credits: dict[int, Credit] = {}
        self._turns: list[int] = []

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
            except Superseded as superseded:
                self._page.idle()
                frame = superseded.frame
                if frame is None:
                    raise ChannelClosed("the main process is gone") from None

    def close(self) -> None:
        """Close what the passes have opened, whatever has ended :meth:`run`. Idempotent."""
        self._end_epoch()

    def _awaited(self) -> int:
        """The reason why the worker makes nothing now, as its time sheet has it."""
        supply = self._host.supply
        if self._host.epoch is None or not self._turns:
            return IDLE
        if isinstance(supply, EntrySupply) and not any(map(supply.left, self._turns)):
            return AWAITING_INPUT
        return AWAITING_CREDIT

    def _next_lane(self) -> int | None:
        epoch, supply = self._host.epoch, self._host.supply
        if epoch is not None:
            entries = supply if isinstance(supply, EntrySupply) else None
            for turn, lane in enumerate(self._turns):
                at_hand = entries is None or entries.left(lane)
                credit = self._credits[lane]
                if at_hand and credit.may_go_on(epoch.window, epoch.window_bytes, from_entries=entries is not None):
                    self._turns.append(self._turns.pop(turn))  # the next turn is another's
                    return lane
        return None

    def _handle(self, message: Message) -> None:
        epoch, supply = self._host.epoch, self._host.supply
        match message:
            case StartEpoch():
                self._times.turn_to(STARTING)
                self._times.count_cpu()
                self._begin(message)
            case Grant(generation=generation, lane=lane, chunks=chunks):
                if epoch is not None and generation == epoch.generation and lane in self._credits:
                    self._credits[lane].used(chunks)
            case EndEpoch(generation=generation):
                if epoch is not None and generation == epoch.generation:
                    self._times.turn_to(SENDING)  # closing what is open is work, too
                    self._end_epoch()
            case Deal():
                if isinstance(supply, EntrySupply) and epoch is not None and message.generation == epoch.generation:
                    supply.add(message)
                else:
                    self._early.append(message)
            case _ as never:
                raise TypeError(f"a worker cannot handle {never!r}")

    def _begin(self, epoch: StartEpoch) -> None:
        for lane in [lane for lane in self._turns if lane not in epoch.keep]:
            self._turns.remove(lane)
            del self._credits[lane]
        self._host.begin(epoch, self._supply_for(epoch))
        for start in epoch.shards:
            failed = self._host.start(start)
            self._send_reports()
            if failed is not None:
                self._send(epoch, start.lane, failed)
                continue
            self._credits[start.lane] = Credit(deque([0] * start.held))
            self._turns.append(start.lane)
        self._take_grants()  # a shard that starts after dropped items waits for them

    def _supply_for(self, epoch: StartEpoch) -> Supply | None:
        if epoch.from_entries:
            present = self._host.supply
            entries = present if epoch.keep and isinstance(present, EntrySupply) else EntrySupply()
            entries.keep(epoch.keep)
            for deal in self._early:
                if deal.generation == epoch.generation:
                    entries.add(deal)
            self._early.clear()
            return entries
        shards = [start.shard for start in epoch.shards if start.branch == epoch.dispatch_branch]
        if self._dispatcher is None or not shards:
            return None
        return RemoteSupply(
            SocketChannel(connect(self._dispatcher), queued=False),
            self._channel,
            generation=epoch.generation,
            shards=shards,
            window=epoch.window,
            waiting=self._page.waiting,
        )

    def _produce(self, number: int) -> None:
        epoch, supply, credit = self._host.epoch, self._host.supply, self._credits[number]
        assert epoch is not None
        limit = credit.limit
        if isinstance(supply, EntrySupply):
            limit = min(limit, supply.left(number))
        self._times.turn_to(MAKING)
        chunk = self._host.produce(number, limit, _CHUNK_S if credit.ahead else _HUNGRY_S)
        self._times.turn_to(SENDING)
        self._times.count(len(chunk.items))
        self._take_grants()
        self._send_reports()
        over = chunk.ended or chunk.error is not None
        if over:
            self._times.publish()  # before anybody knows of the end, and asks
        items, sizes = self._send(epoch, number, chunk)
        if over or chunk.error is not None:
            self._turns.remove(number)
            del self._credits[number]
            self._host.retire(number)
        else:
            credit.add(items, sizes, _CHUNK_SIZE)

    def _take_grants(self) -> None:
        """Handle the grants that came while a dispatched item was awaited."""
        if isinstance(self._host.supply, RemoteSupply):
            for grant in self._host.supply.take_grants():
                self._handle(grant)

    def _end_epoch(self) -> None:
        self._host.end()
        self._credits.clear()
        self._turns.clear()

    def _send_reports(self) -> None:
        for report in self._host.take_reports():
            self._channel.send(report)

    def _send(self, epoch: StartEpoch, lane: int, chunk: Chunk) -> tuple[int, tuple[int, ...]]:
        """Send a chunk: its number of items, the sizes of pickle and buffers in bytes. It has no items any more then.

        One that cannot be pickled is cut before the culprit, which is its error.
        """
        count = len(chunk.items)
        try:
            layout, payload = self._packer.pack(chunk.items)
        except Exception as error:
            keep_sendable(chunk, error)
            count = len(chunk.items)
            layout, payload = self._packer.pack(chunk.items)
        if chunk.error is not None:
            add_note(chunk.error, f"torchpipe: in worker {self._number} (pid {os.getpid()})")
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
        for notice in self._packer.take_notices():
            self._channel.send(notice)
        return count, layout.sizes
