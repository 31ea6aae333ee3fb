"""One two-way connection between the main process and a worker: messages, each with an optional payload of bytes.

The narrow door to the other process. ``SocketChannel`` is the real one; tests of either side have a stand-in.

A frame is 12 bytes (length of the message, length of the payload, little-endian), the pickled message, the payload. In
front of a payload the message is filled up to a multiple of 16 bytes: arrays that are read in place in the payload
are then as aligned as those of the sender.
"""

from __future__ import annotations

import pickle
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque

from reading_services.engine.messages import Message

__all__ = ["Channel", "ChannelClosed", "Frame", "SocketChannel", "socket_pair"]

_HEADER = struct.Struct("<IQ")
_BUFFER_BYTES = 1 << 20
_ALIGNMENT = 16  # what the receiver's memory begins at, and what the largest item of an array wants
_JOINED_BYTES = 128 << 10  # copying so much costs less than another call of the system

Frame = tuple[Message, memoryview]


class ChannelClosed(Exception):
    """The other side is gone, or this side was closed. What had arrived whole before was handed out."""


class Channel(ABC):
    """One end of a connection. Used from one thread at a time."""

    @abstractmethod
    def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        """Send a frame. Raises: ChannelClosed."""

    @abstractmethod
    def receive(self, *, wait: bool) -> Frame | None:
        """The next whole frame; None if there is none yet and ``wait`` is False. Raises: ChannelClosed."""

    @abstractmethod
    def close(self) -> None:
        """Close this end. Idempotent."""


class SocketChannel(Channel):
    """A connection over a stream socket.

    With ``queued`` (the main process's end) nothing ever blocks: what the socket does not take is kept in an outbox,
    to be sent by :meth:`flush` when the socket can be written. Otherwise (the worker's end) sending blocks, which is
    what slows a worker down whose consumer does not read.
    """

    def __init__(self, sock: socket.socket, *, queued: bool) -> None:
        self._socket = sock
        self._queued = queued
        self._outbox: deque[memoryview] = deque()
        self._part = bytearray(_HEADER.size)
        self._filled = 0
        self._sizes: tuple[int, int] | None = None  # of the frame being read, once its header is whole
        sock.setblocking(not queued)

    @property
    def socket(self) -> socket.socket:
        return self._socket

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_outbox(self) -> bool:
        return bool(self._outbox)

    def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        body = pickle.dumps(message, protocol=5)
        if payload:
            body += bytes(-len(body) % _ALIGNMENT)  # after its end: pickle reads no further
        head = _HEADER.pack(len(body), len(payload)) + body
        try:
            if not self._queued:
                if len(payload) <= _JOINED_BYTES:
                    self._socket.sendall(head + payload)
                else:
                    self._socket.sendall(head)
                    self._socket.sendall(payload)
                return
            self._outbox.append(memoryview(head))
            if payload:
                self._outbox.append(memoryview(payload))
            self.flush()
        except OSError as error:
            if not _of_system(error):
                raise
            raise ChannelClosed(str(error)) from error

    def flush(self) -> None:
        """Send what the socket takes of the outbox. Raises: ChannelClosed."""
        while self._outbox:
            part = self._outbox[0]
            try:
                sent = self._socket.send(part)
            except BlockingIOError:
                return
            except OSError as error:
                if not _of_system(error):
                    raise
                raise ChannelClosed(str(error)) from error
            if sent == len(part):
                self._outbox.popleft()
            else:
                self._outbox[0] = part[sent:]

    def receive(self, *, wait: bool) -> Frame | None:
        while True:
            if self._filled == len(self._part):
                if self._sizes is None:
                    self._sizes = _HEADER.unpack(self._part)
                    self._part, self._filled = bytearray(sum(self._sizes)), 0
                    continue
                size, whole = self._sizes[0], memoryview(self._part)
                self._part, self._filled, self._sizes = bytearray(_HEADER.size), 0, None
                return pickle.loads(whole[:size]), whole[size:]
            try:
                flags = 0 if wait else socket.MSG_DONTWAIT
                got = self._socket.recv_into(memoryview(self._part)[self._filled :], 0, flags)
            except BlockingIOError:
                return None
            except OSError as error:
                if not _of_system(error):
                    raise
                raise ChannelClosed(str(error)) from error
            if got == 0:
                raise ChannelClosed("the other side closed the connection")
            self._filled += got

    def close(self) -> None:
        self._outbox.clear()
        self._socket.close()


def _of_system(error: OSError) -> bool:
    """Or what a signal's handler has raised in the midst of a call: ``TimeoutError``, say, which is an OSError too."""
    return error.errno is not None


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets with large buffers: (the main process's, the worker's)."""
    pair = socket.socketpair()
    for end in pair:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    return pair
