"""``MemoryChannel``: a connection without a process or a socket, for tests of either side."""

from __future__ import annotations

import pickle
from collections import deque

from reading_services.engine.messages import Message
from reading_services.processes.channel import Channel, ChannelClosed, Frame


class MemoryChannel(Channel):
    """``left, right = MemoryChannel.pair()``. Waiting in vain raises."""

    def __init__(self) -> None:
        self._inbox: deque[Frame] = deque()
        self._peer: MemoryChannel = self
        self._closed = False

    @classmethod
    def pair(cls) -> tuple[MemoryChannel, MemoryChannel]:
        left, right = cls(), cls()
        left._peer, right._peer = right, left
        return left, right

    def send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        if self._closed or self._peer._closed:
            raise ChannelClosed("closed")
        self._peer._inbox.append((pickle.loads(pickle.dumps(message)), memoryview(bytes(payload))))

    def receive(self, *, wait: bool) -> Frame | None:
        if self._inbox:
            return self._inbox.popleft()
        if self._closed or self._peer._closed or wait:
            raise ChannelClosed("closed, or waiting for a frame that nobody will send")
        return None

    def close(self) -> None:
        self._closed = True
