"""What an object of the user's keeps in its attributes: taken down as values, compared with what it was, put back.

Runs in every process.

A dataset that is used in place goes on from one pass to the next: it counts, it draws, it shuffles a list.
Followed are its attributes, those in ``__slots__``, and what is in lists, tuples, dicts and objects that these hold:
random generators, and plain data. What was there when the object was first looked at is kept whole, so that all of it
can be put back: values that have changed, attributes that have been made since, and those that have gone.

What is large is data: no copy of it is made, and a state has none of it. An object reads its data itself, at once or
when they are first needed. That data are other ones than they were shows in a sample of them, and is refused.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import math
import sys
import types
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.randomness.generators import GENERATORS, MADE, generator_kind, generator_state, put_generator
from torchpipe.state import decode, encode
from torchpipe.state.codec import opaque_notes
from torchpipe.state.flat import damaged, shown
from torchpipe.state.kinds import kind_of
from torchpipe.state.shared_list import SharedList

__all__ = ["Kept", "Saved", "kept_of"]

Saved: TypeAlias = list[list[Any]]
"""Plain data: [steps, kind, value] of each random generator, and of each value that is not what it was."""

_Steps: TypeAlias = tuple[Any, ...]  # from the object to a value: names of attributes, indices, keys

_ATOMS = frozenset({bool, int, float, str, bytes, type(None)})
_NUMBERS = frozenset({bool, int, float, type(None)})
_ROWS = (list, tuple, deque)
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_CODE = (type, types.ModuleType, types.FunctionType, torch.nn.Module)
_MOST_OBJECTS = 1000
_MOST_KEPT = 1000  # kilobytes: a list of 100,000 numbers, or 10,000 names of files. What is larger is data
_MOST_DEEP = 8
_VALUE, _DATA, _GONE = "value", "data", "gone"
_SAMPLED = 64  # items of data


class Kept:
    """``owner`` as it is when this is made.

    ``except_types``: types that are somebody else's to keep. ``at_most``: what is larger, in kilobytes with all that it
    holds, is data.
    """

    def __init__(
        self,
        owner: Any,
        *,
        except_types: tuple[type, ...] = (),
        at_most: int | None = None,
    ) -> None:
        self.owner = owner
        self._except_types, self._at_most = except_types, at_most
        self._made, self._held = self._look()

    def __getstate__(self) -> dict[str, Any]:
        """Another process's, or a copy's, is as it is there when it comes into being."""
        return {name: value for name, value in vars(self).items() if name not in ("_made", "_held")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._made, self._held = self._look()

    def now(self) -> Saved:
        """What it takes to be as it is now, for one that is as this one was made."""
        found, held = self._look()
        new = held.keys() - self._held.keys()  # nobody can make these again
        saved: Saved = [
            [list(steps), kind, _copied(value)]
            for steps, (kind, value, token) in found.items()
            if (kind not in (_VALUE, _DATA) or steps not in self._made or self._made[steps][::2] != (kind, token))
            and not (new and any(steps[:deep] in new for deep in range(1, len(steps))))
        ]
        return saved + [[list(steps), _GONE, None] for steps in self._made if steps not in found]

    def names(self, *, changed: bool = False) -> list[tuple[str, str]]:
        """(where it is, its kind) of all that is kept; of what is not as it was made, if ``changed``."""
        now = {tuple(steps): kind for steps, kind, _ in self.now()}
        found = now if changed else {steps: kind for steps, (kind, *_) in self._look()[0].items()}
        return [(_path(self.owner, steps), kind) for steps, kind in found.items() if changed or kind != _DATA]

    def tell_of_changes(self, name: str) -> None:
        """Say, once for each class, that no later pass will see the numbers and generators that a pass has changed."""
        found = [
            _path(self.owner, steps)
            for steps, kind, value in self.now()
            if (kind in MADE and self._made.get(tuple(steps), (None,) * 3)[1] is not None and self._drawn(steps, value))
            or (kind == _VALUE and type(value) in (int, float) and tuple(steps) in self._made)
        ]
        if found and type(self.owner) not in _warned:
            _warned.add(type(self.owner))
            _log.warning(
                "iterating %s has changed %s. Each pass, so each epoch, begins from the object as it was given: if the "
                "order is to differ in each epoch, draw it from the epoch (context.epoch, or shuffle() behind it)",
                name,
                ", ".join(found),
            )

    def _drawn(self, steps: list[Any], state: Any) -> bool:
        return encode(state) != encode(self._made[tuple(steps)][1])

    def put(self, saved: Saved, *, compares: bool = True) -> None:
        """Let it be as it was when :meth:`now` gave ``saved``; data are left, and compared unless that comes later.

        Raises: StateError if something cannot be put back.
        """
        wanted = {
            steps: (kind, _value_of(token) if kind == _VALUE else value)
            for steps, (kind, value, token) in self._made.items()
        }
        for steps, kind, value in saved:
            wanted.pop(tuple(steps), None)
            if kind != _GONE:
                wanted[tuple(steps)] = kind, value
        moved = {tuple(steps) for steps, _, _ in saved}
        for steps, held in self._held.items():
            if steps not in moved and _found(self.owner, steps) is not held:
                self._set(steps, held)
        present, _ = self._look()
        for steps in sorted(present.keys() - wanted.keys(), key=len, reverse=True):
            self._remove(steps)
        for steps, (kind, value) in sorted(wanted.items(), key=lambda item: len(item[0])):
            if kind == _DATA:
                self._check_data(steps, value, present if compares else {})
            elif kind != _VALUE:
                self._set_generator(steps, kind, value)
            elif steps not in present or present[steps][0] != _VALUE or present[steps][2] != _token(value):
                self._set(steps, _copied(value))

    def check(self, saved: Any) -> None:
        """Raises: StateError for what is no result of :meth:`now`, StateMismatchError for that of another object."""
        name = type(self.owner).__name__
        if type(saved) is not list or any(type(item) is not list or len(item) != 3 for item in saved):
            raise damaged(f"what it keeps of a {name} is {shown(saved)}")
        for steps, kind, value in saved:
            if type(steps) is not list or not steps:
                raise damaged(f"what it keeps of a {name} stands at {shown(steps)}")
            parent = _found(self.owner, tuple(steps[:-1]))
            if parent is _nothing or not self._may_have(parent, steps[-1]):
                raise StateMismatchError(
                    f"the state has {'a value' if kind == _VALUE else 'a random generator'} "
                    f"{_path(self.owner, steps)}, and this {name} has no place for it"
                )
            if kind == _DATA:
                self._check_data(tuple(steps), value, self._look()[0])
            elif kind in MADE:
                try:
                    put_generator(MADE[kind](value), value)
                except Exception as error:
                    raise damaged(f"the state of {_path(self.owner, steps)} cannot be used: {error!s:.200}") from None
            elif kind not in (_VALUE, _GONE):
                raise damaged(f"what it keeps of {_path(self.owner, steps)} is {shown(kind)}")

    def _check_data(self, steps: _Steps, sample: Any, found: dict[_Steps, tuple[str, Any, Any]]) -> None:
        """Raises: StateError for other data than those with this ``sample``. That none are there yet is no error."""
        kind, present, _ = found.get(steps, (None, None, None))
        if kind == _DATA and present != sample:
            raise StateError(
                f"{_path(self.owner, steps)} has other data than when the state was saved. What is larger than "
                f"{self._at_most} kB is in no state: leave it as it is (shuffle a list of indices, in the place of the "
                "data), or give the object state_dict() and load_state_dict()"
            )

    # -- looking ----------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[dict[_Steps, tuple[str, Any, Any]], dict[_Steps, Any]]:
        """(kind, value and token by where they are; objects, and what is neither these nor data)."""
        found: dict[_Steps, tuple[str, Any, Any]] = {}
        held: dict[_Steps, Any] = {}
        seen = {id(self.owner)}
        waiting: deque[tuple[_Steps, Any]] = deque([((), self.owner)])
        while waiting and len(seen) < _MOST_OBJECTS:
            where, item = waiting.popleft()
            for step, value in _parts_of(item):
                steps = (*where, step)
                if isinstance(value, self._except_types):
                    continue
                if isinstance(value, GENERATORS):
                    state = generator_state(value)
                    if id(value) not in seen and state is not None:
                        found[steps] = (generator_kind(value), state, None)
                    seen.add(id(value))
                elif isinstance(value, _CODE):
                    continue
                elif self._at_most is not None and _is_larger(value, self._at_most << 10):
                    sample = _sample_of(value)
                    found[steps] = (_DATA, sample, sample)
                elif (token := _token(value)) is not None:
                    found[steps] = (_VALUE, value, token)
                elif id(value) not in seen:
                    seen.add(id(value))
                    held[steps] = value
                    if len(steps) < _MOST_DEEP and _is_followed(value):
                        waiting.append((steps, value))
        return found, held

    # -- putting back -----------------------------------------------------------------------------------------------

    def _may_have(self, parent: Any, step: Any) -> bool:
        if type(parent) in (*_ROWS, *_DICTS):
            return type(parent) in _DICTS or (type(step) is int and 0 <= step < len(parent))
        return (
            type(step) is str
            and (step.isidentifier() and not step.startswith("__"))
            and not callable(getattr(type(parent), step, None))
        ) or _found(parent, (step,)) is not _nothing

    def _set(self, steps: _Steps, value: Any) -> None:
        parent, step = _found(self.owner, steps[:-1]), steps[-1]
        present = _found(self.owner, steps)
        try:
            if type(present) is type(value) and isinstance(value, list | deque):
                present.clear(), present.extend(value)
            elif type(present) is type(value) and isinstance(value, dict | set):
                present.clear(), present.update(value)
            elif type(parent) in (list, deque, *_DICTS):
                parent[step] = value
            else:
                setattr(parent, step, value)
        except Exception as error:
            raise self._cannot(steps, error) from error

    def _set_generator(self, steps: _Steps, kind: str, state: Any) -> None:
        present = _found(self.owner, steps)
        if isinstance(present, GENERATORS) and generator_kind(present) == kind:
            put_generator(present, state)
        else:
            made = MADE[kind](state)
            put_generator(made, state)
            self._set(steps, made)

    def _remove(self, steps: _Steps) -> None:
        """It was not there when the owner was made."""
        parent, step = _found(self.owner, steps[:-1]), steps[-1]
        try:
            if type(parent) in _DICTS:
                del parent[step]
            elif type(parent) not in _ROWS and parent is not _nothing:
                delattr(parent, step)
        except Exception as error:
            raise self._cannot(steps, error) from error

    def _cannot(self, steps: _Steps, error: Exception) -> StateError:
        return StateError(
            f"{_path(self.owner, steps)} cannot be put back to what it was ({type(error).__name__}: {error!s:.200}): "
            "give the object state_dict() and load_state_dict()"
        )


_log = logging.getLogger("torchpipe")
_warned: set[type] = set()  # classes of which it was said that a pass changes them


def kept_of(dataset: Any) -> Kept:
    """A dataset as it is now, but for its data."""
    return Kept(dataset, at_most=_MOST_KEPT)


class _Nothing:
    """Stands where nothing is."""


_nothing = _Nothing()


def _path(owner: Any, steps: Collection[Any]) -> str:
    words = "".join(f".{step}" if type(step) is str else f"[{step!r:.40}]" for step in steps)
    return f"{type(owner).__name__}{words:.200}"


def _found(owner: Any, steps: Collection[Any]) -> Any:
    """What stands there, or ``_nothing``."""
    for step in steps:
        if type(owner) in (*_ROWS, *_DICTS):
            try:
                owner = owner[step]
            except (LookupError, TypeError):
                return _nothing
        else:
            owner = dict(_attributes(owner)).get(step, _nothing) if type(step) is str else _nothing
    return owner


def _attributes(item: Any) -> list[tuple[str, Any]]:
    if isinstance(item, functools.partial):
        return [("func", item.func), ("args", item.args), ("keywords", item.keywords)]
    if isinstance(item, types.MethodType | types.BuiltinMethodType):
        return [("__self__", item.__self__)]
    found = dict(getattr(item, "__dict__", {}))
    for cls in type(item).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            full = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if full not in ("__dict__", "__weakref__") and hasattr(item, full):
                found[full] = getattr(item, full)
    return list(found.items())


def _parts_of(item: Any) -> list[tuple[Any, Any]]:
    if type(item) in _ROWS:
        return list(enumerate(item))
    if type(item) in _DICTS:
        return [(key, value) for key, value in item.items() if type(key) in _ATOMS]
    return _attributes(item)


def _is_followed(value: Any) -> bool:
    """True if what it holds is looked at: attributes of other libraries' objects lead anywhere."""
    if type(value) in (*_ROWS, *_DICTS):
        return True
    if isinstance(value, functools.partial | types.SimpleNamespace | Dataset | Sampler):
        return True
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        return not isinstance(value.__self__, types.ModuleType | type)
    room = type(value).__module__.partition(".")[0]
    if (room in sys.stdlib_module_names and room != "__main__") or room in ("torch", "numpy", "torchpipe"):
        return False
    return hasattr(value, "__dict__") or any("__slots__" in cls.__dict__ for cls in type(value).__mro__)


# -- data -----------------------------------------------------------------------------------------------------------


def _is_larger(value: Any, nbytes: int) -> bool:
    """True if ``value``, with the containers, arrays and text in it, takes more than about ``nbytes``."""
    waiting, taken = [value], 0
    while waiting and taken <= nbytes:
        item = waiting.pop()
        kind = type(item)
        if isinstance(item, torch.Tensor | np.ndarray):
            taken += item.nbytes
        elif kind is SharedList:  # of any size: nobody can change it
            return True
        elif kind in (str, bytes, bytearray):
            taken += len(item)
        elif kind in (*_ROWS, *_DICTS, set, frozenset):
            taken += 8 * len(item)
            if taken <= nbytes and not _NUMBERS.issuperset(map(type, item)):
                waiting += item
            if kind in _DICTS:
                waiting += item.values()
    return taken > nbytes


def _sample_of(value: Any) -> int:
    """A checksum of some of it, at even distances: other data, or the same in another order, have another one."""
    return zlib.crc32(repr(_sampled(value, _SAMPLED)).encode())


def _sampled(value: Any, most: int) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        try:
            size = math.prod(value.shape)
            indices = [np.unravel_index(index, value.shape) for index in _even(size, most)]
            return str(value.dtype), tuple(value.shape), [str(value[tuple(map(int, index))]) for index in indices]
        except Exception:  # sparse ones, say
            return kind.__name__, tuple(value.shape)
    if kind in (list, tuple, deque, SharedList):
        name = "list" if kind is SharedList else kind.__name__
        return name, len(value), [_sampled(value[index], 4) for index in _even(len(value), most)]
    if kind in (str, bytes, bytearray):
        return kind.__name__, len(value), [value[index : index + 16] for index in _even(len(value), most)]
    if kind in _DICTS:
        return kind.__name__, len(value), [_sampled(item, 4) for item in itertools.islice(value.items(), most)]
    if kind in (set, frozenset):
        return kind.__name__, len(value)
    return value if kind in _ATOMS else kind.__name__


def _even(length: int, most: int) -> list[int]:
    """At most ``most`` positions, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return [index * (length - 1) // (most - 1) for index in range(most)]


# -- values ---------------------------------------------------------------------------------------------------------


def _token(value: Any) -> Any:
    """What is equal for equal data, and makes it again (:func:`_value_of`); None for what is no data."""
    kind = type(value)
    if kind in _ATOMS:
        return kind, value
    if kind in (list, tuple) and _ATOMS.issuperset(map(type, value)):
        return kind, tuple(value)
    if not _is_data(value):
        return None
    try:
        data = encode(value)
    except Exception:  # a tensor of an autograd graph, say
        return None
    return None if opaque_notes(data) else (_Nothing, data)


def _value_of(token: Any) -> Any:
    kind, value = token
    if kind is _Nothing:
        return decode(value)
    return list(value) if kind is list else value


def _is_data(value: Any) -> bool:
    waiting = [value]
    count = 0
    while waiting:
        item = waiting.pop()
        kind = type(item)
        count += 1
        if kind in (*_ROWS, set, frozenset):
            if not _ATOMS.issuperset(map(type, item)):
                waiting += item
        elif kind in _DICTS:
            waiting += [*item, *item.values()]
        elif kind not in _ATOMS and kind_of(kind) is None:
            return False
        if count > 1 << 20 or len(waiting) > 1 << 24:  # it holds itself, perhaps
            return False
    return True


def _copied(value: Any) -> Any:
    return list(value) if type(value) is list and _ATOMS.issuperset(map(type, value)) else copy.deepcopy(value)
