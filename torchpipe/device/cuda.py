"""CUDA: copies from pinned memory on a stream of their own, while the consumer's stream computes.

Not run on a GPU in this project's tests so far: they had none. What is shared with the other backends is tested.
Follows the notes on ``record_stream`` and on pinned memory in PyTorch's "CUDA semantics".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchpipe.device.tree import replace_tensors

__all__ = ["CudaBackend"]


@dataclass(frozen=True, slots=True)
class _InFlight:
    batch: Any
    tensors: list[torch.Tensor]  # of the batch, allocated on the copying stream
    done: torch.cuda.Event


class CudaBackend:
    """Copies batches to ``cuda[:index]``, asynchronously; the current device if ``index`` is None.

    ``prepare`` raises RuntimeError where CUDA cannot be used. Tensors that are on the device already are passed on.
    """

    name = "cuda"
    releases_source = False  # tensors that the user pinned are read after transfer() has returned

    def __init__(self, index: int | None = None) -> None:
        self._index = index
        self._stream: torch.cuda.Stream | None = None
        self._device = torch.device("cuda")

    def prepare(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"to_device('cuda'): torch {torch.__version__} finds no CUDA device here. Is this a CUDA build of "
                "torch, and is the driver installed? Use to_device('cpu') to run without one"
            )
        if self._index is not None and self._index >= torch.cuda.device_count():
            raise ValueError(
                f"there is no device cuda:{self._index}; this process has {torch.cuda.device_count()}. Is "
                "CUDA_VISIBLE_DEVICES as it should be?"
            )
        self._device = torch.device("cuda", torch.cuda.current_device() if self._index is None else self._index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def transfer(self, batch: Any, /) -> _InFlight:
        """Begin to copy; the pinned staging memory is kept by torch's allocator until the copy is done."""
        assert self._stream is not None, "transfer() before prepare()"
        copied: list[torch.Tensor] = []

        def copy(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            moved = [self._copy(tensor) for tensor in tensors]
            copied.extend(new for new, old in zip(moved, tensors) if new is not old)
            return moved

        with torch.cuda.stream(self._stream):
            moved = replace_tensors(batch, copy)
            done = self._stream.record_event()  # type: ignore[no-untyped-call]
        return _InFlight(moved, copied, done)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def receive(self, moved: _InFlight, /) -> Any:
        """Let the consumer's current stream wait for the copy, and its memory for the consumer's last use."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(moved.done)
        for tensor in moved.tensors:
            tensor.record_stream(stream)
        return moved.batch

    def close(self) -> None:
        self._stream = None

    def sync(self) -> None:
        """Nothing is recorded: CUDA starts each operation when it is called."""

    def wait(self) -> None:
        """Wait until the consumer's current stream has done its work."""
        torch.cuda.current_stream(self._device).synchronize()
