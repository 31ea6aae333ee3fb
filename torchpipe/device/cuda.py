"""CUDA: copies from pinned memory on a stream of their own, while the consumer's stream computes.

``tools/gpu_check.sh`` tests it where there is a GPU. Follows the notes on ``record_stream`` and on pinned memory in
PyTorch's "CUDA semantics".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from torchpipe.device.pinned import pinned_copy
from torchpipe.device.tree import is_wrapper, kind_of, path_of, replace_tensors, restored, values_of

__all__ = ["CudaBackend"]


@cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all passes: torch's allocator keeps freed memory by stream, so each new stream would keep some more."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _InFlight:
    batch: Any
    there: list[torch.Tensor]  # its tensors whose memory is of another stream than the consumer's, maybe
    done: torch.cuda.Event
    left: bool  # True if there are tensors that the consumer's own stream copies


class CudaBackend:
    """Copies batches to ``cuda[:index]``, asynchronously; the current device if ``index`` is None.

    Tensors that are on the device already are passed on, after what the thread's stream has been given to do before.
    ``requires_grad``, Parameters and subclasses with their attributes are kept. Sparse, nested and quantized tensors,
    wrapper subclasses and parts of an autograd graph are moved by ``tensor.to(device)`` when the batch is handed out.
    Several threads may call ``transfer``.

    Raises: ``prepare``: RuntimeError where CUDA cannot be used, ValueError if there is no device ``index``.
    """

    name = "cuda"
    releases_source = True  # only copies from staging memory are under way when transfer() returns

    def __init__(self, index: int | None = None) -> None:
        self._index = index
        self._stream: torch.cuda.Stream | None = None
        self._device = torch.device("cuda")

    def prepare(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"device 'cuda': torch {torch.__version__} finds no CUDA device here. Is this a CUDA build of torch, "
                "and is the driver installed? Choose the device 'cpu' to run without one"
            )
        if self._index is not None and self._index >= torch.cuda.device_count():
            raise ValueError(
                f"there is no device cuda:{self._index}; this process has {torch.cuda.device_count()}. Is "
                "CUDA_VISIBLE_DEVICES as it should be?"
            )
        self._device = torch.device("cuda", torch.cuda.current_device() if self._index is None else self._index)
        self._stream = _copying_stream(self._device)

    def transfer(self, batch: Any, /) -> _InFlight:
        """Begin to copy; the pinned staging memory is kept by torch's allocator until the copy is done."""
        stream = self._stream
        assert stream is not None, "transfer() before prepare()"
        there: list[torch.Tensor] = []
        left = False

        def move(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            nonlocal left
            if any(tensor.device == self._device for tensor in tensors):  # this thread's stream may still make them
                stream.wait_stream(before)
            moved = [self._moved(tensor) for tensor in tensors]
            there.extend(tensor for tensor in moved if tensor.device == self._device and _is_plain(tensor))
            left = any(tensor.device != self._device for tensor in moved)
            return moved

        # The device first: a thread that has chosen none is at cuda:0, and to go back there from a stream of another
        # device would start a context on cuda:0, while to go back from another device does not.
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                moved = replace_tensors(batch, move)
                done = stream.record_event()  # type: ignore[no-untyped-call]
        return _InFlight(moved, there, done, left)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self._device or not _is_plain(tensor) or tensor.grad_fn is not None:
            return tensor
        values = values_of(tensor).detach()
        if tensor.device.type == "cpu" and not values.is_pinned():
            moved = pinned_copy(values).to(self._device, non_blocking=True)
        else:
            moved = values.to(self._device)  # waits: whoever pinned it may write to it, or let it go, from now on
        kind = kind_of(tensor)
        return moved.requires_grad_(tensor.requires_grad) if kind is None else restored(moved, kind)

    def receive(self, moved: _InFlight, /) -> Any:
        """Let the consumer's current stream wait for the copy, and its memory for the consumer's last use."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(moved.done)
        for tensor in moved.there:
            tensor.record_stream(stream)
        return self._all_of(moved.batch) if moved.left else moved.batch

    def _all_of(self, batch: Any) -> Any:
        def move(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            moved = [tensor if tensor.device == self._device else tensor.to(self._device) for tensor in tensors]
            for old, new in zip(tensors, moved):
                if new.device != self._device:
                    raise TypeError(
                        f"{path_of(batch, old)} cannot be moved to {self._device}: to({str(self._device)!r}) of this "
                        f"{type(old).__name__} leaves it on {new.device}. Unwrap it in a map() before to_device()"
                    )
            return moved

        return replace_tensors(batch, move)

    def close(self) -> None:
        return

    def sync(self) -> None:
        """Nothing is recorded: CUDA starts each operation when it is called."""

    def wait(self) -> None:
        """Wait until the consumer's current stream has done its work."""
        torch.cuda.current_stream(self._device).synchronize()


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if it has memory of its own with all its values, which a stream can be told of."""
    strided = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return strided and not is_wrapper(tensor)
