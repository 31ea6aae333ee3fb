"""The random generators that objects hold which are read by index: seeded for each batch, or item, as the global ones.

Runs in every process that reads by index. What is made depends on its number alone then, wherever it is made, and
nothing of the generators is in a state. They are put back behind it: they may be others' too.

What cannot be seeded is told: what is found to have a position of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torchpipe.node.traits import is_ours
from torchpipe.randomness.generators import generator_state, put_generator, seed_generator
from torchpipe.randomness.seeds import OwnSeeds, StreamKey
from torchpipe.values.generator_search import GeneratorSearch

__all__ = ["SeededGenerators"]

T = TypeVar("T")

_ADVICE = (
    "what is made by index then depends on what was made before: with other workers, or after a resume, it is "
    "something else. Draw from a generator made of the index (np.random.default_rng((seed, index))), or from random, "
    "np.random or torch, which are seeded for each batch"
)


class SeededGenerators:
    """The generators of ``roots``, when this is made, or a pass begins. ``warn`` is told what cannot be seeded.

    Not thread-safe.
    """

    def __init__(self, *roots: Any, warn: Callable[[str], None] | None = None) -> None:
        self._found = GeneratorSearch(roots, is_ours)
        self._seeds = OwnSeeds()
        self._generators: list[tuple[int, Any]] = []
        lost = dict(self._found.lost)
        for path, generator in self._found.generators.items():
            if _can_be_seeded(generator):
                self._generators.append((_number_of(path), generator))
            else:
                lost[path] = f"a random generator ({type(generator).__name__}) that cannot be seeded"
        if warn is not None and lost:
            path, what = next(iter(lost.items()))
            warn(f"{self._found.name(path)} is {what}: {_ADVICE}")

    def __bool__(self) -> bool:
        """False if there is nothing to do."""
        return bool(self._generators)

    def first(self) -> str | None:
        """The name of the first one; None if there is none."""
        return next(map(self._found.name, self._found.generators), None)

    def seed(self, key: StreamKey, number: int, sample: int | None = None) -> None:
        """Let each begin a stream of its own for batch, or item, ``number``, or its ``sample``."""
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
        key = key_of()

        def reading(number: Any) -> T:
            with self.put_back():
                self.seed(key, number)
                return read(number)

        return reading


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
