"""The dispatcher process: runs the dispatched part of the graph once, and deals its items to the workers.

Owns the source of the present epoch and the connections that workers have made. Its one wait covers the main process,
new connections and the workers' wishes; while a worker wants an item that is not there yet, it produces and waits not.
What a worker has not asked for stays here, so nobody blocks on a slow one.
"""

from __future__ import annotations

import os
import selectors
import socket
import warnings
from collections import defaultdict, deque
from contextlib import closing
from functools import partial

from reading_services._transport.arena import Arena
from reading_services._transport.channel import ChannelClosed, SocketChannel
from reading_services._transport.items import unsendable
from reading_services._transport.messages import (
    Dealt,
    EndEpoch,
    Grown,
    Hello,
    Message,
    Notice,
    StartDispatch,
    Stop,
    Want,
)
from reading_services._transport.payloads import shortage_text
from reading_services._transport.status_page import PageTrace, StatusPage
from reading_services._workers.dispatch_link import Link, same_user
from reading_services._workers.left_out import LeftOutItems
from reading_services._workers.worker import WorkerSetup, serve, tracing
from torchpipe.errors import ReplayWarning
from torchpipe.execution.dispatch import DispatchSource, DispatchStart, Entry, Mark
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures.failure import add_note
from torchpipe.node.failures.remote_error import dump_error, load_error
from torchpipe.stats.sheet import AWAITING_CREDIT, IDLE, MAKING, SENDING, STARTING

__all__ = ["Dispatcher", "run_dispatcher"]

_CHUNK_ITEMS = 32
_CHUNK_S = 0.002
_FIRST_REPORT_ITEMS = 256  # fewer may wait for a shard without anybody being told


def run_dispatcher(
    setup: WorkerSetup, sock: socket.socket, page: StatusPage, arena: Arena, listener: socket.socket
) -> None:
    """The entry point of the process. Each link has an arena of its own, so that nothing is sent through ``arena``."""
    arena.close()

    def run(channel: SocketChannel) -> None:
        graph, policy = setup.graph.load()
        setup.graph.close()
        open_source = partial(DispatchSource.open, graph, policy=policy, passing=(SystemExit,))
        with closing(Dispatcher(channel, page, listener, open_source)) as dispatcher:
            dispatcher.run()

    serve(setup, sock, page, run)


class Dispatcher:
    """The loop itself. ``open_source(spec, start=..., trace=...)`` makes the source of an epoch."""

    def __init__(
        self, channel: SocketChannel, page: StatusPage, listener: socket.socket, open_source: partial[DispatchSource]
    ) -> None:
        self._channel = channel
        self._page = page
        self._times = page.times
        self._listener = listener
        self._open_source = open_source
        self._epoch: StartDispatch | None = None
        self._report_at = _FIRST_REPORT_ITEMS
        self._doubtful = 0
        self._told_of_shortage = False
        self._left_out = LeftOutItems()
        self._source: DispatchSource | None = None
        self._links: set[Link] = set()
        self._wants: dict[int, int] = defaultdict(int)
        self._of_shard: dict[int, Link] = {}
        self._early: list[tuple[Link, Want]] = []  # of a generation that the main process has yet to begin
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(channel, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until told to stop. Raises: ChannelClosed when the main process is gone."""
        while True:
            hungry = self._hungry()
            if not hungry:
                self._times.turn_to(IDLE if self._epoch is None else AWAITING_CREDIT)
            for key, events in self._selector.select(0 if hungry else None):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._channel:
                    if not self._obey():
                        return
                elif isinstance(key.fileobj, Link) and key.fileobj in self._links:
                    self._serve_link(key.fileobj, events)
            if self._hungry():
                self._times.turn_to(MAKING)
                self._produce()
            self._times.turn_to(SENDING)
            self._deal()

    def _hungry(self) -> bool:
        """Does a shard want an item that is not there yet?"""
        source = self._source
        return (
            source is not None
            and not source.over
            and any(wanted and not source.waiting(shard) for shard, wanted in self._wants.items())
        )

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        if not same_user(sock):
            sock.close()
            return
        try:
            link = Link(sock)
        except OSError:  # the worker has gone again, or there are too many open files: it will be told by the closing
            sock.close()
            return
        self._links.add(link)
        self._selector.register(link, selectors.EVENT_READ)

    def _obey(self) -> bool:
        frame = self._channel.receive(wait=False)
        match frame and frame[0]:
            case Stop():
                return False
            case StartDispatch() as message:
                self._end_epoch(message.generation - 1)
                self._begin(message)
            case EndEpoch(generation=generation):
                if self._epoch is not None and generation == self._epoch.generation:
                    self._end_epoch(generation)
        return True

    def _begin(self, message: StartDispatch) -> None:
        self._times.turn_to(STARTING)
        self._times.count_cpu()
        self._epoch = message
        self._page.approach(0, message.mark_position)
        self._doubtful = (1 << 62) if message.careful else message.doubtful
        start = DispatchStart(mark=Mark(message.mark_position, message.mark_snapshot), needed=dict(message.needed))
        trace = PageTrace(self._page) if message.careful else tracing(self._page)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self._source = self._open_source(
                    message.spec(0), start, trace=trace, on_left_out=partial(self._left_out.note, None)
                )
            except Exception as error:
                add_note(error, "torchpipe: while the dispatcher was starting")
                self._source = DispatchSource.failed(error, start)
        self._page.rest()
        for warning in caught:
            self._channel.send(Notice(category=warning.category.__name__, text=str(warning.message)))
        if message.fail_at is not None:
            position, data = message.fail_at
            self._source.fail_at = (position, load_error(data))
        early, self._early = self._early, []
        for link, want in early:
            self._want(link, want)

    def close(self) -> None:
        """Close what the pass has opened, whatever has ended :meth:`run`. Idempotent."""
        self._end_epoch(self._epoch.generation if self._epoch is not None else 0)

    def _end_epoch(self, generation: int) -> None:
        """Forget everything up to ``generation``; workers may have said hello for the next one already."""
        if self._source is not None:
            self._source.close()
        self._source = self._epoch = None
        self._left_out.forget()
        self._wants.clear()
        self._of_shard.clear()
        for link in [link for link in self._links if 0 <= link.generation <= generation]:
            self._drop(link)

    def _serve_link(self, link: Link, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                link.channel.flush()
                self._watch_outbox(link)
            while (frame := link.channel.receive(wait=False)) is not None:
                self._listen(link, frame[0])
        except ChannelClosed:
            self._drop(link)

    def _listen(self, link: Link, message: Message) -> None:
        match message:
            case Hello(generation=generation):
                link.generation = generation
            case Want():
                self._want(link, message)

    def _want(self, link: Link, want: Want) -> None:
        if self._epoch is None or want.generation > self._epoch.generation:
            self._early.append((link, want))
        elif want.generation == self._epoch.generation:
            self._wants[want.shard] += want.items
            self._of_shard[want.shard] = link

    def _drop(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)
            self._selector.unregister(link)
            link.close()
            self._early = [(waiting, want) for waiting, want in self._early if waiting is not link]
            for shard in [shard for shard, of in self._of_shard.items() if of is link]:
                del self._of_shard[shard]
                self._wants.pop(shard, None)

    def _produce(self) -> None:
        assert self._source is not None
        one_by_one = self._source.position < self._doubtful
        chunk: Chunk = self._source.advance(1 if one_by_one else _CHUNK_ITEMS, _CHUNK_S, partial(self._page.begin, 0))
        self._page.rest()
        self._times.count(len(chunk.items))
        fail_at = self._source.fail_at
        if chunk.error is not None and (fail_at is None or chunk.error is not fail_at[1]):
            add_note(chunk.error, _here())
        if chunk.notice is not None:
            self._channel.send(Notice(category=ReplayWarning.__name__, text=chunk.notice))
        self._left_out.send(self._channel)
        if self._source.over:
            self._times.publish()
        if self._source.longest >= self._report_at:
            self._channel.send(Grown(items=self._source.longest))
            self._report_at = 2 * self._source.longest

    def _deal(self) -> None:
        """Send every shard what it wants of what there is."""
        source, epoch = self._source, self._epoch
        if source is None or epoch is None:
            return
        for shard in list(self._of_shard):
            link = self._of_shard.get(shard)
            if link is None:  # its worker was found gone while another of its shards was served
                continue
            entries = source.take_ready(shard, self._wants[shard])
            over = source.over and not source.waiting(shard)
            if not entries and not over:
                continue
            self._wants[shard] -= sum(isinstance(entry, tuple) for entry in entries)
            error = source.error if over else None
            try:
                layout, payload = link.packer.pack(entries)
            except Exception as failed:
                over, error = True, _keep_sendable(entries, failed, source.waiting(shard))
                layout, payload = link.packer.pack(entries)
            self._times.send(sum(layout.sizes))
            if over:
                del self._of_shard[shard]
                del self._wants[shard]
            try:
                failure = None if error is None else dump_error(error)
                link.channel.send(Dealt(shard=shard, layout=layout, over=over, error=failure), payload)
                self._watch_outbox(link)
            except ChannelClosed:
                self._drop(link)
            shortage = link.packer.shortage
            if shortage is not None and not self._told_of_shortage:
                self._told_of_shortage = True
                self._channel.send(Notice(category="UserWarning", text=shortage_text(shortage)))

    def _watch_outbox(self, link: Link) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.channel.has_outbox else 0)
        self._selector.modify(link, events)


def _keep_sendable(entries: list[Entry], error: Exception, waiting: deque[Entry]) -> Exception:
    """Cut ``entries`` before the first item that cannot be sent; the error that stands in its place.

    The rest goes back to those that wait: a wish that is on its way already comes upon the same error.
    """
    items = [entry[0] if isinstance(entry, tuple) else entry for entry in entries]
    # None: each for itself can be sent
    index, failure = unsendable(items, "from the dispatcher to a worker") or (0, error)
    waiting.extendleft(reversed(entries[index:]))
    del entries[index:]
    add_note(failure, _here())
    return failure


def _here() -> str:
    return f"torchpipe: in the dispatcher (pid {os.getpid()})"
