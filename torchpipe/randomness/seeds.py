"""Random streams: one seed fixes a run, and every epoch, shard, node and item has a stream of its own.

Runs in every process.

All streams come from counter-based generators, so that a position in a stream is two small integers and no state
has to be stored. Keys are derived with numpy's ``SeedSequence`` (after M. E. O'Neill's ``seed_seq`` design) and
expanded with Philox4x64-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011);
numpy promises both streams to be stable between versions.

Random orders that are computed, not stored: index by index, of any number of items, from a key.

The numbers below the next power of two are permuted by a Feistel network: the bits are cut into two parts, and each in
turn is changed by a keyed function of the other, which whatever function it is can be undone (M. Luby, C. Rackoff: "How
to Construct Pseudorandom Permutations from Pseudorandom Functions", SIAM J. Comput. 17, 1988). Parts of unlike size and
ten rounds are as in FF1 (NIST SP 800-38G). A result that is not below the length is permuted again until it is, which
leaves a permutation of the smaller set: cycle-walking (J. Black, P. Rogaway: "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002). The function is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014): this mixes well, and is no cipher.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch

__all__ = [
    "BatchSeeds",
    "ComputedOrder",
    "IndexStream",
    "ItemStreams",
    "OwnSeeds",
    "SeedGenerator",
    "StreamKey",
    "check_seed",
    "derive_seed",
    "fresh_seed",
    "next_fresh_seed",
    "permutation",
    "stored_key",
]

StreamKey = tuple[int, ...]
"""(seed, epoch, ...): plain integers that name one random stream."""

_BLOCK = 256  # draws made at a time; part of the stream's definition, never change it
_LONGEST_KEY = 64  # (seed, epoch, section, shard, node) and a number for each cycle() around it
_LARGEST_PART = 1 << 4096  # a seed may be any hash
_DRAWS, _ITEMS, _ORDER, _BATCHES, _SAMPLES, _OWN = 0, 1, 2, 3, 4, 5  # which use of a key a Philox counter belongs to


def check_seed(seed: int) -> int:
    """Return ``seed`` as an int. Raises: TypeError for non-integers, ValueError below 0."""
    try:
        value = operator.index(None if isinstance(seed, bool) else seed)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a seed must be an integer, got {seed!r} of type {type(seed).__name__}") from None
    if value < 0:
        raise ValueError(f"a seed must be 0 or more, got {value}")
    return value


def fresh_seed(generator: torch.Generator | None = None) -> int:
    """A 63-bit seed: one draw from torch's default generator, the same draw as torch's own ``DataLoader`` makes.

    So ``torch.manual_seed`` fixes it. Inside a shard that generator is the shard's own.
    """
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator))


def next_fresh_seed(generator: torch.Generator | None = None) -> int:
    """The seed that :func:`fresh_seed` would give now; nothing is drawn."""
    copied = torch.Generator()
    copied.set_state(torch.get_rng_state() if generator is None else generator.get_state())
    return fresh_seed(copied)


def derive_seed(*key: int) -> int:
    """A 64-bit seed for ``key``: the same key gives the same seed for ever, different keys unrelated ones."""
    sequence = np.random.SeedSequence(entropy=key[0], spawn_key=key[1:])
    return int(sequence.generate_state(1, np.uint64)[0])


def stored_key(value: object) -> StreamKey:
    """The key of a stream as a state has it. Raises: ValueError if it is none."""
    if not isinstance(value, list) or not 0 < len(value) <= _LONGEST_KEY:
        raise ValueError(f"a stream's key is a list of integers, the state says {value!r:.40}")
    if not all(type(part) is int and 0 <= part < _LARGEST_PART for part in value):
        raise ValueError("a stream's key is a list of integers, and has one that is none")
    return tuple(value)


def _philox_key(key: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.random.SeedSequence(entropy=key[0], spawn_key=tuple(key[1:])).generate_state(2, np.uint64)


class IndexStream:
    """Uniform indices from a keyed stream; the position is one integer, ``draws``.

    State: ``{"key": [...], "draws": n}``. Not thread-safe. The key travels with the state, so that a saved stream
    goes on as it was even where the surrounding seed differs.
    """

    __slots__ = ("_block", "_key", "_values", "draws", "key")

    def __init__(self, key: StreamKey) -> None:
        self._reset(key, 0)

    def _reset(self, key: StreamKey, draws: int) -> None:
        self.key = key
        self.draws = draws
        self._key = _philox_key(key)
        self._block = -1
        self._values: list[int] = []

    def index(self, n: int) -> int:
        """The next index in ``range(n)``.

        The 64-bit draw is scaled by multiplication (Lemire: "Fast Random Integer Generation in an Interval", 2019)
        without rejection, so that every index costs one draw; the bias is below n / 2**64.
        """
        block, offset = divmod(self.draws, _BLOCK)
        if block != self._block:
            philox = np.random.Philox(key=self._key, counter=[0, 0, block, _DRAWS])
            self._values = philox.random_raw(_BLOCK).tolist()
            self._block = block
        self.draws += 1
        return (self._values[offset] * n) >> 64

    def state_dict(self) -> dict[str, object]:
        return {"key": list(self.key), "draws": self.draws}

    def load_state_dict(self, state: dict[str, object]) -> None:
        draws = state["draws"]
        if type(draws) is not int or not 0 <= draws < 1 << 64:
            raise ValueError(f"a stream stands after a number of draws, the state says {draws!r:.40}")
        self._reset(stored_key(state["key"]), draws)


def permutation(key: StreamKey, length: int) -> np.ndarray[Any, Any]:
    """The numbers below ``length`` in the order of as many 64-bit draws from a keyed stream: every order alike likely.

    Two equal draws, which leave their numbers in order, have a chance below length**2 / 2**65.
    """
    philox = np.random.Philox(key=_philox_key(key), counter=[0, 0, 0, _ORDER])
    return np.argsort(philox.random_raw(length), kind="stable")


class ItemStreams:
    """One independent generator per item index, for functions that draw random numbers for an item."""

    __slots__ = ("_key", "key")

    def __init__(self, key: StreamKey) -> None:
        self.key = key
        self._key = _philox_key(key)

    def generator(self, index: int) -> np.random.Generator:
        """A fresh generator for item ``index``; up to 2**128 draws before it could touch a neighbour's."""
        return np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, index, _ITEMS]))


class BatchSeeds:
    """The seeds of the global generators for each batch, from (seed, epoch, batch), or for each sample of it.

    Not thread-safe.
    """

    _AT_ONCE = 64  # batches, or samples of one; part of the seeds' definition, never change it

    def __init__(self) -> None:
        self._named: tuple[int, ...] | None = None
        self._drawn: list[int] = []

    def of(self, seed: int, epoch: int, batch: int, sample: int | None = None) -> tuple[int, int, int]:
        """The seeds of ``random`` (64 bits), of numpy (32, which is all that it takes) and of torch (63)."""
        block, inner = divmod(batch if sample is None else sample, self._AT_ONCE)
        counter = [0, 0, block, _BATCHES] if sample is None else [0, block, batch, _SAMPLES]
        if self._named != (seed, epoch, *counter):
            self._named = None  # an interrupt from here on leaves the numbers anywhere
            numbers = np.random.Philox(key=_philox_key((seed, epoch)), counter=counter)
            self._drawn = numbers.random_raw(self._AT_ONCE * 3).tolist()
            self._named = (seed, epoch, *counter)
        for_python, for_numpy, for_torch = self._drawn[3 * inner : 3 * inner + 3]
        return for_python, for_numpy >> 32, for_torch >> 1


class OwnSeeds:
    """The seeds of a generator of the user's for each batch, or item, or sample of a batch. Not thread-safe."""

    def __init__(self) -> None:
        self._named: StreamKey = ()
        self._key: Any = None

    def of(self, key: StreamKey, generator: int, number: int, sample: int | None = None) -> int:
        """64 bits, of a stream's ``key`` and the ``generator``'s number."""
        if self._named != key:
            self._key, self._named = _philox_key(key), key
        counter = [generator, 0 if sample is None else 1 + sample, number, _OWN]
        return int(np.random.Philox(key=self._key, counter=counter).random_raw())


class SeedGenerator:
    """Hands out seeds: *shared* ones, equal in every worker, and own ones, different in each.

    The interface of torchdata's class of this name, which ``worker_reset_fn`` receives. Deterministic: the k-th call
    after :meth:`seed` gives the same value in every run. Without a seed, one is drawn from
    torch's default generator, as torchdata does. Not thread-safe.
    """

    def __init__(self, seed: int | None = None, *, _path: tuple[int, ...] = ()) -> None:
        self._path = _path
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Start anew from ``seed``, or from one drawn from torch's default generator."""
        self._seed = fresh_seed() if seed is None else check_seed(seed)
        self._shared_count = 0
        self._own_count = 0

    def generate_shared_seed(self) -> int:
        """The next 64-bit seed of the stream that all spawned generators share."""
        self._shared_count += 1
        return derive_seed(self._seed, 0, self._shared_count)

    def generate_seed(self) -> int:
        """The next 64-bit seed of this generator's own stream."""
        self._own_count += 1
        return derive_seed(self._seed, 1, *self._path, self._own_count)

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """A generator for worker ``worker_id``: the same shared stream from here on, an own stream of its own."""
        path = (*self._path, worker_id + 1)
        if inplace:
            self._path = path
            self._own_count = 0
            return self
        child = SeedGenerator(self._seed, _path=path)
        child._shared_count = self._shared_count
        return child


_ROUNDS = 10  # this and the rest are part of the order's definition: never change them
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_AT_ONCE = 1024  # indices computed together: 0.1 us each, where one alone takes 0.1 ms
_PURPOSE = 0x0DE2  # keeps these keys apart from those of other streams

_Numbers = np.ndarray[Any, np.dtype[np.uint64]]


class ComputedOrder(Sequence[int]):
    """The numbers below ``length``, each once, in an order fixed by ``key``. Memory: 40 kB, whatever the length.

    Of the orders there are, a key picks one of 2**64; more than 20 items have more. Not thread-safe.
    """

    def __init__(self, key: StreamKey, length: int) -> None:
        self._length = length
        bits = max(2, (length - 1).bit_length())
        self._left, self._right = bits // 2, bits - bits // 2
        seeds = np.random.SeedSequence(derive_seed(*key, _PURPOSE))
        self._keys = seeds.generate_state(_ROUNDS, np.uint64)
        self._block: list[int] = []
        self._number = -1  # of the block

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._length))]
        if not 0 <= index < self._length:
            raise IndexError(index)
        number, offset = divmod(index, _AT_ONCE)
        if number != self._number:
            first = number * _AT_ONCE
            indices = np.arange(first, min(first + _AT_ONCE, self._length), dtype=np.uint64)
            self._block, self._number = self.at(indices).tolist(), number
        return self._block[offset]

    def at(self, indices: _Numbers) -> _Numbers:
        """The numbers at many indices at once."""
        found = self._permuted(indices)
        while (outside := found >= self._length).any():
            found[outside] = self._permuted(found[outside])
        return found

    def _permuted(self, numbers: _Numbers) -> _Numbers:
        """Below the power of two. Overflows wrap, as they are meant to."""
        right_bits = np.uint64(self._right)
        left, right = numbers >> right_bits, numbers & np.uint64((1 << self._right) - 1)
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right = right ^ (_mixed(left + key) >> np.uint64(64 - self._right))
            else:
                left = left ^ (_mixed(right + key) >> np.uint64(64 - self._left))
        return (left << right_bits) | right


def _mixed(numbers: _Numbers) -> _Numbers:
    for shift, factor in _MIX:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(_LAST_SHIFT))
