"""Parts of batches: records, samples, and those that are left out.

Records of one batch: have they the same fields?

Items that packing nodes drop because of their size: counted, and warned of once.

torch's ``default_collate``, made quicker where the result is the same.

It asks ``default_collate_fn_map`` how to collate samples of each type. Here, that map has other entries for tensors,
which gives to torch's own function whatever it does not know to be the same, and for dicts and their like, which
compares their fields.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from torchpipe.compat.torch_private import collate, collate_tensor_fn, default_collate_fn_map
from torchpipe.node.host import Memory
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name
from torchpipe.state.tensors import is_plain

__all__ = [
    "check_same_fields",
    "default_collate_in",
    "makes_new_tensors",
    "note_dropped",
    "stack_as_torch",
    "stack_without_files",
]


def check_same_fields(form: str, samples: Sequence[Mapping[Any, Any]]) -> None:
    """Raises: KeyError, with the field and the sample, unless all dicts have the fields of the first one."""
    first = samples[0].keys()
    kinds = set(map(type, samples))
    if kinds == {dict} and all(map(first.__eq__, [sample.keys() for sample in samples])):  # 3 us for 32 samples
        return
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise TypeError(f"{form} got dicts, and a {type(sample).__name__} as sample {number} of {len(samples)}")
        if sample.keys() == first:
            continue
        lacking = [name for name in first if name not in sample]
        added = [name for name in sample if name not in first]
        if not lacking and not added:  # keys of other kinds of dicts, which do not compare
            continue
        what = f"lacks the field {lacking[0]!r}" if lacking else f"has the field {added[0]!r}"
        other = "has" if lacking else "has not"
        raise KeyError(
            f"{form}: sample {number} of {len(samples)} {what}, which sample 0 {other}: give all samples of a batch "
            "the same fields, or remove fields that some samples lack"
        )


_log = logging.getLogger("torchpipe")


def note_dropped(iterator: NodeIterator[Any], before: int, why: str) -> int:
    """Note and count an item that ``iterator`` leaves out, after ``before`` others; a warning tells of the first."""
    context = iterator.context
    if not before and not context.shared.restoring:
        _log.warning(
            "%s leaves out an item, %s; the state counts further ones as 'dropped'", node_name(iterator.node), why
        )
    if context.host.trace is not None:
        context.host.trace.left_out(iterator.pass_engine.number_to_trace(iterator.untimed))
    return before + 1


_LARGE_BYTES = 64 << 10  # what is smaller is quicker made anywhere and copied
_NO_DICTS = (torch.Tensor, np.ndarray, np.generic, float, int, str, bytes)  # what torch's map has entries for


def default_collate_in(memory: Memory | None) -> Callable[[Any], Any]:
    """torch's ``default_collate``, which stacks large tensors in ``memory``, from where they travel without a copy.

    What the user has taught it, by ``default_collate_fn_map``, is kept.
    """
    table: dict[Any, Any] = dict(default_collate_fn_map)
    if table.get(torch.Tensor) in (collate_tensor_fn, _stack):
        table[torch.Tensor] = _stack if memory is None else partial(_stack_in, memory)
    if all(issubclass(kind, _NO_DICTS) for key in table for kind in (key if isinstance(key, tuple) else (key,))):
        table[dict] = table[Mapping] = _mappings
    return partial(_collate, collate_fn_map=table)


def _collate(batch: Any, *, collate_fn_map: dict[Any, Any]) -> Any:
    """torch's ``collate``, which of an array of numbers makes a tensor in the array's memory: here, of a copy."""
    return collate(batch.copy() if isinstance(batch, np.ndarray) else batch, collate_fn_map=collate_fn_map)


def makes_new_tensors(collate_fn: Any) -> bool:
    """True if the tensors that ``collate_fn`` returns are held by nobody else: torch's, with no entry of the user's."""
    entries = default_collate_fn_map.values()
    return collate_fn is default_collate and all(
        entry is _stack or getattr(entry, "__module__", None) == collate.__module__ for entry in entries
    )


def stack_without_files() -> None:
    """Let ``default_collate`` in this process make no file of shared memory for each tensor.

    torch's does so where ``get_worker_info()`` says that it is in a worker: for torch's queues, and of no use here. A
    file costs 50 us.
    """
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = _stack


def stack_as_torch() -> None:
    """Let ``default_collate`` be torch's again."""
    if default_collate_fn_map.get(torch.Tensor) is _stack:
        default_collate_fn_map[torch.Tensor] = collate_tensor_fn


def _stack_in(memory: Memory | None, batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    """Collate tensors as ``default_collate`` does; large ones in ``memory``, where that is the same."""
    first = batch[0]
    if type(first) is torch.Tensor and is_plain(first):
        buffer = None
        size_bytes = len(batch) * first.nbytes
        if memory is not None and size_bytes >= _LARGE_BYTES and all(_stacks_as_it_is(item, first) for item in batch):
            buffer = memory(size_bytes)
        if buffer is not None:
            out = torch.frombuffer(buffer, dtype=first.dtype).view(len(batch), *first.shape)
            return torch.stack(batch, 0, out=out)
        stacked = torch.stack(batch, 0)
        if type(stacked) is torch.Tensor and stacked.dtype is first.dtype and not stacked.requires_grad:
            return stacked
    made: torch.Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return made


_stack = partial(_stack_in, None)


def _stacks_as_it_is(item: torch.Tensor, first: torch.Tensor) -> bool:
    return (
        type(item) is torch.Tensor
        and is_plain(item)
        and not item.requires_grad
        and item.dtype is first.dtype
        and item.shape == first.shape
    )


def _mappings(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate mappings as torch does; dicts proper need not be copied, since they are nothing else besides."""
    first = batch[0]
    check_same_fields("collate", batch)
    fields = {key: collate([sample[key] for sample in batch], collate_fn_map=collate_fn_map) for key in first}
    if type(first) is dict:
        return fields
    try:
        if not isinstance(first, MutableMapping):
            return type(first)(fields)
        made = copy.copy(first)
        made.update(fields)
        return made
    except TypeError:  # it cannot be copied, or made, so
        return fields
