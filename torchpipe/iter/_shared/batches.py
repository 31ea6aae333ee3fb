"""Parts of batches: arrays, records, samples.

Sequences of numbers, whatever holds them, as arrays.

Records of one batch: have they the same fields?

Items that packing nodes drop because of their size: counted, and warned of once.

torch's ``default_collate``, made quicker where the result is the same.

It asks ``default_collate_fn_map`` how to collate samples of each type. Here, that map has other entries for tensors,
which gives to torch's own function whatever it does not know to be the same, and for dicts and their like, which
compares their fields.
"""

from __future__ import annotations

import array
import copy
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from torchpipe.compat.torch_private import collate, collate_tensor_fn, default_collate_fn_map
from torchpipe.formats.numbers import given_number, holds
from torchpipe.node.host import Memory
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name
from torchpipe.state.tensors import is_plain

__all__ = [
    "FIELD",
    "KINDS",
    "as_array",
    "check_pad",
    "check_same_fields",
    "default_collate_in",
    "field_name",
    "given_pads",
    "makes_new_tensors",
    "note_dropped",
    "pads_of",
    "stack_as_torch",
    "stack_without_files",
]

FIELD = "tokens"
"""The name of the field where items are bare sequences."""

KINDS = "biufc"
"""The kinds of dtypes that are numbers, as numpy calls them."""

_READ = (list, tuple, range, array.array)


def field_name(name: str) -> str:
    """The field as an error names it."""
    return "an item" if name == FIELD else f"field {name!r}"


def as_array(node: str, name: str, value: Any) -> tuple[np.ndarray[Any, Any], bool]:
    """``value`` as an array with at least one dimension; is it to be handed out as a tensor? Raises: TypeError."""
    tensor = True
    found: Any
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bfloat16:
            raise TypeError(
                f"{node} needs types that numpy has, {field_name(name)} is a tensor of torch.bfloat16: make it "
                "float32 before, by value.float(), and bfloat16 of the batch"
            )
        found = value.detach().numpy() if value.device.type == "cpu" else value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray):
        found, tensor = value, False
    elif isinstance(value, bytes | bytearray | memoryview):
        found = np.frombuffer(value, np.uint8)
    elif isinstance(value, _READ):
        found = _read(node, name, value) if len(value) else np.empty(0, np.int64)
        if found.dtype == np.float64:
            found = found.astype(np.float32)  # as torch makes of Python's
    else:
        advice = "tokenize it first" if isinstance(value, str) else "remove it"
        if name != FIELD:
            advice = f"{advice.removesuffix(' first')} or name it in keep, for a list with an entry for each segment"
        found = f"{value!r:.60} of type {type(value).__name__}"
        raise TypeError(f"{node} needs sequences of numbers, {field_name(name)} is {found}: {advice}")
    if found.ndim == 0 or found.dtype.kind not in KINDS:
        raise TypeError(
            f"{node} needs sequences of numbers, {field_name(name)} has shape {found.shape} and dtype {found.dtype}"
        )
    return found, tensor


def _read(node: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{node} needs sequences of numbers, {field_name(name)} holds sequences of several lengths, or what is no "
            f"number: {value!r:.60} ({error})"
        ) from error


def given_pads(pad_value: Any) -> Any:
    """``pad_value``, a number or a dict of them by field, as Python's own. Raises: TypeError for other things."""
    if isinstance(pad_value, Mapping):
        return {name: given_number(f"pad_value of {field_name(name)}", value) for name, value in pad_value.items()}
    return given_number("pad_value", pad_value)


def pads_of(node: str, pad_value: Any, dtypes: Mapping[str, np.dtype[Any]]) -> list[Any]:
    """The pad of each field: ``pad_value``, or its entry in it (0 without one).

    Raises: ValueError for a name that no field has, one value other than 0 for fields of several kinds, and
    a value that a field cannot hold.
    """
    if isinstance(pad_value, Mapping):
        unknown = [name for name in pad_value if name not in dtypes]
        if unknown:
            raise ValueError(
                f"{node}: pad_value names {unknown!r:.80}, and the fields are {tuple(dtypes)!r:.200}: is it misspelt?"
            )
        return [check_pad(node, name, pad_value.get(name, 0), dtype) for name, dtype in dtypes.items()]
    kinds = {"i" if dtype.kind == "u" else dtype.kind for dtype in dtypes.values()}
    if len(kinds) > 1 and not _is_zero(pad_value):
        fields = ", ".join(f"{name!r} ({dtype})" for name, dtype in dtypes.items())
        raise ValueError(
            f"{node}: pad_value={pad_value!r:.40} would go to fields of several kinds: {fields:.200}. Give a dict, "
            f"pad_value={{{next(iter(dtypes))!r}: {pad_value!r:.40}}}; fields that it does not name are padded with 0"
        )
    return [check_pad(node, name, pad_value, dtype) for name, dtype in dtypes.items()]


def _is_zero(value: Any) -> bool:
    return type(value) in (int, float, bool) and value == 0


def check_pad(node: str, name: str, pad: Any, dtype: np.dtype[Any]) -> Any:
    """``pad``, a number. Raises: ValueError if ``dtype`` cannot hold it."""
    if not holds(dtype, pad):
        raise ValueError(f"{node}: {field_name(name)} of type {dtype} cannot hold pad_value={pad!r}")
    return pad


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
