"""The device that is none: batches stay where they are. For code that takes its device from a setting."""

from __future__ import annotations

from typing import Any

__all__ = ["CpuBackend"]


class CpuBackend:
    """Hands batches on unchanged, whatever device their tensors are on. They share their memory with the source."""

    name = "cpu"
    releases_source = False

    def prepare(self) -> None:
        return

    def transfer(self, batch: Any, /) -> Any:
        return batch

    def receive(self, moved: Any, /) -> Any:
        return moved

    def close(self) -> None:
        return

    def sync(self) -> None:
        """Nothing is recorded: all has been done when a call returns."""

    def wait(self) -> None:
        """Nothing is under way."""
