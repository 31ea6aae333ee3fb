"""The connection between a worker and the dispatcher: how it is made, and what each side does with it.

Runs in workers (:class:`RemoteSupply`, :func:`connect`), in the dispatcher (:class:`Link`) and in the main process
(:class:`Listener`), which owns the listening socket for as long as its workers live: workers can connect while a
dispatcher is being replaced.

The worker's wait for a dispatched item ends with the item, or with a message of the main process that changes all.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from reading_services.hosting.supplies import PrefetchingSupply, ShardQueue
from reading_services.processes.arena import Arena
from reading_services.processes.channel import Channel, ChannelClosed, Frame, SocketChannel
from reading_services.processes.payloads import PayloadPacker, Receiver
from reading_services.processes.wire import DispatchedMessage, Grant, RequestMessage
from torchpipe.node.failures import load_error

__all__ = ["Link", "Listener", "RemoteSupply", "Superseded", "connect", "same_user"]

_GREETING = b"a"  # comes first, with the descriptor of the arena, if there is one


class Superseded(BaseException):
    """The items being produced are not wanted any more; ``frame`` says which are. None: the main process is gone.

    No Exception, so that user code that catches exceptions lets it pass. Nor does anything depend on its arrival: a
    bare ``except:`` of the user's may swallow it, and the items then produced are thrown away (``RemoteSupply.check``).
    """

    def __init__(self, frame: Frame | None) -> None:
        super().__init__("superseded by the main process")
        self.frame = frame


class Listener:
    """The socket that workers connect to. Created and closed by the main process; a dispatcher accepts on a copy.

    Its name has no file: it goes with the last process that holds the socket.
    """

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.address = f"\0torchpipe-{os.getpid()}-{secrets.token_hex(16)}"
        self.socket.bind(self.address)
        self.socket.listen(128)

    def close(self) -> None:
        """Idempotent."""
        self.socket.close()


def connect(address: str) -> socket.socket:
    """A worker's end of a connection to the dispatcher. Raises: OSError if the main process is gone."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def same_user(sock: socket.socket) -> bool:
    """True if the other end belongs to this user. Names without a file have no permissions of their own."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.getuid())


class Link:
    """The dispatcher's end of a connection, with an arena of its own: both end with the worker's epoch."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = SocketChannel(sock, queued=True)
        self._arena: Arena | None = None
        try:
            self._arena = Arena()
        except OSError:  # shared memory is short: all goes through the socket
            sock.send(_GREETING)
        else:
            socket.send_fds(sock, [_GREETING], [self._arena.fd])
        self.packer = PayloadPacker(self._arena)

    def fileno(self) -> int:
        return self.channel.fileno()

    def close(self) -> None:
        self.channel.close()
        if self._arena is not None:
            self._arena.close()


class RemoteSupply(PrefetchingSupply):
    """The dispatched items of a worker's shards, in one generation. Waits are spent inside ``waiting()``."""

    def __init__(
        self,
        link: SocketChannel,
        control: Channel,
        *,
        generation: int,
        shards: list[int],
        window: int,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._link, self._control, self._waiting, self._generation = link, control, waiting, generation
        self._grants: list[Grant] = []  # that arrived while an item was awaited
        self._superseded: Superseded | None = None
        self._greeted = False
        self._arena: Arena | None = None  # the dispatcher's, once it has greeted
        self._receiver = Receiver(None)
        self._cut_off = False
        super().__init__(shards, window)
        self._ask_for_all()

    def take_grants(self) -> list[Grant]:
        """The grants that came while an item was awaited, each once."""
        grants, self._grants = self._grants, []
        return grants

    def check(self) -> None:
        """Raises: Superseded if these items are not wanted any more."""
        if self._superseded is not None:
            raise Superseded(self._superseded.frame)

    def _send(self, shard: int, items: int) -> bool:
        try:
            self._link.send(RequestMessage(generation=self._generation, shard=shard, items=items))
        except ChannelClosed:
            self._cut_off = True  # the dispatcher has died: the main process will say what is to be done
        return True

    def _wait(self, queue: ShardQueue) -> None:
        poller = select.poll()
        if isinstance(self._control, SocketChannel):
            poller.register(self._control.fileno(), select.POLLIN)
        if not self._cut_off:
            poller.register(self._link.fileno(), select.POLLIN)
        with self._waiting():
            poller.poll()
        try:
            frame = self._control.receive(wait=False)
        except ChannelClosed:
            self._superseded = Superseded(None)
            raise self._superseded from None
        if frame is not None:
            if not isinstance(frame[0], Grant):
                self._superseded = Superseded(frame)
                raise self._superseded
            self._grants.append(frame[0])
        if not self._cut_off:
            self._receive()

    def _receive(self) -> None:
        try:
            if not self._greeted and not self._take_greeting():
                return
            while (frame := self._link.receive(wait=False)) is not None:
                message, payload = frame
                assert isinstance(message, DispatchedMessage)
                self._arrived(
                    self._shards[message.shard],
                    self._receiver.arrive(message.layout, payload).open(),
                    sum(message.layout.sizes),
                    over=message.over,
                    error=None if message.error is None else load_error(message.error),
                )
        except ChannelClosed:
            self._cut_off = True

    def _take_greeting(self) -> bool:
        """Take the dispatcher's arena, if it has one and its greeting is there. Raises: ChannelClosed."""
        try:
            greeting, fds, _, _ = socket.recv_fds(self._link.socket, 1, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not greeting:
            raise ChannelClosed("the dispatcher closed the connection")
        self._greeted = True
        if fds:
            self._arena = Arena(fds[0])
            self._receiver = Receiver(self._arena)
        return True

    def close(self) -> None:
        """Let go of the connection. Idempotent."""
        self._link.close()
        if self._arena is not None:
            self._receiver.close()
            self._arena.close()
