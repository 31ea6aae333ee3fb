"""``pad_batch``: a batch of samples of several lengths as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import default_collate

from torchpipe.errors import add_note
from torchpipe.iter._shared.arrays import FIELD, as_array, field_name, given_pads, pads_of
from torchpipe.iter._shared.bases import Itemwise
from torchpipe.iter._shared.fields import check_same_fields
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
    multiple of ``multiple_of``; on XLA, few lengths mean few compilations. ``pad_value`` is a number or a dict of them
    by field, where 0 stands for those that it does not name; a number other than 0 is for fields of one kind (bool,
    whole, floating). ``side="left"`` pads before the sample.

    State: none of its own.

    Raises: ValueError for counts below 1 and options that contradict each other. While iterating: ValueError for a
    sample longer than ``length`` and a ``pad_value`` that names no field or that a field cannot hold; KeyError for a
    sample that has other fields than the first one of its batch; TypeError for another batch.
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
        self.pad_value = given_pads(pad_value)
        self.length = tuple(sorted(check_count("length", number, at_least=1) for number in lengths))
        if length is not None and not self.length:
            raise ValueError("length must name at least one length, got an empty list")
        self.multiple_of = None if multiple_of is None else check_count("multiple_of", multiple_of, at_least=1)
        self.side = side

    def padded_length(self, longest: int) -> int:
        """The length to which a batch is padded. Raises: ValueError."""
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
        return self._dicts(item) if isinstance(item[0], Mapping) else self._bare(item)

    def _dicts(self, batch: list[Any]) -> dict[str, Any]:
        check_same_fields("pad_batch", batch)
        ragged, made = {}, {}
        for name in batch[0]:
            values = [sample[name] for sample in batch]
            if any(map(_is_sequence, values)):
                if f"{name}_lengths" in batch[0]:
                    raise ValueError(
                        f"pad_batch adds the field '{name}_lengths' to those of a sample, which has one of that name: "
                        "rename or remove it"
                    )
                ragged[name] = _arrays(name, values)
            else:
                made[name] = _collated(name, values)
        dtypes = {name: first.dtype for name, (_, first) in ragged.items()}
        for name, pad in zip(ragged, pads_of("pad_batch", self.pad_value, dtypes)):
            made[name], made[f"{name}_lengths"] = self._padded(*ragged[name], pad)
        names = [key for name in batch[0] for key in ((name, f"{name}_lengths") if name in ragged else (name,))]
        return {name: made[name] for name in names}

    def _bare(self, batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        arrays, first = _arrays(FIELD, batch)
        (pad,) = pads_of("pad_batch", self.pad_value, {FIELD: first.dtype})
        return self._padded(arrays, first, pad)

    def _padded(self, arrays: list[Any], first: Any, pad: Any) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [len(array) for array in arrays]
        made = np.full((len(arrays), self.padded_length(max(lengths)), *first.shape[1:]), pad, first.dtype)
        for row, array, size in zip(made, arrays, lengths):
            if size and self.side == "right":
                row[:size] = array
            elif size:
                row[-size:] = array
        return torch.from_numpy(made), torch.tensor(lengths, device="cpu")


def _arrays(name: str, values: list[Any]) -> tuple[list[Any], Any]:
    """The values as arrays, and the one that says of which type they are. Raises: TypeError."""
    arrays = [as_array("pad_batch", name, value)[0] for value in values]
    first = next((array for array in arrays if len(array)), arrays[0])  # an empty list has no dtype
    for number, array in enumerate(arrays):
        if len(array) and (array.dtype != first.dtype or array.shape[1:] != first.shape[1:]):
            raise TypeError(
                f"pad_batch cannot stack {array.dtype} of shape {array.shape} and {first.dtype} of shape "
                f"{first.shape}, where {field_name(name)} has both (sample {number} of {len(arrays)}): only the first "
                "dimension may differ"
            )
    return arrays, first


def _collated(name: str, values: list[Any]) -> Any:
    try:
        return default_collate(values)
    except Exception as error:
        add_note(error, f"pad_batch: while collating field {name!r}")
        raise


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim > 0
    return isinstance(value, list | tuple | range) and not any(isinstance(part, str) for part in value)
