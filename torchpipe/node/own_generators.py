"""The random generators that objects hold which are read by index: seeded for each batch, or item, as the global ones.

Runs in every process that reads by index. What is made depends on its number alone then, wherever it is made, and
nothing of the generators is in a state. They are put back behind it: they may be others' too.

What cannot be seeded is told: what is found to have a position of its own, and what has been seen to change while the
first two batches were made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torchpipe.node.traits import is_ours
from torchpipe.randomness.generators import generator_state, put_generator, seed_generator
from torchpipe.randomness.seeds import OwnSeeds, StreamKey
from torchpipe.values.generators_in import GeneratorsIn

__all__ = ["OwnGenerators"]

T = TypeVar("T")

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
        """Called before each of the first three that are made: has anything changed both times?"""
        self._begun += 1
        if self._begun == 1:
            return
        self._looks.append(GeneratorsIn(self._roots, is_ours))
        if self._begun == 2:
            return
        before, first, second = self._looks
        self._warn = None
        del self._looks[1:]
        for path, count in second.counts.items():
            if before.counts.get(path, count) < first.counts.get(path, count) < count:
                warn(f"{second.name(path)} is an integer that grows with each one: {_ADVICE}")
                return
        for path, generator in second.generators.items():
            if first.generators.get(path) is generator is not before.generators.get(path):
                warn(f"{second.name(path)} is a random generator that was made with the first one: {_ADVICE}")
                return


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
