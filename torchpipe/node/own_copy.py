"""A copy of the user's objects for one pass, or one shard: of all that they hold, made once, so that two names of one
thing stay two names of one thing.

Runs in every process that executes a part of a graph.

Copied are containers, arrays, tensors, random generators, objects of the user's and methods that are bound to any of
these, of any depth; an object is asked as ``copy.deepcopy`` asks it, a node is copied by its ``__dict__``. What stays
the same object: functions and classes, modules, map-style datasets, what lies on a device or in shared memory, arrays
that nobody can write, and what has an owner or cannot be copied (a class with ``__del__``, files, locks, threads,
running generators).

What is larger than 1,000 kB is data. A container gets a shallow copy, an array stays: nobody is to change what all
passes read, and :meth:`OwnCopy.tell_of_data` finds out.
"""

from __future__ import annotations

import bisect
import copy
import copyreg
import enum
import functools
import math
import re
import sys
import threading
import types
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable
from pathlib import PurePath as Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.node.announce import warn_user
from torchpipe.node.traits import is_ours
from torchpipe.randomness.generators import GENERATORS, is_of_process
from torchpipe.state.mapped import is_own
from torchpipe.state.tensors import copy_tensor, is_plain
from torchpipe.values.data import sample_of
from torchpipe.values.pictures import is_of_machine

__all__ = ["ATOMS", "MOST_BYTES", "Kinds", "OwnCopy"]

_Making: TypeAlias = Generator[Any, Any, Any]  # yields what it needs a copy of, and returns its own

ATOMS = frozenset({bool, int, float, complex, str, bytes, range, slice, type(None), type(...), object})
_STAY = (
    *(type, types.ModuleType, types.FunctionType, property, enum.Enum, re.Pattern, np.ufunc, np.generic, np.dtype),
    *(np.memmap, torch.nn.Module, torch.nn.Parameter, memoryview, Path),
)
_ROWS = (list, tuple, set, frozenset, deque)
_PLAIN = frozenset({*_ROWS, dict})
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
MOST_BYTES = 1000 << 10  # bytes: what is larger is data
_IN_ALL = 4 * MOST_BYTES  # of one copy: beyond it, all is data
_OBJECT = 100  # bytes that an object counts for, beside what Python says and what it holds
_FEW = 20  # entries: a container with more is not looked into if it is data
_SAMPLED = 64
_ALONE = 5  # references to what is copied, where one thing holds it: that, two lists of such, and two of asking


class OwnCopy:
    """Copies of ``roots``, made at once, with one memo.

    ``replace``: what stands in the copies for a node that is no root; None: a copy of it. ``whole``: copied with all
    their data, which are what they have a state of. ``in_place``: what stays.

    Raises: whatever copying one of ``whole`` raises. Of what else cannot be copied, the object itself is in the copies.
    """

    def __init__(
        self,
        *roots: Any,
        replace: Callable[[Any], Any] | None = lambda node: node,
        whole: Iterable[Any] = (),
        in_place: Iterable[Any] = (),
    ) -> None:
        self._replace = replace
        self._roots = {id(root) for root in roots}
        self._memo: dict[int, Any] = {id(item): item for item in in_place}
        self._alive: list[Any] = [roots]  # so that ids stay theirs
        self._known: set[int] = set()
        self._kinds = Kinds()
        self._left = _IN_ALL
        self._data: list[tuple[str, Any, Any]] = []
        self._memories = _Memories()
        whole = list(whole)
        for item in whole:
            self._weigh(item)
        for root in roots:
            self._plan(type(root).__name__, root)
        self._memories.join()
        for item in whole:
            if self._copy(item) is item:
                self._memo[id(item)] = copy.deepcopy(item)  # which says why it cannot be copied
        for root in roots:
            self._copy(root)
        self._join_data()
        self._alive.clear()

    def of(self, value: Any) -> Any:
        """The copy of something in the roots, or itself."""
        return self._memo.get(id(value), value)

    def tell_of_data(self) -> None:
        """Warn, once, of what all passes read and is no longer as it was."""
        for known in list(self._data):
            path, value, sample = known
            if _sampled(value) != sample:
                self._data = [other for other in self._data if other is not known]
                warn_user(
                    f"a pass has changed {path} in place. It is larger than {MOST_BYTES >> 10:,} kB, so all shards of "
                    "a process and all later passes read the same memory, and see it changed. Where items depend on "
                    "it, shuffle or change a copy that __iter__ makes, or a list of indices",
                    UserWarning,
                )

    def _join_data(self) -> None:
        """Entries of data that are copied, since something else holds them too, are the same objects there."""
        parts = [value for value in self._alive if id(value) in self._memo and id(value) not in self._roots]
        copied = {id(value) for value in parts if sys.getrefcount(value) > _ALONE}
        for _, value, _ in self._data:
            made = self.of(value)
            if made is value or not isinstance(value, list | dict):
                continue
            entries = value.values() if isinstance(value, dict) else value
            if copied and not copied.isdisjoint(map(id, entries)):
                pairs = value.items() if isinstance(value, dict) else enumerate(value)
                for key, part in pairs:
                    made[key] = self.of(part)

    # -- what is copied ---------------------------------------------------------------------------------------------

    def _plan(self, path: str, value: Any) -> None:
        waiting = [(path, value)]
        while waiting:
            path, value = waiting.pop()
            if type(value) in ATOMS or id(value) in self._known or self._stays(value):
                continue
            weight = self._weigh(value, min(MOST_BYTES, self._left))
            if weight is not None:
                self._left -= weight
                continue
            self._known.add(id(value))
            few = _length(value) <= _FEW
            if few and (self._left > 0 or id(value) in self._roots):
                self._left -= MOST_BYTES >> 2
                waiting += [(f"{path}{step}", part) for step, part in self._kinds.parts_of(value)]
                continue
            self._memo[id(value)] = copy.copy(value) if isinstance(value, (*_ROWS, dict, bytearray)) else value
            self._data.append((path, value, _sampled(value)))
            if isinstance(value, np.ndarray | torch.Tensor):
                self._memories.note(value, stays=True)

    def _weigh(self, value: Any, most: int | None = None) -> int | None:
        """About how many bytes it takes, with all that it holds and that is copied; None if that is more than ``most``:
        only the rest is known then.
        """
        seen: dict[int, Any] = {}
        arrays: list[Any] = []
        taken, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            kind, key = type(item), id(item)
            if kind in ATOMS or key in seen or key in self._known or key in self._memo:
                continue
            flat = self._kinds[kind].is_flat(item)
            if not flat and self._stays(item):
                continue
            seen[key] = item
            if isinstance(item, np.ndarray | torch.Tensor):
                arrays.append(item)
                taken += item.nbytes
            taken += _OBJECT + sys.getsizeof(item)
            if most is not None and taken > most:
                return None
            if not flat:
                waiting += [part for _, part in self._kinds.parts_of(item)]
        for item in arrays:
            self._memories.note(item)
        self._known.update(seen)
        return taken

    def _stays(self, value: Any) -> bool:
        """True for what is the same object in the copy, or replaced: it is in the memo then."""
        if id(value) in self._memo:
            return True
        kind = self._kinds[type(value)]
        if kind.is_node:
            if self._replace is None or id(value) in self._roots:
                return False
            self._memo[id(value)] = self._replace(value)
            return True
        if kind.stays is False or (kind.stays is not True and not kind.stays(value)):
            return False
        self._memo[id(value)] = value
        return True

    # -- copies -----------------------------------------------------------------------------------------------------

    def _copy(self, root: Any) -> Any:
        """The copy of ``root``, of any depth: copies that wait for those of their parts stand on a stack of its own."""
        stack: list[tuple[Any, _Making]] = []
        answer, wanted = None, root
        while True:
            kind = type(wanted)
            if kind in ATOMS:
                answer = wanted
            elif id(wanted) not in self._memo and self._kinds[kind].is_flat(wanted):
                self._alive.append(wanted)
                answer = self._memo[id(wanted)] = _flat_copy(wanted)
            elif self._stays(wanted):
                answer = self._memo[id(wanted)]
            else:
                stack.append((wanted, self._making(wanted)))
                answer = None
            while stack:
                value, making = stack[-1]
                try:
                    wanted = making.send(answer)
                    break
                except StopIteration as done:
                    answer = self._memo[id(value)] = done.value
                except Exception:  # objects refuse in many ways
                    answer = self._memo[id(value)] = value
                stack.pop()
            else:
                return answer

    def _making(self, value: Any) -> _Making:
        kind = type(value)
        self._alive.append(value)
        if self._kinds[kind].is_node:
            return self._node(value)
        if kind in (list, dict, set, tuple):
            return self._container(value)
        if kind in (types.MethodType, *_BOUND):
            return self._method(value)
        if kind is np.ndarray and value.dtype == object:
            return self._objects(value)
        if isinstance(value, np.ndarray | torch.Tensor) and (own := self._memories.own(value)) is not None:
            return _at_once(lambda: own)
        if isinstance(value, torch.Generator):
            return _at_once(value.clone_state)
        if hasattr(kind, "__deepcopy__"):
            return _at_once(lambda: value.__deepcopy__(self._memo))
        return self._object(value)

    def _node(self, node: Any) -> _Making:
        made = self._memo[id(node)] = object.__new__(type(node))
        for name, part in list(vars(node).items()):
            made.__dict__[name] = yield part
        return made

    def _container(self, value: Any) -> _Making:
        made: Any
        if type(value) is tuple:
            made = []
            for part in value:
                made.append((yield part))
            known = self._memo.get(id(value))  # it holds itself
            if known is not None:
                return known
            return value if all(part is own for part, own in zip(value, made)) else tuple(made)
        made = self._memo[id(value)] = type(value)()
        if type(value) is dict:
            for key, part in list(value.items()):
                key = key if type(key) in ATOMS else (yield key)
                made[key] = part if type(part) in ATOMS else (yield part)
        else:
            add = made.append if type(value) is list else made.add
            for part in list(value):
                add(part if type(part) in ATOMS else (yield part))
        return made

    def _method(self, value: Any) -> _Making:
        own = yield value.__self__
        if own is value.__self__:
            return value
        return (
            types.MethodType(value.__func__, own) if type(value) is types.MethodType else getattr(own, value.__name__)
        )

    def _objects(self, value: Any) -> _Making:
        made = self._memo[id(value)] = value.copy("C")
        flat = made.reshape(-1)
        for number, part in enumerate(value.flat):
            flat[number] = yield part
        return made

    def _object(self, value: Any) -> _Making:
        reduce = copyreg.dispatch_table.get(type(value))
        with warnings.catch_warnings():  # Python 3.12 to 3.13 warn that 3.14 copies no iterators of itertools
            warnings.simplefilter("ignore", DeprecationWarning)
            reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return value
        self._alive.append(reduced)
        function, args, state, items, pairs, put = (*reduced, *[None] * 4)[:6]
        own = []
        for part in args:
            own.append((yield part))
        made = self._memo[id(value)] = function(*own)
        if state is value:  # self.__dict__ = self
            made.__dict__ = made
        elif state is not None:
            if type(state) is dict:
                attributes = {}
                for name, part in list(state.items()):
                    attributes[name] = yield part
                state = attributes
            else:
                state = yield state
            _put_state(made, state, put)
        for part in items or ():
            made.append((yield part))
        for key, part in pairs or ():
            key = yield key
            made[key] = yield part
        return made


def _flat_copy(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value.copy()
    made = object.__new__(type(value))
    made.__dict__.update(value.__dict__)
    return made


def _at_once(make: Callable[[], Any]) -> _Making:
    yield from ()
    return make()


def _put_state(made: Any, state: Any, put: Callable[[Any, Any], None] | None) -> None:
    if put is not None:
        put(made, state)
    elif hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        state, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
        vars(made).update(state or {}) if state else None
        for name, part in (slots or {}).items():
            object.__setattr__(made, name, part)  # frozen ones too


# -- kinds ----------------------------------------------------------------------------------------------------------


_DEFAULTS = {
    name: getattr(object, name, None)
    for name in ("__new__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__deepcopy__")
} | dict.fromkeys(("__getnewargs__", "__getnewargs_ex__"))


class _Kind:
    """The answers about a class, each asked for once."""

    __slots__ = ("base", "is_node", "is_simple", "slots", "stays")

    def __init__(self, kind: type) -> None:
        bases: tuple[type, ...] = (*_ROWS, dict)
        self.is_node = issubclass(kind, TorchIterDataPipe | TorchMapDataPipe)
        self.stays = _is_used_in_place(kind)
        self.base: Any = next((base for base in bases if issubclass(kind, base)), None)
        self.slots = [
            (name, member)
            for cls in kind.__mro__
            if "__slots__" in vars(cls)
            for name, member in vars(cls).items()
            if type(member) is types.MemberDescriptorType
        ]
        self.is_simple = kind in (list, dict, set) or (
            not (self.is_node or self.stays is True or self.base or self.slots or kind in copyreg.dispatch_table)
            and kind.__dictoffset__ != 0
            and all(getattr(kind, name, None) is default for name, default in _DEFAULTS.items())
        )

    def is_flat(self, value: Any) -> bool:
        """True for a container, or an object of attributes alone, that holds nothing which can be changed."""
        if not self.is_simple:
            return False
        if self.base is not None and self.base is not dict:
            return ATOMS.issuperset(map(type, value))
        held = value if self.base is dict else value.__dict__
        return ATOMS.issuperset(map(type, held.values())) and ATOMS.issuperset(map(type, held))


class Kinds(dict[type, _Kind]):
    """By class."""

    def __missing__(self, kind: type) -> _Kind:
        made = self[kind] = _Kind(kind)
        return made

    def parts_of(self, value: Any) -> list[tuple[str, Any]]:
        """(how it is written, the part) of what ``value`` holds and can be changed."""
        kind = self[type(value)]
        row: list[Any] = []
        parts: list[tuple[str, Any]] = []
        if kind.base is dict:
            parts = [(f"[{key!r:.40}]", part) for key, part in dict.items(value) if type(part) not in ATOMS]
            row = list(dict.keys(value))
        elif kind.base is not None:
            row = list(kind.base.__iter__(value))
        elif isinstance(value, np.ndarray):
            row = list(value.flat) if value.dtype.hasobject else []
        elif isinstance(value, types.MethodType | types.BuiltinFunctionType | types.MethodWrapperType):
            return [("", value.__self__)]
        elif isinstance(value, functools.partial):
            row = [value.func, value.args, value.keywords]
        parts += [(f"[{number}]", part) for number, part in enumerate(row) if type(part) not in ATOMS]
        if type(value) in _PLAIN:
            return parts
        held = list(getattr(value, "__dict__", {}).items())
        held += [(name, member.__get__(value)) for name, member in kind.slots if hasattr(value, name)]
        return parts + [(f".{name}", part) for name, part in held if type(part) not in ATOMS]

    def slots(self, value: Any) -> list[tuple[str, Any]]:
        return self[type(value)].slots

    def belongs_elsewhere(self, value: Any) -> bool:
        """True for code, and for what is the process's or a library's own."""
        kind = self[type(value)]
        if kind.is_node or isinstance(value, Dataset) or hasattr(type(value), "__del__"):
            return False
        if is_ours(type(value).__module__):
            return False
        return kind.stays is True or (kind.stays is not False and kind.stays(value))


def _is_used_in_place(kind: type) -> bool | Callable[[Any], bool]:
    """True if objects of this class are used in place; or a function that tells of each."""
    if issubclass(kind, _STAY) or kind in ATOMS or is_of_machine(kind) or hasattr(kind, "__del__"):
        return True
    if issubclass(kind, torch.Tensor):
        return lambda tensor: not is_plain(tensor) or tensor.requires_grad or _is_shared(tensor)
    if issubclass(kind, np.ndarray):
        return _is_others
    if issubclass(kind, GENERATORS):
        return is_of_process
    if issubclass(kind, Dataset):
        return not issubclass(kind, IterableDataset)
    room = kind.__module__.partition(".")[0]
    if room in ("multiprocessing", "pyarrow") or is_ours(room):
        return True
    if room == "torch":
        return not kind.__module__.startswith("torch.utils.data")
    if room in sys.stdlib_module_names and room not in ("__main__", "types", "argparse"):  # whose namespaces hold all
        return lambda value: any(is_of_machine(type(part)) for part in getattr(value, "__dict__", {}).values())
    return lambda value: any(isinstance(part, threading.Thread) for part in getattr(value, "__dict__", {}).values())


def _is_shared(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _is_others(given: Any) -> bool:
    """True for an array that nobody can write, or in memory that is meant to be shared."""
    owner: Any = given
    writeable = False
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            return True
        writeable = writeable or owner.flags.writeable
        owner = owner.base
    while isinstance(owner, memoryview):
        owner = owner.obj
    if isinstance(owner, torch.Tensor):
        return _is_shared(owner)
    return not (writeable and (owner is None or isinstance(owner, bytes | bytearray) or is_own(owner)))


def _length(value: Any) -> int:
    """The length of a container or of bytes, and the size of an array in bytes."""
    bases: tuple[Any, ...] = (*_ROWS, dict, bytearray, array)
    for base in bases:
        if isinstance(value, base):
            return int(base.__len__(value))
    return value.nbytes if isinstance(value, np.ndarray | torch.Tensor) else 0


def _sampled(value: Any) -> Any:
    """Checksums of the values in data that lie at even distances, and of the contents of objects among these."""
    if isinstance(value, (*_ROWS, dict)):
        count = len(value)
        wanted = {index * max(count - 1, 1) // (_SAMPLED - 1) for index in range(_SAMPLED)}
        entries = value.values() if isinstance(value, dict) else value
        if isinstance(value, list | tuple):
            found = [value[index] for index in sorted(wanted) if index < count]
        else:
            found = [entry for entry, _ in zip(entries, range(_SAMPLED))]
        return [_sampled_part(entry) for entry in found]
    return _sampled_part(value)


def _sampled_part(value: Any) -> Any:
    if type(value) in (np.ndarray, torch.Tensor) and value.shape and not _is_of_objects(value):
        where = np.unravel_index(np.linspace(0, math.prod(value.shape) - 1, _SAMPLED).astype(int), value.shape)
        found = value[where] if type(value) is np.ndarray else value[tuple(map(torch.from_numpy, where))].tolist()
        return found.tobytes() if isinstance(found, np.ndarray) else repr(found)
    attributes = getattr(value, "__dict__", None)
    return sample_of(value if not attributes else list(attributes.values()))


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


# -- memory ---------------------------------------------------------------------------------------------------------


class _Memories:
    """The memory of arrays and tensors: those that overlap look into one copy."""

    def __init__(self) -> None:
        self._noted: list[tuple[int, int, bool, Any]] = []  # (start, end, does it stay?, the array)
        self._starts: list[int] = []
        self._groups: list[list[Any]] = []  # [end, does it stay?, the arrays, a copy of the bytes from start to end]

    def note(self, value: Any, *, stays: bool = False) -> None:
        span = _span(value)
        if span is not None:
            self._noted.append((*span, stays, value))

    def join(self) -> None:
        for start, end, stays, value in sorted(self._noted, key=lambda note: note[:2]):
            if self._groups and start < self._groups[-1][0]:
                group = self._groups[-1]
                group[0], group[1] = max(group[0], end), group[1] or stays
                group[2].append(value)
            else:
                self._starts.append(start)
                self._groups.append([end, stays, [value], None])

    def own(self, value: Any) -> Any:
        """A view of the copy; None for an array of another kind."""
        span = _span(value)
        if span is None:
            return None
        number = bisect.bisect_right(self._starts, span[0]) - 1
        if number < 0 or self._groups[number][0] < span[1]:  # what an object made when it was asked
            return _single_copy(value)
        start, group = self._starts[number] & ~63, self._groups[number]
        end, stays, values, made = group
        if stays:
            return value
        if len(values) == 1:
            return _single_copy(value)
        if made is None:
            made = group[3] = _bytes_at(start, end, values)
        if isinstance(value, torch.Tensor):
            storage = torch.from_numpy(made).untyped_storage()
            offset = (value.data_ptr() - start) // value.element_size()
            return torch.empty(0, dtype=value.dtype).set_(storage, offset, value.shape, value.stride())
        offset = value.__array_interface__["data"][0] - start
        own: Any = np.ndarray(value.shape, value.dtype, made, offset, value.strides)
        own.flags.writeable = value.flags.writeable
        return own


def _single_copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return copy_tensor(value)
    own = value.copy("K")
    own.flags.writeable = value.flags.writeable
    return own


def _span(value: Any) -> tuple[int, int] | None:
    """The addresses where it begins and ends; None if it is no plain array, or holds nothing."""
    if type(value) is torch.Tensor and value.numel():
        steps = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
        return value.data_ptr(), value.data_ptr() + (1 + steps) * value.element_size()
    if type(value) is np.ndarray and value.size and not value.dtype.hasobject:
        steps_of = [(size - 1) * stride for size, stride in zip(value.shape, value.strides)]
        start = int(value.__array_interface__["data"][0])
        before, behind = (sum(step for step in steps_of if (step < 0) is side) for side in (True, False))
        return start + before, start + behind + value.itemsize
    return None


def _bytes_at(start: int, end: int, values: list[Any]) -> np.ndarray[Any, Any]:
    """A copy of the memory that ``values`` lie in together."""
    made = np.zeros(end - start, np.uint8)
    for value in values:
        first, last = _span(value) or (0, 0)
        if isinstance(value, torch.Tensor):
            own = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).numpy()
            begin = value.untyped_storage().data_ptr()
            made[first - start : last - start] = own[first - begin : last - begin]
        else:
            offset = value.__array_interface__["data"][0] - start
            np.ndarray(value.shape, value.dtype, made, offset, value.strides)[...] = value
    return made
