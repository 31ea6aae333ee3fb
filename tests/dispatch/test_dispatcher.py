"""The dispatcher's loop in a thread, with real sockets, and a worker that goes away at the worst moment."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from reading_services.engine.messages import StartDispatch
from reading_services.hosting.dispatch import DispatchHost
from reading_services.processes.channel import SocketChannel, socket_pair
from reading_services.processes.dispatch_link import Listener, RemoteSupply, Superseded, connect
from reading_services.processes.dispatcher import Dispatcher
from reading_services.processes.status_page import StatusPage
from reading_services.processes.wire import RequestMessage, Stop
from torchpipe.iter import IterableWrapper
from torchpipe.node.traits import DataPipe
from torchpipe.state import Cursor, SnapshotPolicy


@contextmanager
def dispatcher(graph: DataPipe, *, num_shards: int) -> Iterator[tuple[str, SocketChannel]]:
    """Where a dispatcher of ``graph`` serves, and a channel that closes if it fails; what it raised is raised then."""
    ours, theirs = socket_pair()
    watched, watching = socket_pair()
    listener, page = Listener(), StatusPage()
    channel, control = SocketChannel(ours, queued=False), SocketChannel(watching, queued=True)
    host = DispatchHost(graph, partial(SnapshotPolicy, every=1), page, "here")
    loop = Dispatcher(SocketChannel(theirs, queued=True), page, listener.socket, host)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with closing(loop):
                loop.run()
        except BaseException as error:
            raised.append(error)
            watched.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        channel.send(
            StartDispatch(
                generation=1,
                seed=1,
                epoch=0,
                num_shards=num_shards,
                rank=0,
                world_size=1,
                mark=Cursor(),
                needed=tuple((shard, 0) for shard in range(num_shards)),
                isolate_before=0,
                isolate_items=False,
                fail_at=None,
            )
        )
        yield listener.address, control
    except Superseded:
        assert raised
    finally:
        if thread.is_alive():
            channel.send(Stop())
        thread.join()
        channel.close()
        control.close()
        watched.close()
        listener.close()
        page.close()
    if raised:
        raise raised[0]


def test_L4_a_worker_of_several_shards_dies_while_items_are_made() -> None:
    """It is noticed as the first shard is told its end; nothing is dealt to the others until another worker asks."""
    first = SocketChannel(socket.socket(), queued=False)
    asked = threading.Event()

    def die(item: str) -> bool:
        asked.wait()
        first.close()
        return False

    with dispatcher(IterableWrapper(["dropped"]).filter(die), num_shards=3) as (address, control):
        first = SocketChannel(connect(address), queued=False)
        for shard in range(3):
            first.send(RequestMessage(generation=1, shard=shard, items=10))
        asked.set()
        second = RemoteSupply(
            SocketChannel(connect(address), queued=False),
            control,
            generation=1,
            shards=[2],
            window=10,
        )
        while isinstance(entry := second.take(2), Cursor):
            pass
        assert entry is None
        second.close()


def test_L4_a_worker_that_was_one_too_many_asks_once_more_for_a_shard_that_another_has() -> None:
    """It is told nothing while it makes an item. Its request took the place of the other's, which waited for ever."""
    making, asked = threading.Event(), threading.Event()

    def slow(item: int) -> int:
        making.set()
        asked.wait()
        time.sleep(0.01)  # so that requests are looked at between two items
        return item

    with (
        dispatcher(IterableWrapper(range(8)).map(slow), num_shards=8) as (address, control),
        closing(SocketChannel(connect(address), queued=False)) as former,
    ):
        former.send(RequestMessage(generation=0, shard=6, items=1))
        new = RemoteSupply(SocketChannel(connect(address), queued=False), control, generation=1, shards=[7], window=1)
        making.wait()
        former.send(RequestMessage(generation=0, shard=7, items=1))
        asked.set()
        while isinstance(entry := new.take(7), Cursor):
            pass
        assert entry is not None
        assert entry[0] == 7
        new.close()
