"""L1 through ``DataLoader``: the same batches, random augmentation included, however they are made."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.datasets import Augmented, Lines, StatefulSampler, epochs_of
from tests.exact import exact
from tests.tries import tries
from torchpipe import DataLoader

CONTEXTS = ("fork", "forkserver", "spawn")


@given(
    length=st.integers(1, 40),
    size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    workers=st.integers(1, 3),
    prefetch=st.integers(1, 5),
    persistent=st.booleans(),
)
@settings(max_examples=tries(12))
def test_L1_any_number_of_workers_makes_the_same_batches(
    length: int, size: int, drop_last: bool, shuffle: bool, workers: int, prefetch: int, persistent: bool
) -> None:
    def run(**options: object) -> list[list[str]]:
        generator = torch.Generator().manual_seed(length)
        options = {"batch_size": size, "drop_last": drop_last, "shuffle": shuffle, "generator": generator, **options}
        return epochs_of(Augmented(length), 2, **options)

    first = run(num_workers=workers, prefetch_factor=prefetch)
    assert first == run()
    if persistent:  # torch's loader draws no second seed for them: the same first epoch, and a second for any number
        second = run(num_workers=workers, prefetch_factor=prefetch, persistent_workers=True)
        assert second[0] == first[0]
        assert second == run(num_workers=1 + workers % 3, persistent_workers=True)


@pytest.mark.parametrize("context", CONTEXTS)
def test_L1_under_every_start_method(context: str) -> None:
    generators = [torch.Generator().manual_seed(4) for _ in range(2)]
    found = epochs_of(
        Augmented(20),
        1,
        batch_size=3,
        shuffle=True,
        generator=generators[0],
        num_workers=2,
        multiprocessing_context=context,
    )
    assert found == epochs_of(Augmented(20), 1, batch_size=3, shuffle=True, generator=generators[1])


def test_L1_of_a_sampler_with_a_state() -> None:
    found = [epochs_of(Augmented(13), 3, seed=2, sampler=StatefulSampler(13), num_workers=n) for n in (0, 1, 3)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("give_up_at", [0, 2, 5, 6, 7])
def test_L1_of_what_follows_an_epoch_that_was_given_up(give_up_at: int) -> None:
    """The rest that "rollover" carries, too, does not depend on how far workers were ahead."""

    def run(workers: int) -> list[object]:
        generator = torch.Generator().manual_seed(1)
        found: list[object] = []
        with DataLoader(
            Augmented(31), 4, shuffle=True, generator=generator, num_workers=workers, last_batch="rollover"
        ) as loader:
            for most in (None, give_up_at, None, None):
                found.append(len(loader))
                for number, batch in enumerate(loader):
                    if number == most:
                        break
                    found.append(exact(batch))
        return found

    assert run(0) == run(2)


def test_L1_an_iterable_dataset_by_torchs_seeding_or_not_is_repeatable() -> None:
    for seeding in ("batch", "torch"):
        found = [
            epochs_of(Lines(23), 2, seed=5, batch_size=3, num_workers=2, prefetch_factor=n, worker_seeding=seeding)
            for n in (1, 4)
        ]
        assert found[0] == found[1]


def test_L1_lists_of_indices_are_given_to_getitems() -> None:
    class Batched(Augmented):
        def __getitems__(self, indices: list[int]) -> list[object]:
            return [self[index] for index in indices]

    assert epochs_of(Batched(17), 2, seed=1, batch_size=4, num_workers=2) == epochs_of(
        Augmented(17), 2, seed=1, batch_size=4
    )
