"""L2, L5: random histories of loops over claims that are interrupted in ``next``, saved, resumed: each item once."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

EPOCHS, AHEAD = 2, 4
# An interrupt that strikes where an iterator is dropped is Python's to print: nobody can catch it there
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Struck(KeyboardInterrupt):
    """Raised by the handler."""


class Numbers(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


@contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """The block ends in ``Struck``, at some line of it, unless it is over before."""
    armed = True

    def strike(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def make(length: int, of_dataset: bool) -> Any:
    torch.manual_seed(4)
    if of_dataset:
        return DataLoader(Numbers(length), None, shuffle=True)
    loader: Any = DataLoader2(IterableWrapper(range(length)).shuffle().sharding_filter())
    loader.seed(3)
    return loader


def play(draws: random.Random) -> None:
    length, of_dataset = draws.randint(3, 9), draws.random() < 0.5
    loader = make(length, of_dataset)
    claims, done = loader.claims(ahead=AHEAD), [list[int]() for _ in range(EPOCHS + 40)]
    for _ in range(300):
        if all(len(done[epoch]) >= length for epoch in range(EPOCHS)):
            break
        after_s = draws.choice((0.0, 0.0, 1e-5, 5e-5, 2e-4))  # 0: never
        stream, held, struck = iter(claims), list[Any](), False
        try:
            while not struck:
                if after_s and draws.random() < 0.3:
                    with interrupted(after_s):
                        claim = next(stream, None)
                else:
                    claim = next(stream, None)
                if claim is None:
                    break
                held.append(claim)
                while len(held) >= AHEAD or (held and draws.random() < 0.5):
                    claim = held.pop(draws.randrange(len(held)))
                    done[claim.epoch].append(int(claim.item))
                    claims.done(claim.number)
        except Struck:
            struck = True
        if struck or draws.random() < 0.6:
            state = loader.state_dict()
            with suppress(Struck):
                loader.shutdown()
            loader = make(length, of_dataset)
            loader.load_state_dict(state)
            claims = loader.claims(ahead=AHEAD)
        else:
            for claim in held:
                done[claim.epoch].append(int(claim.item))
                claims.done(claim.number)
    for epoch in range(EPOCHS):
        assert sorted(done[epoch]) == list(range(length)), (epoch, done[epoch])


def play_some(histories: int) -> None:
    first = 0 if os.environ.get("CI") else random.SystemRandom().randrange(1 << 20)
    failed = []
    for seed in range(first, first + histories):
        try:
            play(random.Random(seed))
        except Exception as error:
            failed.append((seed, str(error)))
    assert not failed


def test_L2_L5_interrupted_claims_are_given_again_and_done_ones_are_not() -> None:
    play_some(60)


@pytest.mark.nightly
def test_L2_L5_many_interrupted_claims() -> None:
    play_some(2000)
