"""The dispatcher process: runs the dispatched part of the graph once, and hands its items to the workers that ask.

Owns the connections that workers have made. Its one wait covers the main process, new connections and the workers'
requests; while a worker asks for an item that is not there yet, it produces and waits not.
"""

from __future__ import annotations

import os
import selectors
import socket
from contextlib import closing

from reading_services.engine.messages import StartDispatch
from reading_services.hosting.dispatch import DispatchHost
from reading_services.processes.arena import Arena
from reading_services.processes.channel import ChannelClosed, SocketChannel
from reading_services.processes.dispatch_link import Link, same_user
from reading_services.processes.graph_image import GraphImage
from reading_services.processes.status_page import StatusPage
from reading_services.processes.wire import DispatchedMessage, EndEpoch, RequestMessage, Stop
from reading_services.processes.worker import WorkerSetup, serve
from torchpipe.node.failures import dump_error
from torchpipe.stats.sheet import AWAITING_CREDIT, IDLE, MAKING, SENDING, STARTING

__all__ = ["Dispatcher", "run_dispatcher"]


def run_dispatcher(
    setup: WorkerSetup, sock: socket.socket, page: StatusPage, arena: Arena, image: GraphImage, listener: socket.socket
) -> None:
    """The entry point of the process. Each link has an arena of its own, so that nothing is sent through ``arena``."""
    arena.close()

    def run(channel: SocketChannel) -> None:
        graph, policy = image.load()
        image.close()
        where = f"torchpipe: in the dispatcher (pid {os.getpid()})"
        with closing(Dispatcher(channel, page, listener, DispatchHost(graph, policy, page, where))) as dispatcher:
            dispatcher.run()

    serve(setup, sock, page, run)


class Dispatcher:
    """The loop itself."""

    def __init__(self, channel: SocketChannel, page: StatusPage, listener: socket.socket, host: DispatchHost) -> None:
        self._channel, self._times, self._listener, self._host = channel, page.times, listener, host
        self._links: set[Link] = set()
        self._requests: dict[
            int, tuple[Link, RequestMessage]
        ] = {}  # by shard; some of a generation that has yet to begin
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(channel, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until told to stop. Raises: ChannelClosed when the main process is gone."""
        while True:
            hungry = self._hungry()
            if not hungry:
                self._times.turn_to(IDLE if self._host.epoch is None else AWAITING_CREDIT)
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
                self._times.count(self._host.produce())
                self._send_reports()
                if self._host.over:
                    self._times.publish()
            self._times.turn_to(SENDING)
            for shard, (link, request) in self._present_requests():
                if self._host.has(shard):
                    self._deal(shard, link, request)

    def close(self) -> None:
        """Close what the pass has opened, whatever has ended :meth:`run`. Idempotent."""
        self._host.end()

    def _present_requests(self) -> list[tuple[int, tuple[Link, RequestMessage]]]:
        """The requests of this generation, by shard."""
        epoch = self._host.epoch
        if epoch is None:
            return []
        return [item for item in self._requests.items() if item[1][1].generation == epoch.generation]

    def _hungry(self) -> bool:
        """True if a shard asks for an item that is not there yet."""
        return any(not self._host.has(shard) for shard, _ in self._present_requests())

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
                self._times.turn_to(STARTING)
                self._times.count_cpu()
                self._host.begin(message)
                self._send_reports()
            case EndEpoch(generation=generation):
                if self._host.epoch is not None and generation == self._host.epoch.generation:
                    self._times.turn_to(SENDING)  # closing what is open is work, too
                    self._host.end()
        return True

    def _serve_link(self, link: Link, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                link.channel.flush()
                self._watch_outbox(link)
            while (frame := link.channel.receive(wait=False)) is not None:
                request = frame[0]
                assert isinstance(request, RequestMessage)
                former = self._requests.get(request.shard)
                # A worker that was one too many may still ask for a shard that another one has taken over
                if former is None or former[1].generation <= request.generation:
                    self._requests[request.shard] = link, request
        except ChannelClosed:
            self._drop(link)

    def _drop(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)
            self._selector.unregister(link)
            link.close()
            for shard in [shard for shard, (of, _) in self._requests.items() if of is link]:
                del self._requests[shard]

    def _deal(self, shard: int, link: Link, request: RequestMessage) -> None:
        """Send a shard what it asks for of what there is."""
        if link not in self._links:  # it was found gone while another of its shards was served
            return
        portion = self._host.take(shard, request.items)
        try:
            layout, payload = link.packer.pack(portion.entries)
        except Exception as error:
            self._host.keep_sendable(portion, shard, error)
            layout, payload = link.packer.pack(portion.entries)
        self._times.send(sum(layout.sizes))
        del self._requests[shard]
        failure = None if portion.error is None else dump_error(portion.error)
        try:
            link.channel.send(DispatchedMessage(shard=shard, layout=layout, over=portion.over, error=failure), payload)
            self._watch_outbox(link)
        except ChannelClosed:
            self._drop(link)
        for notice in link.packer.take_notices():
            self._channel.send(notice)

    def _send_reports(self) -> None:
        for report in self._host.take_reports():
            self._channel.send(report)

    def _watch_outbox(self, link: Link) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.channel.has_outbox else 0)
        self._selector.modify(link, events)
