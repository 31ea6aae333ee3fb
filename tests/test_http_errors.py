"""Errors of HTTP clients come out of worker processes with their type, status and text."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.request import urlopen

import pytest

from reading_services import MultiProcessingReadingService
from tests.servers import Page, web_server
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.node.failures import dump_error, load_error


class Mute(Exception):
    """Its text needs what it has lost."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        return str(self.request.url)  # type: ignore[attr-defined]


def get_by_aiohttp(url: str) -> Any:
    import aiohttp

    async def get() -> bytes:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url) as response:
            return await response.read()

    return asyncio.run(get())


def get_by_urllib(url: str) -> Any:
    with urlopen(url) as response:
        return response.read()


def get(url: str) -> Any:
    return get_by_aiohttp(url) if url.endswith("?aiohttp") else get_by_urllib(url)


@pytest.mark.parametrize("client", ["aiohttp", "urllib"])
@pytest.mark.parametrize("status", [404, 503])
def test_an_error_of_a_client_arrives_with_status_and_text(client: str, status: int) -> None:
    with web_server() as server:
        server.pages[f"/a?{client}"] = Page(status=status)
        graph = IterableWrapper([f"{server.address}/a?{client}"]).map(get)
        service = MultiProcessingReadingService(num_workers=1)
        with (
            DataLoader2(graph, reading_service=service) as loader,
            pytest.raises(Exception, match=str(status)) as caught,
        ):
            list(loader)
    assert getattr(caught.value, "status", None) == status
    assert type(caught.value).__name__ == ("ClientResponseError" if client == "aiohttp" else "HTTPError")
    again = load_error(dump_error(caught.value))
    assert (str(again), type(again).__name__) == (str(caught.value), type(caught.value).__name__)


def test_an_error_without_a_text_is_told_by_its_status() -> None:
    error = load_error(dump_error(Mute(503)))
    assert isinstance(error, Mute)
    assert error.status == 503
    assert "status=503" in str(error)
