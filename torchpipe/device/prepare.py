"""The steps of a batch on the host, before it is moved: numpy arrays, dtype, and the guard of its shapes.

Runs in the thread that pulls, batch by batch in order: the guard's decisions are a function of the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from torchpipe.ahead.stage import Admitted, Stage
from torchpipe.device.backend import Backend, DeviceOptions, PadTo, pace_for
from torchpipe.device.tree import children, path_of, replace_arrays, replace_tensors, tensors_in
from torchpipe.errors import StateError

__all__ = ["BatchGate", "stage_for", "tensor_of"]

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each tensor, in the batch's order

_MAX_SEEN = 1 << 16  # beyond, new shapes are no longer counted
_MAX_WARNINGS = 10

_log = logging.getLogger("torchpipe")


class BatchGate:
    """Prepares batches as the options say. The first batch's shapes are the reference for those that follow.

    ``reference`` is plain data or None, and a part of the state: after a restore the same batches are padded, left out
    or refused. It is kept only by the policies that need it.
    """

    def __init__(self, options: DeviceOptions, name: str) -> None:
        self.new_shapes = 0
        self._options = options
        self._name = name
        self._reference: Shapes | None = None
        self._seen: set[int] = set()

    def load(self, reference: Any) -> None:
        """Take the reference that a state holds. Raises: StateError if it is damaged."""
        try:
            self._reference = tuple((str(dtype), tuple(int(size) for size in shape)) for dtype, shape in reference)
        except (TypeError, ValueError) as error:
            raise StateError(f"the state's shapes are damaged: {reference!r}. Use an older checkpoint") from error

    def admit(self, batch: Any, /) -> Admitted | None:
        if self._options.convert_numpy:
            batch = replace_arrays(batch, tensor_of)
        if self._options.dtype is not None:
            batch = replace_tensors(batch, self._cast)
        tensors = tensors_in(batch)
        sizes = _sizes_for(batch, tensors, self._options.pad_to)
        if any(sizes):
            batch = self._to_sizes(batch, tensors, sizes)
            tensors = tensors_in(batch)
        shapes: Shapes = tuple((str(tensor.dtype), tuple(_size(tensor))) for tensor in tensors)
        if tensors:  # else it has no shape: it may stand for a batch that could not be made
            self._count(shapes)
        mark = None
        if self._options.on_new_shape in ("pad", "drop", "raise"):
            if self._reference is None:
                self._reference = shapes
                mark = [[dtype, list(shape)] for dtype, shape in shapes]
            elif shapes != self._wanted(shapes, sizes):
                if self._options.on_new_shape == "drop":
                    return None
                if self._options.on_new_shape == "raise":
                    raise ValueError(self._difference(batch, tensors, shapes, "is refused: on_new_shape='raise'"))
                batch = self._pad(batch, tensors, shapes, self._wanted(shapes, sizes))
                tensors = tensors_in(batch)
        return Admitted(batch, sum(map(_nbytes, tensors)), mark)

    def _cast(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        dtype = self._options.dtype
        assert isinstance(dtype, torch.dtype)
        return [tensor if _is_fixed(tensor) else _as_dtype(tensor, dtype) for tensor in tensors]

    def _count(self, shapes: Shapes) -> None:
        key = hash(shapes)
        if key in self._seen or len(self._seen) >= _MAX_SEEN:
            return
        first = not self._seen
        self._seen.add(key)
        if first:
            return
        self.new_shapes += 1
        if self._options.on_new_shape == "warn":
            level = logging.WARNING if self.new_shapes <= _MAX_WARNINGS else logging.DEBUG
            _log.log(
                level,
                "%s: a batch has shapes that this pass has not had before (new shapes so far: %d): %s. XLA compiles "
                "anew for each",
                self._name,
                self.new_shapes,
                _text(shapes),
            )

    def _wanted(self, shapes: Shapes, sizes: list[tuple[int, ...]]) -> Shapes:
        """The reference, but for dimension 1 of those that have sizes of their own for it."""
        reference = self._reference
        assert reference is not None
        if not any(sizes) or len(shapes) != len(reference):
            return reference
        return tuple(
            (dtype, (*wanted[:1], *shape[1:2], *wanted[2:]) if own else wanted)
            for own, (_, shape), (dtype, wanted) in zip(sizes, shapes, reference)
        )

    def _to_sizes(self, batch: Any, tensors: list[torch.Tensor], sizes: list[tuple[int, ...]]) -> Any:
        """Fill dimension 1 up to the next of ``sizes``."""
        wanted = []
        for tensor, own in zip(tensors, sizes):
            shape = _size(tensor)
            if own:
                size = next((size for size in own if size >= shape[1]), None)
                if size is None or (size > shape[1] and tensor.device.type != "cpu"):
                    raise ValueError(
                        f"{path_of(batch, tensor)} of {list(shape)} on {tensor.device} cannot be padded in dimension 1 "
                        f"to one of {list(own)}: cut it in a map() before, or let pad_to have a larger size"
                    )
                shape = (shape[0], size, *shape[2:])
            wanted.append(shape)
        return replace_tensors(batch, lambda parts: [self._padded(*pair) for pair in zip(parts, wanted)])

    def _pad(self, batch: Any, tensors: list[torch.Tensor], shapes: Shapes, reference: Shapes) -> Any:
        if len(shapes) != len(reference):
            raise ValueError(self._difference(batch, tensors, shapes, "cannot be padded"))
        for tensor, (dtype, shape), (wanted_dtype, wanted) in zip(tensors, shapes, reference):
            grows = len(shape) == len(wanted) and all(size <= want for size, want in zip(shape, wanted))
            here = tensor.device.type == "cpu" or shape == wanted  # elsewhere it would be a lazy operation, maybe
            if dtype != wanted_dtype or not grows or not here:
                raise ValueError(self._difference(batch, tensors, shapes, "cannot be padded"))
        return replace_tensors(
            batch, lambda parts: [self._padded(part, wanted) for part, (_, wanted) in zip(parts, reference)]
        )

    def _padded(self, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if _size(tensor) == shape:
            return tensor
        filled = torch.full(shape, self._options.pad_value, dtype=tensor.dtype, device=tensor.device)
        filled[tuple(slice(0, size) for size in tensor.shape)] = tensor
        return filled

    def _difference(self, batch: Any, tensors: list[torch.Tensor], shapes: Shapes, fate: str) -> str:
        reference = self._reference
        assert reference is not None
        if len(shapes) != len(reference):
            return (
                f"a batch with {len(shapes)} tensors {fate}: the first one of this pass had {len(reference)}. Collate "
                "batches so that all have the same parts, or use on_new_shape='allow'"
            )
        index = next(number for number, (ours, theirs) in enumerate(zip(shapes, reference)) if ours != theirs)
        return (
            f"{path_of(batch, tensors[index])} of {_text(shapes[index : index + 1])} {fate}: in the first batch of "
            f"this pass it was {_text(reference[index : index + 1])}. Drop the last, smaller batch "
            "(batch(..., drop_last=True)), pad in a map() to a few fixed sizes, or use on_new_shape='allow'"
        )


def stage_for(backend: Backend, options: DeviceOptions, name: str) -> Stage:
    """The stage that prepares batches and moves them to ``backend`` as ``options`` say; messages call it ``name``."""
    return Stage(
        depth=options.device_prefetch,
        mover=backend,
        gate=BatchGate(options, name),
        pacer=pace_for(backend, options),
        limits=options.limits,
    )


def _sizes_for(batch: Any, tensors: list[torch.Tensor], pad_to: PadTo | None) -> list[tuple[int, ...]]:
    """For each tensor the sizes that its dimension 1 may have; () if it has none, or may have any."""
    if pad_to is None:
        return []
    own = dict.fromkeys(map(id, tensors), () if isinstance(pad_to, Mapping) else tuple(pad_to))
    if isinstance(pad_to, Mapping):
        names = getattr(batch, "_fields", ())
        for key, _, part in children(batch):
            sizes = pad_to.get(key, pad_to.get(names[key]) if names else None)
            if sizes:
                own.update(dict.fromkeys(map(id, tensors_in(part)), tuple(sizes)))
    return [own[id(tensor)] if len(_size(tensor)) > 1 else () for tensor in tensors]


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """A tensor over the memory of ``array``, or over a copy where torch cannot have that; None if it holds no numbers.

    Raises: TypeError for numbers that torch does not know.
    """
    if array.dtype.kind not in "biufc":
        return None
    if not array.dtype.isnative:
        raise TypeError(
            f"a numpy array of dtype {array.dtype.str!r} has the other byte order than this machine, which torch does "
            "not know: convert it with array.astype(array.dtype.newbyteorder('='))"
        )
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise TypeError(f"torch has no dtype for a numpy array of {array.dtype}: cast it on the host") from error


def _is_fixed(tensor: torch.Tensor) -> bool:
    """True if this one keeps its dtype: integers, what is on a device, and what the backend will refuse anyhow."""
    plain = tensor.device.type == "cpu" and tensor.is_floating_point() and not tensor.is_quantized
    return not plain or tensor.grad_fn is not None


def _as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def _size(tensor: torch.Tensor) -> tuple[int, ...]:
    # A nested tensor has no one size; the backend says what it makes of such a tensor.
    return () if tensor.is_nested else tuple(tensor.shape)


def _nbytes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_nested else tensor.numel() * tensor.element_size()


def _text(shapes: Shapes) -> str:
    shown = ", ".join(f"{dtype.removeprefix('torch.')}{list(shape)}" for dtype, shape in shapes[:8])
    return shown + (f" and {len(shapes) - 8} more" if len(shapes) > 8 else "")
