"""The connection between a worker and the dispatcher: how it is made, and what each side does with it.

Runs in workers (:class:`RemoteSupply`, :func:`connect`), in the dispatcher (:class:`Link`) and in the main process
(:class:`Listener`), which owns the listening socket for as long as the supervisor lives: workers can connect while a
dispatcher is being replaced.

The worker's wait for a dispatched item ends with the item, or with a message of the main process that changes all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from reading_services._transport.arena import Arena
from reading_services._transport.channel import Channel, ChannelClosed, Frame, SocketChannel
from reading_services._transport.messages import Dealt, Grant, Hello, Want
from reading_services._transport.payloads import Packer, Receiver
from torchpipe.execution.dispatch import DispatchSupply, Entry
from torchpipe.node.failures.remote_error import load_error

__all__ = ["Link", "Listener", "RemoteSupply", "Superseded", "connect", "same_user"]

_GREETING = b"a"  # comes first, with the descriptor of the arena, if there is one
_WINDOW_BYTES = 1 << 20  # of small items, more are asked for at a time than the window says: up to so many bytes


class Superseded(BaseException):
    """What is being produced is not wanted any more: ``RemoteSupply.instead`` says what is.

    No Exception, so that user code that catches those lets it pass. Nor does anything depend on its arrival: a bare
    ``except:`` of the user's may swallow it, and what is then produced is thrown away (``RemoteSupply.check``).
    """

    def __init__(self) -> None:
        super().__init__("superseded by the main process")


class Listener:
    """The socket that workers connect to. Created and closed by the main process; a dispatcher accepts on a copy."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder: str | None = None
        name = f"torchpipe-{os.getpid()}-{secrets.token_hex(16)}"
        if sys.platform == "linux":  # a name without a file: it goes with the last process that holds it
            self.address = "\0" + name
        else:
            self._folder = tempfile.mkdtemp(prefix="torchpipe-")
            self.address = os.path.join(self._folder, "dispatch")
        self.socket.bind(self.address)
        self.socket.listen(128)

    def close(self) -> None:
        """Idempotent."""
        self.socket.close()
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)
                os.rmdir(self._folder)


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
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # a file in a folder of this user's own
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.getuid())


class Link:
    """The dispatcher's end of a connection, with an arena of its own: both end with a generation of the worker."""

    def __init__(self, sock: socket.socket) -> None:
        self.generation = -1  # that the worker has said hello for
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


class RemoteSupply(DispatchSupply):
    """The dispatched items of a worker's shards, in one generation.

    Of each shard, ``window`` items are asked for ahead; if these turn out to be small and quickly used, more. Waits for
    them are spent inside ``waiting()``.
    """

    def __init__(
        self,
        link: SocketChannel,
        control: Channel,
        *,
        worker: int,
        generation: int,
        shards: list[int],
        window: int,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.grants: list[Grant] = []  # that arrived while an item was awaited
        self.instead: Frame | None = None  # what is wanted instead of these items
        self._superseded = False  # without anything instead, nobody is left to want anything
        self._link = link
        self._control = control
        self._waiting = waiting
        self._generation = generation
        self._windows = dict.fromkeys(shards, window)
        self._item_bytes = _WINDOW_BYTES
        self._greeted = False
        self._arena: Arena | None = None  # the dispatcher's, once it has greeted
        self._receiver = Receiver(None)
        self._ready: dict[int, deque[Entry]] = {shard: deque() for shard in shards}
        self._used = dict.fromkeys(shards, 0)
        self._end: dict[int, BaseException | None] = {}
        self._cut_off = False
        self._tell(Hello(worker=worker, generation=generation))
        for shard in shards:
            self._tell(Want(generation=generation, shard=shard, items=window))

    def check(self) -> None:
        """Raises: Superseded if these items are not wanted any more."""
        if self._superseded:
            raise Superseded

    def take(self, shard: int) -> Entry | None:
        self.check()
        ready = self._ready[shard]
        if not ready and shard not in self._end:
            self._widen(shard)
        while not ready:
            if shard in self._end:
                error = self._end[shard]
                if error is not None:
                    raise error
                return None
            self._wait()
        entry = ready.popleft()
        if isinstance(entry, tuple):
            self._used[shard] += 1
            if 2 * self._used[shard] >= self._windows[shard] and shard not in self._end:
                self._tell(Want(generation=self._generation, shard=shard, items=self._used[shard]))
                self._used[shard] = 0
        return entry

    def _widen(self, shard: int) -> None:
        """The shard has to wait: ask for twice as many from now on, if they are small enough."""
        window = self._windows[shard]
        if 2 * window * self._item_bytes <= _WINDOW_BYTES:
            self._windows[shard] = 2 * window
            self._tell(Want(generation=self._generation, shard=shard, items=window))

    def _tell(self, message: Hello | Want) -> None:
        try:
            self._link.send(message)
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
            self._superseded = True
            raise Superseded from None
        if frame is not None:
            if not isinstance(frame[0], Grant):
                self.instead, self._superseded = frame, True
                raise Superseded
            self.grants.append(frame[0])
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
                self._item_bytes = sum(dealt.layout.sizes) // max(1, len(entries)) + 1
                self._ready[dealt.shard].extend(entries)
                if dealt.over:
                    self._end[dealt.shard] = None if dealt.error is None else load_error(dealt.error)
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
