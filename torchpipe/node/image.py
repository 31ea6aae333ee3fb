"""The image of a graph: what each pass over it begins from. Made once, and loaded anew for each pass.

Runs in every process that executes a part of a graph.

A pass works on a whole copy of the nodes and of the objects of the user's that these hold, all together, so that what
they share stays shared; what it changes ends with it. The copy is loaded from a pickle, whose large buffers lie in a
file that each copy maps for itself: memory is taken where somebody writes.

By reference goes what no pass changes, or what is shared on purpose: code, modules, map-style data, what lies on a
device, in shared memory or in a mapped file, what our own nodes are made of; and what cannot be pickled, which is used
in place. Where all of a graph is of that kind no image is made, and passes read the nodes themselves.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import random
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.node.announce import warn_user
from torchpipe.node.containers import PLAIN, found_in
from torchpipe.node.iterator import is_stateful
from torchpipe.node.traits import DataPipe, inputs_of, is_node, is_ours, node_name
from torchpipe.state.mapped import PrivateMap, Spans, dump_with_buffers, load_mapped, write_file
from torchpipe.state.pickling import Reducers
from torchpipe.state.tensors import is_plain, reduce_tensor

__all__ = ["Image", "Images", "copy_of", "functions_of", "has_state", "with_state"]

_IN_PLACE = ("goes_on", "stands_for_input", "makes_passes")  # what classes of nodes say that no pass has a copy of
_ENDS = ("stands_for_input", "makes_passes")  # and before which other passes begin
_LARGE_BYTES = 64 << 10  # what is smaller is pickled with the rest
_ATOMS = frozenset({bool, int, float, complex, type(None), list, tuple, dict, set, frozenset, slice, range})
_NODES = (TorchIterDataPipe, TorchMapDataPipe)
_CODE = (type, types.ModuleType, types.FunctionType, np.ufunc)
_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType)
_OWNERS = (type(None), bytes, bytearray, torch.Tensor, PrivateMap)  # of memory that nobody else sees
_GLOBAL = (random.random.__self__, np.random.random_sample.__self__, torch.default_generator)  # type: ignore[attr-defined]


# -- functions with state ---------------------------------------------------------------------------------------------


def functions_of(node: DataPipe) -> list[Any]:
    """The functions of ``node`` that have state, each once, in the order of its attributes."""
    values = (value for value in vars(node).values() if type(value) not in PLAIN)
    return list({id(fn): fn for value in values for fn in with_state(value)}.values())


def with_state(value: Any) -> Iterator[Any]:
    """What has state in ``value``, a function or an attribute of a node: functions, in containers too, and what a
    ``functools.partial`` calls or hands over.
    """
    for found in found_in(value, _is_followed):
        if not isinstance(found, functools.partial):
            yield found
        else:
            for held in found_in((found.func, found.args, found.keywords), _is_followed_in_partial):
                yield from with_state(held) if isinstance(held, functools.partial) else (held,)


def has_state(fn: Any) -> bool:
    return next(with_state(fn), None) is not None


def _is_followed(value: Any) -> bool:
    return callable(value) and _is_followed_in_partial(value)


def _is_followed_in_partial(value: Any) -> bool:
    return isinstance(value, functools.partial) or (
        not isinstance(value, type) and not is_node(value) and is_stateful(value)
    )


# -- what a pass may change -------------------------------------------------------------------------------------------


def _changes(node: DataPipe) -> bool:
    """True if a pass may change ``node`` itself, or an object of the user's that it holds."""
    if isinstance(node, TorchMapDataPipe) or _says(node, _IN_PLACE):
        return False
    return not is_ours(type(node).__module__) or any(map(_is_changing, _values_of(node)))


def _says(node: DataPipe, names: Iterable[str]) -> bool:
    return any(getattr(type(node), name, False) is True for name in names)


def _values_of(node: DataPipe) -> Iterator[Any]:
    names = getattr(node, "iterates", ())
    return (_Iterated(value) if name in names else value for name, value in vars(node).items())


class _Iterated:
    """An object in a node of ours whose own ``__iter__`` runs."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _is_changing(value: Any) -> bool:
    if type(value) in PLAIN:
        return False
    return isinstance(value, _Iterated) or next(found_in(value, _may_remember), None) is not None


def _may_remember(value: Any) -> bool:
    """True for a callable that may change when it is called: an object of the user's, or a method of one."""
    if is_node(value) or isinstance(value, _CODE) or not callable(value):
        return False
    if isinstance(value, functools.partial):
        given = (*value.args, *value.keywords.values())
        return _is_changing(value.func) or any(type(part) not in PLAIN and not _is_aside(part) for part in given)
    if isinstance(value, types.MethodType | types.BuiltinFunctionType | types.MethodWrapperType):
        return not _is_aside(value.__self__)
    return not _is_aside(value) and hasattr(value, "__dict__")


def _is_aside(value: Any) -> bool:
    """True for what goes by reference whatever holds it."""
    decide = _way_of(type(value))
    return decide is not None and decide(value)


def _always(_: Any) -> bool:
    return True


def _is_bound_to_none(value: Any) -> bool:
    return isinstance(getattr(value, "__self__", None), type(None) | types.ModuleType | type)


def _is_global(value: Any) -> bool:
    return any(value is item for item in _GLOBAL) or getattr(value, "device", _CPU).type != "cpu"


def _is_elsewhere(value: Any) -> bool:
    """True for an array that nobody can write to, or whose memory is a file's, or shared with other processes."""
    owner: Any = _root(value).base
    while isinstance(owner, memoryview | pickle.PickleBuffer):
        owner = memoryview(owner).obj
    return not value.flags.writeable or not isinstance(owner, _OWNERS)


def _root(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


_CPU = torch.device("cpu")


def _way_of(kind: type) -> Callable[[Any], bool] | None:
    """What tells of an object of this class whether it goes by reference; None if none does."""
    if issubclass(kind, _CODE) or issubclass(kind, TorchMapDataPipe):
        return _always
    if issubclass(kind, Dataset):
        return None if issubclass(kind, IterableDataset) else _always
    if issubclass(kind, torch.nn.Module):
        return lambda module: not is_stateful(module)
    if issubclass(kind, _BUILTIN):
        return _is_bound_to_none
    if issubclass(kind, torch.Tensor):
        return lambda tensor: not tensor.is_cpu or tensor.is_shared()
    if issubclass(kind, np.memmap):
        return _always
    if issubclass(kind, np.ndarray):
        return _is_elsewhere
    if issubclass(kind, random.Random | np.random.RandomState | torch.Generator):
        return _is_global
    if issubclass(kind, str | bytes):
        return lambda text: len(text) >= _LARGE_BYTES
    return _always if is_ours(kind.__module__) else None


# -- the image --------------------------------------------------------------------------------------------------------


class _Aside:
    """Stands in a pickle for what it refers to."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Image:
    """The nodes that ``roots`` reach, up to those whose ids are in ``ends``, as they are now.

    ``nodes``: these, inputs first. ``whole``: copies of all of them are made, also of those that no pass changes.
    """

    def __init__(self, roots: Iterable[DataPipe], ends: Collection[int] = (), *, whole: bool = False) -> None:
        self.nodes = _reached(roots, ends, whole)
        self.changing: set[int] = set()  # with those that read from them
        for node in self.nodes:
            if id(node) not in ends and (whole or _changes(node) or self._reads_changing(node)):
                self.changing.add(id(node))
        self.aside: list[Any] = []
        self._body, self._spans, self._fd = b"", Spans(), -1
        if self.changing:
            self._make()

    def _reads_changing(self, node: DataPipe) -> bool:
        return not _says(node, _IN_PLACE) and any(id(item) in self.changing for item in inputs_of(node))

    def _make(self) -> None:
        refused: dict[int, Exception] = {}
        make = functools.partial(_Pickler, self.changing, self.aside, refused)
        body, buffers = dump_with_buffers(make, self.nodes, _LARGE_BYTES, writable=True)
        if buffers:
            try:
                self._fd, self._spans = write_file("torchpipe-image", [body, *buffers])
                weakref.finalize(self, os.close, self._fd)
            except OSError:  # no room for them: in the pickle then
                self.aside.clear()
                body, _ = dump_with_buffers(make, self.nodes, 1 << 62)
        if not self._spans:
            self._body = bytes(body)
        for node in self.nodes:
            for name in getattr(node, "iterates", ()):
                value = vars(node)[name]
                if id(value) in refused:
                    error = refused[id(value)]
                    warn_user(
                        f"{node_name(node)} cannot copy its {type(value).__name__} ({type(error).__name__}: {error}): "
                        "all passes share it, and two at a time disturb each other",
                        UserWarning,
                    )

    def load(self) -> list[DataPipe]:
        """The nodes, in the same order: new ones where a pass may change them, or something behind them."""
        if not self.changing:
            return self.nodes
        unpickler = functools.partial(_Unpickler, self.aside)
        if self._spans:
            return load_mapped(self._fd, self._spans, unpickler)  # type: ignore[no-any-return]
        return unpickler(io.BytesIO(self._body)).load()  # type: ignore[no-any-return]


def _reached(roots: Iterable[DataPipe], ends: Collection[int], whole: bool) -> list[DataPipe]:
    """As :func:`torchpipe.node.traits.walk`, of a graph that has been walked before."""
    found: dict[int, DataPipe] = {}
    waiting = [(root, False) for root in reversed(list(roots))]
    while waiting:
        node, is_done = waiting.pop()
        if is_done:
            found.setdefault(id(node), node)
        elif id(node) not in found:
            waiting.append((node, True))
            if id(node) not in ends and (whole or not _says(node, _ENDS)):
                waiting += [(item, False) for item in reversed(inputs_of(node))]
    return list(found.values())


def copy_of(node: DataPipe) -> Any:
    """A copy of ``node`` and of what it holds, which reads from the same inputs."""
    made: Any = Image((node,), [id(item) for item in inputs_of(node)], whole=True).load()[-1]
    for name, value in vars(made).items():
        if type(value) in (list, dict) and value is vars(node)[name]:  # of one of ours, which is told something now
            vars(made)[name] = value.copy()
    return made


class Images:
    """Those of the graph that ``nodes`` form, by the node at which a pass begins; each is made when it is first needed.

    ``given``: the image of the whole, where nodes are others' to change meanwhile.
    """

    def __init__(self, roots: tuple[DataPipe, ...], given: Image | None = None) -> None:
        self._roots = roots
        self._given = given
        self._made: dict[tuple[int, Collection[int]], Image] = {}

    def at(self, node: DataPipe, ends: Collection[int]) -> Image:
        """What a pass over ``node``, of the graph, begins from. What is at the ``ends`` is as it is."""
        if self._given is not None and not ends and any(node is root for root in self._roots):
            return self._given
        key = id(node), frozenset(ends)
        if key not in self._made:
            self._made[key] = Image((node,), ends) if self._given is None else self._part(node, ends)
        return self._made[key]

    def _part(self, node: DataPipe, ends: Collection[int]) -> Image:
        assert self._given is not None
        numbers = {id(item): number for number, item in enumerate(self._given.nodes)}
        if id(node) not in numbers:
            return Image((node,), {*ends, *numbers})
        as_given = self._given.load()
        part = Image((as_given[numbers[id(node)]],), {id(as_given[numbers[key]]) for key in ends if key in numbers})
        back = {id(copied): item for copied, item in zip(as_given, self._given.nodes)}
        part.nodes = [back.get(id(item), item) for item in part.nodes]  # behind one that is used in place, as they are
        return part


class _Pickler(pickle.Pickler):
    """``changing``: the ids of nodes that go by value. ``aside`` gets what goes by reference, ``refused`` what cannot
    be pickled, by id.
    """

    def __init__(
        self, changing: set[int], aside: list[Any], refused: dict[int, Exception], *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._changing, self._aside, self._refused = changing, aside, refused
        self._numbers: dict[int, int] = {}
        self._ways: dict[type, Callable[[Any], bool] | None] = {_Aside: None}
        self._storages: dict[int, torch.Tensor] = {}

    def persistent_id(self, value: Any) -> int | None:
        kind = type(value)
        if kind in _ATOMS:
            return None
        if kind is _Aside:
            return self._number(value.value)
        try:
            way = self._ways[kind]
        except KeyError:
            way = self._ways[kind] = self._is_other if issubclass(kind, _NODES) else _way_of(kind)
        return None if way is None or not way(value) else self._number(value)

    def _is_other(self, node: Any) -> bool:
        return id(node) not in self._changing

    def _number(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self._aside))
        if number == len(self._aside):
            self._aside.append(value)
        return number

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is types.MethodType:
            return types.MethodType, (value.__func__, value.__self__)
        if is_node(value):
            return _empty, (kind,), _contents_of(value), None, None, _fill
        if kind is np.ndarray and value.base is not None and not value.dtype.hasobject:
            return self._view(value)
        if kind is torch.Tensor and not value.requires_grad and is_plain(value) and not value.__dict__:
            return self._tensor(value)
        if kind is torch.Generator:
            return _generator, (value.get_state().numpy().tobytes(),)
        try:
            reduced = _REDUCERS[kind](value)
        except Exception as error:  # objects refuse in many ways
            self._refused[id(value)] = error
            reduced = ""
        return (_itself, (_Aside(value),)) if isinstance(reduced, str) else reduced

    def _view(self, array: Any) -> Any:
        """One that looks into another's memory does so in the copy."""
        root = _root(array)
        if root is array or root.dtype.hasobject or not (root.flags.c_contiguous or root.flags.f_contiguous):
            return array.__reduce_ex__(5)
        start = _address(array) - _address(root)
        return _array_in, (root, array.dtype, array.shape, start, array.strides)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        """Those that share a storage do so in the copy."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if self._storages.get(key) is tensor or not storage.nbytes():
            return reduce_tensor(tensor)
        if key not in self._storages:
            self._storages[key] = torch.empty(0, dtype=torch.uint8).set_(storage)
        at = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return _tensor_in, (self._storages[key], tensor.dtype, *at)


_REDUCERS = Reducers()


class _Unpickler(pickle.Unpickler):
    def __init__(self, aside: list[Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.persistent_load = aside.__getitem__  # type: ignore[method-assign]


def _contents_of(node: DataPipe) -> Any:
    """What is in a node: all of it in one of the user's; in one of ours, what it is made of goes by reference, but for
    nodes and what a pass may change.
    """
    if not is_ours(type(node).__module__):
        return object.__getstate__(node)
    names = getattr(node, "iterates", ())
    return {
        name: value if name in names or type(value) in PLAIN else _others_aside(value)
        for name, value in vars(node).items()
    }


def _others_aside(value: Any) -> Any:
    """``value``, where a node or a callable of the user's is in it; else a reference to it."""
    inner = next(found_in(value, lambda item: is_node(item) or _may_remember(item)), None)
    return _Aside(value) if inner is None else value


def _empty(kind: type) -> Any:
    return object.__new__(kind)


def _fill(node: Any, contents: Any) -> None:
    attributes, slots = contents if isinstance(contents, tuple) else (contents, None)
    vars(node).update(attributes or {})
    for name, value in (slots or {}).items():
        object.__setattr__(node, name, value)


def _itself(value: Any) -> Any:
    return value


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _array_in(root: Any, dtype: Any, shape: Any, start: int, strides: Any) -> Any:
    flat = (root if root.flags.c_contiguous else root.T).reshape(-1).view(np.uint8)
    return np.ndarray(shape, dtype, flat, start, strides)


def _tensor_in(flat: torch.Tensor, dtype: torch.dtype, offset: int, shape: Any, strides: Any) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), offset, shape, strides)


def _generator(state: bytes) -> torch.Generator:
    made = torch.Generator()
    made.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return made
