"""The seeds that a loader draws: from its generator, or from torch's default one, which a resume finds elsewhere.

Runs in the user's process, in the thread that iterates the loader.

Without ``generator=``, torch's loader and its shuffling draw a seed each for every epoch from torch's default one.
A process that resumes has that generator somewhere else: at the seed with which the script begins, as a rule, so that
it would give the orders of the first epochs again. Therefore a state has the default generator's state as well, and
:class:`Draws` goes on from there, as long as nothing but such loaders draws from the default generator or sets it: a
script that puts the generator back, seeds it for each epoch, or draws from it in its training, has it its way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchpipe.randomness.seeds import fresh_seed

__all__ = ["Draws"]

T = TypeVar("T")


class _Watch:
    """Of the default generator: has it been used by others? One for the process; ``times`` counts."""

    def __init__(self) -> None:
        self._seen = torch.get_rng_state()
        self.times = 0

    def look(self) -> int:
        present = torch.get_rng_state()
        if not torch.equal(present, self._seen):
            self._seen = present
            self.times += 1
        return self.times

    def draw(self) -> int:
        self.look()
        seed = fresh_seed()
        self._seen = torch.get_rng_state()
        return seed


_watch = _Watch()


class Draws:
    """Seeds for one loader. ``saved``: where the default generator stood when the loaded state was saved."""

    def __init__(self, saved: torch.Tensor | None = None) -> None:
        self._saved = saved
        self._times = _watch.look()

    def __reduce__(self) -> Any:
        return Draws, (self._going_on(),)

    def _going_on(self) -> torch.Tensor | None:
        if self._saved is not None and _watch.look() != self._times:
            self._saved = None
        return self._saved

    def state(self) -> torch.Tensor:
        """Where the next draw without a generator begins."""
        saved = self._going_on()
        return torch.get_rng_state() if saved is None else saved

    def seed(self, generator: torch.Generator | None = None) -> int:
        """The draw that torch's loader makes for each of its iterators, and its shuffling for each order."""
        if generator is not None:
            return fresh_seed(generator)
        stand_in = self._stand_in()
        # Also where another is used: a generator that is put back later must stand where it would
        drawn = _watch.draw()
        if stand_in is None:
            return drawn
        seed = fresh_seed(stand_in)
        self._saved = stand_in.get_state()
        return seed

    def within(self, step: Callable[[], T]) -> T:
        """What ``step``, of a sampler that may draw from the default generator, returns; this stands meanwhile where
        it would without the resume. An interrupt at any instruction leaves the process its own."""
        saved = self._going_on()
        if saved is None:
            return step()
        outside = torch.get_rng_state()
        try:
            torch.set_rng_state(saved)
            try:
                return step()
            finally:  # at its end a sampler may have drawn what drop_last leaves out
                self._saved = torch.get_rng_state()
                torch.set_rng_state(outside)
        except BaseException:
            torch.set_rng_state(outside)
            raise

    def stand_at(self, of_torch: torch.Tensor) -> None:
        """The resumed epoch's sampler, which ran apart, left the default generator there."""
        if self._going_on() is not None:
            self._saved = of_torch

    def pass_over(self, generator: torch.Generator | None) -> None:
        """Draw a seed that is known, for what that does to the generator: to the process's own if it is the default."""
        _watch.draw() if generator is None else fresh_seed(generator)

    def next_seed(self) -> int:
        """What :meth:`seed` would give now; nothing is drawn."""
        generator = torch.Generator()
        generator.set_state(self.state())
        return fresh_seed(generator)

    def _stand_in(self) -> torch.Generator | None:
        saved = self._going_on()
        if saved is None:
            return None
        generator = torch.Generator()
        generator.set_state(saved)
        return generator
