"""XLA: one grouped transfer a batch. torch_xla is imported when a pass begins, not before.

Runs ``transfer`` in the feed thread. There it moves data and does nothing else: a lazy operation in that thread would
become part of whatever graph the consumer is building. ``sync`` and ``wait`` are called in the consumer's thread. What
torch_xla does with each dtype and layout was measured on 2.9.0 (PJRT CPU).
"""

from __future__ import annotations

import importlib.util
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch

from torchpipe.compat import xla_private
from torchpipe.device.sharding import check_rank, check_specs, specs_for, specs_in
from torchpipe.device.tree import Kind, is_wrapper, kind_of, path_of, replace_tensors, restored, values_of

__all__ = ["XlaBackend"]

_INSTALL = "pip install torch==2.9.0 torch_xla==2.9.0"

_log = logging.getLogger("torchpipe")

_EXACT = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
_CASTS = {  # what becomes of the other dtypes, and what to cast to instead
    torch.uint16: ("would arrive as int16, with values from 32768 on negative", "torch.int32"),
    torch.uint32: ("would arrive as int32, with values from 2**31 on negative", "torch.int64"),
    torch.uint64: ("would arrive as int64, with values from 2**63 on negative", "torch.int64, if the values fit"),
    torch.complex128: ("would lose its imaginary part", "torch.complex64"),
}


@dataclass(frozen=True, slots=True)
class _Sent:
    """A moved batch some of whose tensors are to get their subclass back, by the id of the moved one."""

    batch: Any
    kinds: dict[int, Kind]


class XlaBackend:
    """Moves the tensors of a batch to ``xla[:index]``; torch_xla's default device if ``index`` is None.

    Values and dtypes arrive exactly; memory formats other than contiguous are lost, as XLA has its own. Tensors on that
    device already are passed on. ``requires_grad``, Parameters and subclasses with their attributes are kept.
    ``input_sharding`` divides batches over the devices of an SPMD program: a spec for all tensors, or a tree like the
    batch. Several threads may call ``transfer``.

    Raises: ImportError if torch_xla is not installed or does not fit torch. ``prepare``: ValueError if there is no
    device ``index`` or a spec does not fit its mesh, RuntimeError for a sharding without SPMD. ``transfer``: TypeError,
    naming the tensor, for what torch_xla would change or leave on the CPU: unsigned integers above 8 bits, complex128,
    sparse, nested and quantized tensors, wrapper subclasses, parts of an autograd graph, tensors on other devices;
    ValueError for a tensor that ``input_sharding`` does not fit, KeyError for one that it has nothing for, RuntimeError
    for rows of a minibatch that the devices do not divide.
    """

    name = "xla"
    releases_source = True  # the host memory has been copied when the call returns; tested from 16 B to 64 MB

    def __init__(self, index: int | None = None, *, input_sharding: Any = None) -> None:
        if importlib.util.find_spec("torch_xla") is None:
            raise ImportError(f"to_device('xla') needs torch_xla, which is not installed: {_INSTALL}", name="torch_xla")
        if input_sharding is not None:
            check_specs(input_sharding)
        self._index = index
        self._device = torch.device("xla")
        self._sharding = input_sharding
        self._host_devices = 1

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
        self._device = torch_xla.device() if self._index is None else self._device_at(self._index)
        self._prepare_sharding()

    def _device_at(self, index: int) -> torch.device:
        import torch_xla

        devices: list[torch.device] = torch_xla.devices()
        if index >= len(devices):
            raise ValueError(
                f"there is no device xla:{index}; this process has {', '.join(map(str, devices))}. Are "
                "PJRT_DEVICE and, on the CPU, CPU_NUM_DEVICES set as they should be?"
            )
        return devices[index]

    def _prepare_sharding(self) -> None:
        import torch_xla.runtime

        xr: Any = torch_xla.runtime
        if self._sharding is None:
            if xr.is_spmd():
                _log.warning(
                    "to_device('xla') under SPMD without input_sharding copies every batch to each of %d devices. Pass "
                    "input_sharding=..., to divide them",
                    xr.global_runtime_device_count(),
                )
            return
        if not xr.is_spmd():
            raise RuntimeError(
                "input_sharding needs SPMD: call torch_xla.runtime.use_spmd() when the program begins, before the mesh "
                "and any tensor on the device are made"
            )
        self._host_devices = xr.addressable_runtime_device_count()
        for spec in specs_in(self._sharding):
            _layout(spec)

    def transfer(self, batch: Any, /) -> Any:
        kinds: dict[int, Kind] = {}

        def send(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            for tensor in tensors:
                trouble = self._trouble(tensor)
                if trouble:
                    raise TypeError(
                        f"{path_of(batch, tensor)} cannot be moved to {self._device}: {trouble} on the host, for "
                        "instance in a map() before to_device()"
                    )
            moved = self._send(batch, tensors)
            for old, new in zip(tensors, moved):
                if new is not old and (kind := kind_of(old)) is not None:
                    kinds[id(new)] = kind
            return moved

        moved = replace_tensors(batch, send)
        return _Sent(moved, kinds) if kinds else moved

    def _send(self, batch: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        import torch_xla.core.xla_model as xm

        away = [tensor for tensor in tensors if tensor.device != self._device]
        if not away:
            return tensors
        here = [values_of(tensor) for tensor in away]
        if self._sharding is None:
            sent: Any = xm.send_cpu_data_to_device(here, self._device)
        else:
            specs = {id(tensor): spec for tensor, spec in specs_for(batch, self._sharding)}
            sent = self._send_divided(batch, away, here, [specs[id(tensor)] for tensor in away])
        moved = iter(sent)
        return [tensor if tensor.device == self._device else next(moved) for tensor in tensors]

    def _send_divided(
        self, batch: Any, tensors: list[torch.Tensor], plain: list[torch.Tensor], specs: list[Any]
    ) -> list[torch.Tensor]:
        # xm.send_cpu_data_to_device takes one spec for all, and leaves a tensor of another rank to be replicated.
        for tensor, spec in zip(tensors, specs):
            if spec is not None:
                check_rank(tensor, spec, path_of(batch, tensor), self._host_devices)
        made = [
            None
            if spec is None or not tensor.dim()
            else xla_private.sharding_spec(tensor, _layout(spec), bool(spec.minibatch))
            for tensor, spec in zip(plain, specs)
        ]
        return xla_private.send(plain, [str(self._device)] * len(plain), made)

    def _trouble(self, tensor: torch.Tensor) -> str | None:
        """Why ``tensor`` would not arrive as it is, and what to do about it; None if it would."""
        if tensor.device == self._device:
            return None
        if tensor.is_nested:
            return "it is a nested tensor. Pad it with to_padded_tensor(...)"
        if tensor.is_quantized:
            return f"it is quantized ({tensor.dtype}). Dequantize it, or take int_repr(),"
        if tensor.layout is not torch.strided:
            return f"its layout is {tensor.layout}. Make it dense with to_dense()"
        if tensor.device.type != "cpu":
            return f"it is on {tensor.device}. Keep batches"
        if is_wrapper(tensor):
            return f"it is a {type(tensor).__name__}, whose values are not in itself. Unwrap it"
        if tensor.grad_fn is not None:
            return "it is part of an autograd graph, which ends at the transfer. Use detach()"
        if tensor.dtype in _EXACT:
            return None
        fate, cast = _CASTS.get(tensor.dtype, ("is unknown to torch_xla", "a dtype that XLA has"))
        return f"its dtype {tensor.dtype} {fate}. Cast it to {cast}"

    def receive(self, moved: Any, /) -> Any:
        """Subclasses get their class back here: that is an operation on the device, and this the consumer's thread."""
        if not isinstance(moved, _Sent):
            return moved
        return replace_tensors(
            moved.batch, lambda tensors: [restored(item, moved.kinds.get(id(item))) for item in tensors]
        )

    def sync(self) -> None:
        """Start the computation recorded for this device, as ``torch_xla.sync()`` does for the thread's own."""
        import torch_xla

        if self._device == torch_xla.device():
            torch_xla.sync()
        else:
            xla_private.start_step(str(self._device))

    def wait(self) -> None:
        import torch_xla.core.xla_model as xm

        xm.wait_device_ops(xm.xla_real_devices([self._device]))

    def close(self) -> None:
        return


def _layout(spec: Any) -> tuple[Any, ...]:
    """The layout of ``spec`` as XLA takes it. Raises: ValueError, showing it, if it does not fit its mesh."""
    partition = tuple(tuple(part) if isinstance(part, list) else part for part in spec.partition_spec)
    if not partition:
        return ()
    try:
        layout = xla_private.op_sharding(spec.mesh, partition)
    except (ValueError, AssertionError, IndexError, TypeError) as error:
        raise ValueError(
            f"the sharding {partition!r} does not fit the mesh {spec.mesh}: {error}. Each part names one axis of the "
            "mesh, a tuple of axes or None, and no axis occurs twice"
        ) from error
    axes = dict(zip(spec.mesh.axis_names or (), spec.mesh.mesh_shape)) | dict(enumerate(spec.mesh.mesh_shape))
    first = partition[0] if isinstance(partition[0], tuple) else (partition[0],)
    parts = math.prod(axes[axis] for axis in first if axis is not None)
    if spec.minibatch and parts != spec.mesh.size():
        raise ValueError(
            f"the sharding {partition!r} with minibatch=True must divide the first dimension among all "
            f"{spec.mesh.size()} devices of the mesh {spec.mesh}, and divides it in {parts}: name all its axes there, "
            "as in (('data', 'model'), None)"
        )
    return layout
