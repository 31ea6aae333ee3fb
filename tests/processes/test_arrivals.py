"""What has come of a worker: as it is, or as an error in its place."""

from __future__ import annotations

from reading_services.processes.payloads import Receiver
from reading_services.processes.pool import arrival_of
from reading_services.processes.wire import ChunkMessage, Layout


def test_what_cannot_be_received_is_an_error_in_its_place() -> None:
    """It was raised in the midst of what had arrived, and the rest of that was lost: an item fewer, without a word."""
    message = ChunkMessage(
        generation=1, lane=0, count=2, layout=Layout(sizes=(9,), slot=0), snapshot=None, ended=False, error=None
    )
    arrival = arrival_of(message, memoryview(b""), Receiver(None))  # no arena: it cannot be mapped
    assert (arrival.count, arrival.over) == (0, True)
    assert isinstance(arrival.error, Exception)
