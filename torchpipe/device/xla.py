"""XLA: one grouped transfer a batch. The only file that imports torch_xla, and only when a pass begins.

Runs ``transfer`` in the feed thread. There it moves data and does nothing else: a lazy operation in that thread would
become part of whatever graph the consumer is building. ``torch_xla.sync()`` is left to the training loop.
Imports ``device.tree``. What torch_xla does with each dtype and layout was measured on 2.9.0 (PJRT CPU).
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from torchpipe.device.tree import path_of, replace_tensors

__all__ = ["XlaBackend"]

_INSTALL = "pip install 'torchpipe[xla]' (torch_xla 2.9, which needs torch 2.9)"

_EXACT = frozenset(
    (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    )
)
_CASTS = {  # what becomes of the other dtypes, and what to cast to instead
    torch.uint16: ("would arrive as int16, with values from 32768 on negative", "torch.int32"),
    torch.uint32: ("would arrive as int32, with values from 2**31 on negative", "torch.int64"),
    torch.uint64: ("would arrive as int64, with values from 2**63 on negative", "torch.int64, if the values fit"),
    torch.complex128: ("would lose its imaginary part", "torch.complex64"),
}


class XlaBackend:
    """Moves the tensors of a batch to ``xla[:index]``; torch_xla's default device if ``index`` is None.

    Values and dtypes arrive exactly; memory formats other than contiguous are lost, as XLA has its own. Tensors on that
    device already are passed on. ``requires_grad`` is kept.

    Raises: ImportError if torch_xla is not installed or does not fit torch. ``prepare``: ValueError if there is no
    device ``index``. ``transfer``: TypeError, naming the tensor, for what torch_xla would change or leave on the CPU:
    unsigned integers above 8 bits, complex128, sparse, nested and quantized tensors, subclasses, parts of an autograd
    graph, tensors on other devices.
    """

    name = "xla"
    releases_source = True  # the host memory has been copied when the call returns; tested from 16 B to 64 MB

    def __init__(self, index: int | None = None) -> None:
        if importlib.util.find_spec("torch_xla") is None:
            raise ImportError(f"to_device('xla') needs torch_xla, which is not installed: {_INSTALL}", name="torch_xla")
        self._index = index
        self._device = torch.device("xla")

    def prepare(self) -> None:
        """Import torch_xla, which takes seconds the first time, and find the device of the consumer's thread."""
        try:
            import torch_xla
        except ImportError as error:
            raise ImportError(
                f"torch_xla is installed but cannot be imported beside torch {torch.__version__}: {error}. "
                f"Install matching versions: {_INSTALL}",
                name="torch_xla",
            ) from error
        if self._index is None:
            self._device = torch_xla.device()
            return
        devices = torch_xla.devices()
        if self._index >= len(devices):
            raise ValueError(
                f"there is no device xla:{self._index}; this process has {', '.join(map(str, devices))}. Are "
                "PJRT_DEVICE and, on the CPU, CPU_NUM_DEVICES set as they should be?"
            )
        self._device = devices[self._index]

    def transfer(self, batch: Any, /) -> Any:
        def send(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            for tensor in tensors:
                trouble = self._trouble(tensor)
                if trouble:
                    where = path_of(batch, tensor)
                    raise TypeError(
                        f"{where} cannot be moved to {self._device}: {trouble} on the host, for instance in a map() "
                        "before to_device()"
                    )
            return self._send(tensors)

        return replace_tensors(batch, send)

    def _send(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        import torch_xla.core.xla_model as xm

        here = [tensor.resolve_conj().resolve_neg() for tensor in tensors if tensor.device != self._device]
        sent: Any = xm.send_cpu_data_to_device(here, self._device) if here else []
        moved = iter(sent)
        return [tensor if tensor.device == self._device else next(moved) for tensor in tensors]

    def _trouble(self, tensor: torch.Tensor) -> str | None:
        """Why ``tensor`` would not arrive as it is, and what to do about it; None if it would."""
        if tensor.device == self._device:
            return None
        kind = type(tensor).__name__
        if tensor.is_nested:
            return "it is a nested tensor. Pad it with to_padded_tensor(...)"
        if tensor.is_quantized:
            return f"it is quantized ({tensor.dtype}). Dequantize it, or take int_repr(),"
        if tensor.layout is not torch.strided:
            return f"its layout is {tensor.layout}. Make it dense with to_dense()"
        if tensor.device.type != "cpu":
            return f"it is on {tensor.device}. Keep batches"
        if type(tensor) is not torch.Tensor:
            return f"it is a {kind}, and would stay on the CPU. Use detach().as_subclass(torch.Tensor)"
        if tensor.grad_fn is not None:
            return "it is part of an autograd graph, which ends at the transfer. Use detach()"
        if tensor.dtype in _EXACT:
            return None
        fate, cast = _CASTS.get(tensor.dtype, ("is unknown to torch_xla", "a dtype that XLA has"))
        return f"its dtype {tensor.dtype} {fate}. Cast it to {cast}"

    def receive(self, moved: Any, /) -> Any:
        return moved

    def close(self) -> None:
        return
