"""The connection between a worker and the dispatcher: how it is made, and what each side does with it.

Runs in workers (:class:`RemoteSupply`, :func:`connect`), in the dispatcher (:class:`Link`) and in the main process
(:class:`Listener`), which owns the listening socket for as long as its places live: workers can connect while a
dispatcher is being replaced.

The worker's wait for a dispatched item ends with the item, or with a message of the main process that changes all.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from reading_services.hosting.shards import Supply
from reading_services.processes.arena import Arena
from reading_services.processes.channel import Channel, ChannelClosed, Frame, SocketChannel
from reading_services.processes.payloads import Packer, Receiver
from reading_services.processes.wire import Dealt, Grant, Want
from torchpipe.execution.dispatch import Entry
from torchpipe.node.failures.remote_error import load_error

__all__ = ["Link", "Listener", "RemoteSupply", "Superseded", "connect", "same_user"]

_GREETING = b"a"  # comes first, with the descriptor of the arena, if there is one
_WISH_BYTES = 1 << 20  # of small items, more are asked for at a time than the window says: up to so many bytes


class Superseded(BaseException):
    """What is being produced is not wanted any more; ``frame`` says what is. None: the main process is gone.

    No Exception, so that user code that catches those lets it pass. Nor does anything depend on its arrival: a bare
    ``except:`` of the user's may swallow it, and what is then produced is thrown away (``RemoteSupply.check``).
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
    """Does the other end belong to this user? Names without a file have no permissions of their own."""
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
        self.packer = Packer(self._arena)

    def fileno(self) -> int:
        return self.channel.fileno()

    def close(self) -> None:
        self.channel.close()
        if self._arena is not None:
            self._arena.close()


class _Asked:
    """What a shard has of its dispatched items."""

    def __init__(self, window: int) -> None:
        self.ready: deque[Entry] = deque()
        self.items = 0  # of them
        self.window = window  # that it wants to have
        self.asked = False  # is a wish on its way?
        self.over = False
        self.error: BaseException | None = None


class RemoteSupply(Supply):
    """The dispatched items of a worker's shards, in one generation.

    Of each shard, ``window`` items are asked for ahead; if these turn out to be small and quickly used, more. Waits for
    them are spent inside ``waiting()``.
    """

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
        self._item_bytes = _WISH_BYTES
        self._greeted = False
        self._arena: Arena | None = None  # the dispatcher's, once it has greeted
        self._receiver = Receiver(None)
        self._cut_off = False
        self._shards = {shard: _Asked(window) for shard in shards}
        for shard in shards:
            self._ask(shard)

    def take_grants(self) -> list[Grant]:
        """Those that came while an item was awaited, once."""
        grants, self._grants = self._grants, []
        return grants

    def check(self) -> None:
        """Raises: Superseded if these items are not wanted any more."""
        if self._superseded is not None:
            raise Superseded(self._superseded.frame)

    def take(self, shard: int) -> Entry | None:
        self.check()
        mine = self._shards[shard]
        if not mine.items and not mine.over and 2 * mine.window * self._item_bytes <= _WISH_BYTES:
            mine.window *= 2  # the shard has to wait, and its items are small
        while not mine.ready:
            if mine.error is not None:
                raise mine.error
            if mine.over:
                return None
            self._ask(shard)
            self._wait()
        entry = mine.ready.popleft()
        if isinstance(entry, tuple):
            mine.items -= 1
            if 2 * mine.items <= mine.window:
                self._ask(shard)
        return entry

    def _ask(self, shard: int) -> None:
        mine = self._shards[shard]
        if mine.asked or mine.over:
            return
        mine.asked = True
        try:
            self._link.send(Want(generation=self._generation, shard=shard, items=max(1, mine.window - mine.items)))
        except ChannelClosed:
            self._cut_off = True  # the dispatcher has died: the main process will say what is to be done

    def _wait(self) -> None:
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
                dealt, payload = frame
                assert isinstance(dealt, Dealt)
                entries = self._receiver.arrive(dealt.layout, payload).open()
                mine = self._shards[dealt.shard]
                mine.asked = False
                mine.items += sum(isinstance(entry, tuple) for entry in entries)
                mine.ready.extend(entries)
                mine.over, mine.error = dealt.over, None if dealt.error is None else load_error(dealt.error)
                self._item_bytes = sum(dealt.layout.sizes) // max(1, len(entries)) + 1
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
