"""The connection between two processes: frames arrive whole, in order, or not at all, whatever the other side does."""

from __future__ import annotations

import pickle
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_services.engine.messages import Message
from reading_services.processes.channel import Channel, ChannelClosed, SocketChannel, socket_pair
from reading_services.processes.wire import EndEpoch, Grant, ReadyMessage, Stop
from tests.processes.memory_channel import MemoryChannel
from tests.sources import wait_until

Pair = tuple[Channel, Channel]


def socket_channels() -> Pair:
    main, worker = socket_pair()
    return SocketChannel(main, queued=True), SocketChannel(worker, queued=False)


@pytest.fixture(params=[socket_channels, MemoryChannel.pair], ids=["socket", "memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    make: Callable[[], Pair] = request.param
    left, right = make()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, SocketChannel]]:
    """A bare socket, and the main process's end of a channel on the other side of it."""
    bare, ours = socket_pair()
    channel = SocketChannel(ours, queued=True)
    yield bare, channel
    bare.close()
    channel.close()


def frame(message: Message, payload: bytes = b"") -> bytes:
    """A frame as the module describes it."""
    body = pickle.dumps(message, protocol=5)
    return struct.pack("<IQ", len(body), len(payload)) + body + payload


MESSAGES: list[tuple[Message, bytes]] = [
    (ReadyMessage(pid=1), b""),
    (Grant(generation=2, lane=3, chunks=4), b"x"),
    (EndEpoch(generation=5), bytes(range(256)) * 100),
    (Stop(), b""),
]


# -- the contract, for both kinds ----------------------------------------------------------------------------------


def test_frames_arrive_in_order_both_ways(pair: Pair) -> None:
    for sender, receiver in (pair, pair[::-1]):
        for message, payload in MESSAGES:
            sender.send(message, payload)
        for message, payload in MESSAGES:
            got = receiver.receive(wait=False)
            assert got is not None
            assert got[0] == message
            assert bytes(got[1]) == payload
        assert receiver.receive(wait=False) is None


def test_a_payload_may_be_a_memoryview(pair: Pair) -> None:
    left, right = pair
    left.send(Stop(), memoryview(b"abcdef")[2:4])
    got = right.receive(wait=False)
    assert got is not None
    assert bytes(got[1]) == b"cd"


@pytest.mark.parametrize("size", [16, 1000, 1 << 20])
def test_payloads_are_aligned_whatever_the_message(pair: Pair, size: int) -> None:
    left, right = pair
    requests = [ReadyMessage(pid=10**digits) for digits in range(17)]
    sender = threading.Thread(target=lambda: [right.send(item, bytes(size)) for item in requests])
    sender.start()
    payloads = []

    def arrived() -> bool:
        while (got := left.receive(wait=False)) is not None:
            payloads.append(got[1])
        return len(payloads) == 17

    wait_until(arrived)
    sender.join()
    assert [len(payload) for payload in payloads] == [size] * 17
    assert [np.frombuffer(payload, np.uint8).ctypes.data % 16 for payload in payloads] == [0] * 17


def test_what_was_sent_before_a_close_still_arrives(pair: Pair) -> None:
    left, right = pair
    left.send(ReadyMessage(pid=7), b"last words")
    left.close()
    got = right.receive(wait=True)
    assert got is not None
    assert (got[0], bytes(got[1])) == (ReadyMessage(pid=7), b"last words")
    for wait in (False, True):
        with pytest.raises(ChannelClosed):
            right.receive(wait=wait)


def test_nothing_can_be_sent_to_a_closed_end(pair: Pair) -> None:
    left, right = pair
    right.close()
    with pytest.raises(ChannelClosed):
        left.send(Stop())


def test_a_closed_end_is_of_no_use_any_more(pair: Pair) -> None:
    left, _ = pair
    left.close()
    left.close()  # idempotent
    with pytest.raises(ChannelClosed):
        left.send(Stop())
    with pytest.raises(ChannelClosed):
        left.receive(wait=False)


def test_a_message_is_a_copy(pair: Pair) -> None:
    left, right = pair
    payload = bytearray(b"abc")
    left.send(Stop(), bytes(payload))
    got = right.receive(wait=False)
    payload[:] = b"xyz"
    assert got is not None
    assert bytes(got[1]) == b"abc"


def test_waiting_in_vain_in_memory_raises_at_once() -> None:
    left, _ = MemoryChannel.pair()
    with pytest.raises(ChannelClosed, match="nobody will send"):
        left.receive(wait=True)


# -- sockets --------------------------------------------------------------------------------------------------------


def test_a_frame_byte_by_byte(ends: tuple[socket.socket, SocketChannel]) -> None:
    bare, channel = ends
    data = frame(ReadyMessage(pid=3), b"payload")
    for index in range(len(data)):
        assert channel.receive(wait=False) is None
        bare.sendall(data[index : index + 1])
    got = channel.receive(wait=False)
    assert got is not None
    assert (got[0], bytes(got[1])) == (ReadyMessage(pid=3), b"payload")


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.lists(st.integers(1, 60), max_size=20))
def test_frames_in_any_pieces(payloads: list[bytes], cuts: list[int]) -> None:
    bare, ours = socket_pair()
    channel = SocketChannel(ours, queued=True)
    data = b"".join(frame(ReadyMessage(pid=index), payload) for index, payload in enumerate(payloads))
    got = []
    for size in (*cuts, len(data)):
        bare.sendall(data[:size])
        data = data[size:]
        while (arrived := channel.receive(wait=False)) is not None:
            got.append((arrived[0], bytes(arrived[1])))
    bare.close()
    channel.close()
    assert got == [(ReadyMessage(pid=index), payload) for index, payload in enumerate(payloads)]


def test_an_end_within_a_frame_delivers_nothing_of_it() -> None:
    whole, half = frame(ReadyMessage(pid=1), b"whole"), frame(ReadyMessage(pid=2), b"only half of this one")
    for length in range(len(half)):
        bare, ours = socket_pair()
        channel = SocketChannel(ours, queued=True)
        bare.sendall(whole + half[:length])
        bare.close()
        got = channel.receive(wait=False)
        assert got is not None
        assert (got[0], bytes(got[1])) == (ReadyMessage(pid=1), b"whole")
        for _ in range(2):  # and it stays so
            with pytest.raises(ChannelClosed, match="closed the connection"):
                channel.receive(wait=False)
        channel.close()


def test_a_blocked_sender_is_read_to_the_end() -> None:
    """The worker's end blocks on a payload larger than all buffers until main has read it."""
    ours, theirs = socket_channels()
    payload = bytes(range(256)) * (64 << 10)  # 16 MiB
    sender = threading.Thread(target=theirs.send, args=(ReadyMessage(pid=1), payload))
    sender.start()
    got = []

    def arrived() -> bool:
        piece = ours.receive(wait=False)
        if piece is not None:
            got.append(piece)
        return bool(got)

    wait_until(arrived)
    sender.join()
    assert got[0][0] == ReadyMessage(pid=1)
    assert got[0][1] == payload
    ours.close()
    theirs.close()


def test_a_blocked_sender_ends_when_the_other_side_closes() -> None:
    ours, theirs = socket_channels()
    errors: list[BaseException] = []

    def send() -> None:
        try:
            theirs.send(ReadyMessage(pid=1), bytes(16 << 20))
        except ChannelClosed as error:
            errors.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    while ours.receive(wait=False) is not None:
        pass
    ours.close()
    sender.join()
    assert [type(error) for error in errors] == [ChannelClosed]
    theirs.close()


def test_main_never_blocks_on_a_worker_that_does_not_read() -> None:
    ours, theirs = socket_channels()
    assert isinstance(ours, SocketChannel)
    payload = bytes(range(256)) * (64 << 10)
    ours.send(ReadyMessage(pid=0), payload)
    for index in range(1, 100):
        ours.send(ReadyMessage(pid=index))
    assert ours.has_outbox
    ours.flush()  # no room: nothing happens
    assert ours.has_outbox

    got: list[tuple[Message, memoryview]] = []

    def read() -> None:
        for _ in range(100):
            arrived = theirs.receive(wait=True)
            assert arrived is not None
            got.append(arrived)

    reader = threading.Thread(target=read)
    reader.start()

    def sent() -> bool:
        ours.flush()
        return not ours.has_outbox

    wait_until(sent)
    reader.join()
    assert got[0][1] == payload
    assert [message for message, _ in got] == [ReadyMessage(pid=index) for index in range(100)]
    ours.close()
    theirs.close()


def test_an_outbox_for_one_who_has_gone() -> None:
    ours, theirs = socket_channels()
    assert isinstance(ours, SocketChannel)
    ours.send(ReadyMessage(pid=0), bytes(16 << 20))
    assert ours.has_outbox
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.flush()
    ours.close()
    assert not ours.has_outbox


def test_what_a_dead_sender_had_sent_is_read_though_it_had_not_read() -> None:
    """The kernel reports a reset, since the dead one left something unread: only after what it had sent."""
    ours, theirs = socket_channels()
    ours.send(Grant(generation=0, lane=0, chunks=1))
    theirs.send(ReadyMessage(pid=4), b"sent before")
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.send(Stop())
    got = ours.receive(wait=False)
    assert got is not None
    assert (got[0], bytes(got[1])) == (ReadyMessage(pid=4), b"sent before")
    with pytest.raises(ChannelClosed):
        ours.receive(wait=False)
    ours.close()


class Struck(socket.socket):
    """Each of its calls ends with an alarm."""

    def _struck(self, done: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return done

    def send(self, *arguments: Any) -> int:  # type: ignore[override]
        return self._struck(super().send(*arguments))  # type: ignore[no-any-return]

    def sendall(self, *arguments: Any) -> None:  # type: ignore[override]
        self._struck(super().sendall(*arguments))

    def recv_into(self, *arguments: Any) -> int:  # type: ignore[override]
        return self._struck(super().recv_into(*arguments))  # type: ignore[no-any-return]


@pytest.mark.parametrize("queued", [True, False], ids=["main", "worker"])
def test_what_a_handler_raises_is_not_taken_for_the_end_of_the_connection(queued: bool) -> None:
    def handler(*_: object) -> None:
        raise TimeoutError("the user's")  # an OSError, as those of sockets

    ours, theirs = socket_pair()
    channel = SocketChannel(Struck(fileno=ours.detach()), queued=queued)
    other = SocketChannel(theirs, queued=True)
    other.send(Stop())
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError, match="the user's"):
            channel.send(ReadyMessage(pid=1))
        with pytest.raises(TimeoutError, match="the user's"):
            channel.receive(wait=False)
        other.close()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        with pytest.raises(ChannelClosed):
            while True:
                channel.send(ReadyMessage(pid=1))
    finally:
        signal.signal(signal.SIGALRM, before)
        channel.close()
