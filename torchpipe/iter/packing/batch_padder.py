"""``pad_batch``: a batch of samples of several lengths as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import default_collate

from torchpipe.iter._shared.arrays import FIELD, as_array, field_name
from torchpipe.iter._shared.bases import Itemwise
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_choice, check_count

__all__ = ["BatchPadder"]


@functional_datapipe("pad_batch")
class BatchPadder(Itemwise[Any]):
    """Pads the samples of each batch (a list, from ``batch`` or its like) to one length, and stacks them.

    Samples are sequences of numbers (lists, arrays, tensors), of any shape behind the first dimension: the result is a
    pair of a tensor (samples, length, ...) and their lengths (int64). Or they are dicts: each field that holds
    sequences is padded and has its lengths in ``<field>_lengths``; the others are collated as torch does.

    The length is that of the longest sample, or the next in ``length``, a number or a list of them, or the next
    multiple of ``multiple_of``; on XLA, few lengths mean few compilations. ``pad_value`` is a number or a dict of them;
    ``side="left"`` pads before the sample.

    State: none of its own.

    Raises: ValueError for counts below 1 and options that contradict each other. While iterating: ValueError for a
    sample longer than ``length``, TypeError for another batch.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        pad_value: Any = 0,
        *,
        length: int | Sequence[int] | None = None,
        multiple_of: int | None = None,
        side: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(datapipe)
        check_choice("side", side, ("left", "right"))
        if length is not None and multiple_of is not None:
            raise ValueError("length= and multiple_of= both say to what length: give one of them")
        lengths = () if length is None else tuple(length) if isinstance(length, Iterable) else (length,)
        self.pad_value = dict(pad_value) if isinstance(pad_value, Mapping) else pad_value
        self.length = tuple(sorted(check_count("length", number, at_least=1) for number in lengths))
        if length is not None and not self.length:
            raise ValueError("length must name at least one length, got an empty list")
        self.multiple_of = None if multiple_of is None else check_count("multiple_of", multiple_of, at_least=1)
        self.side = side

    def padded_length(self, longest: int) -> int:
        """What a batch is padded to. Raises: ValueError."""
        if self.length:
            for length in self.length:
                if longest <= length:
                    return length
            raise ValueError(
                f"pad_batch got a sample of length {longest}, more than length={self.length[-1]}: cut or filter these "
                "samples before, or give a greater length"
            )
        step = self.multiple_of or 1
        return -(-longest // step) * step

    def change(self, item: Any) -> Any:
        if not isinstance(item, list) or not item:
            raise TypeError(
                f"pad_batch needs lists of samples, got {item!r:.60} of type {type(item).__name__}: put batch(), "
                "or another node that gathers samples, before it"
            )
        return self._dicts(item) if isinstance(item[0], Mapping) else self._padded(FIELD, item)

    def _dicts(self, batch: list[Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name in batch[0]:
            try:
                values = [sample[name] for sample in batch]
            except (KeyError, TypeError) as error:
                raise KeyError(f"field {name!r} is not in every sample of a batch of {len(batch)}") from error
            if _is_sequence(values[0]):
                made[name], made[f"{name}_lengths"] = self._padded(name, values)
            else:
                made[name] = default_collate(values)
        return made

    def _padded(self, name: str, values: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        arrays = [as_array("pad_batch", name, value)[0] for value in values]
        first = next((array for array in arrays if len(array)), arrays[0])  # an empty list has no dtype
        lengths = [len(array) for array in arrays]
        pad = self.pad_value.get(name, 0) if isinstance(self.pad_value, dict) else self.pad_value
        made = np.full((len(arrays), self.padded_length(max(lengths)), *first.shape[1:]), pad, first.dtype)
        for row, array, size in zip(made, arrays, lengths):
            if size and (array.dtype != first.dtype or array.shape[1:] != first.shape[1:]):
                raise TypeError(
                    f"pad_batch cannot stack {array.dtype} of shape {array.shape} and {first.dtype} of shape "
                    f"{first.shape}, where {field_name(name)} has both: only the first dimension may differ"
                )
            if self.side == "right":
                row[:size] = array
            elif size:
                row[-size:] = array
        return torch.from_numpy(made), torch.tensor(lengths, device="cpu")


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim > 0
    return isinstance(value, list | tuple | range) and not any(isinstance(part, str) for part in value)
