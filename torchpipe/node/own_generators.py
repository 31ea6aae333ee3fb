"""The random generators that objects hold which are read by index: seeded for each batch, or item, as the global ones.

Runs in every process that reads by index. What is made depends on its number alone then, wherever it is made, and
nothing of the generators is in a state. They are put back behind it: they may be others' too.

What cannot be seeded is told: what is found to have a position of its own, and what is seen to grow while the first
batches are made. It is looked for when something is read for the first time in a process.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

from torchpipe.node.traits import is_ours
from torchpipe.randomness.generators import generator_state, put_generator, seed_generator
from torchpipe.randomness.seeds import OwnSeeds, StreamKey
from torchpipe.values.generators_in import GeneratorsIn

__all__ = ["OwnGenerators"]

T = TypeVar("T")

_LOOKS = 6
_watched: dict[int, weakref.ref[Any]] = {}  # what was read by index here before

_ADVICE = (
    "what is made by index then depends on what was made before: with other workers, or after a resume, it is "
    "something else. Draw from a generator made of the index (np.random.default_rng((seed, index))), or from random, "
    "np.random or torch, which are seeded for each batch"
)


class OwnGenerators:
    """Those of ``roots``, as they are when this is made, or a pass begins. ``warn`` is told what cannot be seeded.

    Not thread-safe.
    """

    def __init__(self, *roots: Any, warn: Callable[[str], None] | None = None) -> None:
        self._roots = roots
        self._looks = [GeneratorsIn(roots, is_ours)]
        warn = warn if _is_first(roots[0]) else None
        self._warn, self._begun = warn if self._looks[0].may_change else None, 0
        self._seeds = OwnSeeds()
        self._generators: list[tuple[int, Any]] = []
        lost = dict(self._looks[0].lost)
        for path, generator in self._looks[0].generators.items():
            if _can_be_seeded(generator):
                self._generators.append((_number_of(path), generator))
            else:
                lost[path] = f"a random generator ({type(generator).__name__}) that cannot be seeded"
        if warn is not None and lost:
            path, what = next(iter(lost.items()))
            warn(f"{self._looks[0].name(path)} is {what}: {_ADVICE}")
            self._warn = None

    def __bool__(self) -> bool:
        """False if there is nothing to do any more."""
        return self._warn is not None or bool(self._generators)

    def first(self) -> str | None:
        """The name of the first one; None if there is none."""
        return next((self._looks[0].name(path) for path in self._looks[0].generators), None)

    def seed(self, key: StreamKey, number: int, sample: int | None = None) -> None:
        """Let each begin a stream of its own for batch, or item, ``number``, or its ``sample``."""
        if self._warn is not None:
            self._look(self._warn)
        for path, generator in self._generators:
            seed_generator(generator, self._seeds.of(key, path, number, sample))

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """They are as they were behind it."""
        states = [generator_state(generator) for _, generator in self._generators]
        try:
            yield
        finally:
            for (_, generator), state in zip(self._generators, states):
                put_generator(generator, state)

    def around(self, read: Callable[[Any], T], key_of: Callable[[], StreamKey]) -> Callable[[Any], T]:
        """``read``, called with a number, by which they are seeded."""
        if not self:
            return read
        key, generators = key_of(), self._generators

        def reading(number: Any) -> T:
            if self._warn is None and not generators:
                return read(number)
            with self.put_back():
                self.seed(key, number)
                return read(number)

        return reading

    def _look(self, warn: Callable[[str], None]) -> None:
        """Called before each of the first ones that are made, and says what each has changed."""
        self._begun += 1
        if self._begun > 1:
            self._looks.append(GeneratorsIn(self._roots, is_ours))
        if self._begun < _LOOKS:
            return
        looks, self._warn = self._looks, None
        self._looks = looks[:1]
        if text := _growing(looks) or _late(looks):
            warn(f"{text}: {_ADVICE}")


def _growing(looks: list[GeneratorsIn]) -> str | None:
    """A count that grows by the same each time: not what was drawn."""
    for path, last in looks[-1].counts.items():
        counts = [look.counts.get(path, last) for look in looks[1:]]
        steps = {after - before for before, after in pairwise(counts)}
        if len(steps) == 1 and steps.pop() > 0:
            return f"{looks[-1].name(path)} is an integer that grows with each one"
    return None


def _late(looks: list[GeneratorsIn]) -> str | None:
    before, first, last = looks[0], looks[1], looks[-1]
    for path, generator in last.generators.items():
        if first.generators.get(path) is generator is not before.generators.get(path):
            return f"{last.name(path)} is a random generator that was made with the first one"
    return None


def _is_first(root: Any) -> bool:
    """True if ``root`` has not been here before, as far as that can be known."""
    known = _watched.get(id(root))
    if known is not None and known() is root:
        return False
    with suppress(TypeError):
        _watched[id(root)] = weakref.ref(root)
    return True


def _can_be_seeded(generator: Any) -> bool:
    try:
        state = generator_state(generator)
        if state is None:
            return False
        try:
            seed_generator(generator, 0)
        finally:
            put_generator(generator, state)
    except Exception:  # a class of somebody's
        return False
    return True


def _number_of(path: str) -> int:
    return int.from_bytes(hashlib.blake2b(path.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
