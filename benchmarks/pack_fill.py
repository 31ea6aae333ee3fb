"""How full packs are, and how fast they are made: ``pack`` beside Grain's packing nodes, which torchtitan uses.

    python -m benchmarks.pack_fill [--documents 20000] [--rounds 3]

Documents of two kinds, whole: long ones (median 0.3 of a pack) and those of P17 (median 0.12). One process, in turn.
torchtitan's main packs conversations by ``FirstFitPackIterDataset`` with 8 bins. Prints a table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
from grain import experimental

from torchpipe.iter import IterableWrapper

LENGTH = 2_048
KINDS = {"long": (0.3 * LENGTH, 0.8), "P17's": (245.0, 1.0)}


def documents_of(kind: str, count: int) -> list[Any]:
    median, spread = KINDS[kind]
    sizes = np.random.default_rng(0).lognormal(np.log(median), spread, count).astype(int).clip(1, LENGTH)
    return [np.arange(size) for size in sizes]


def with_torchpipe(documents: list[Any], **options: Any) -> Iterator[Any]:
    for pack in IterableWrapper(documents, deepcopy=False).pack(LENGTH, **options):
        yield pack["segment_ids"]


def with_grain(documents: list[Any], node: Any, **options: Any) -> Iterator[Any]:
    source = grain.MapDataset.source(documents).map(lambda tokens: {"tokens": tokens})
    for pack in node(source.to_iter_dataset(), length_struct={"tokens": LENGTH}, **options):
        yield pack["tokens_segment_ids"]


FIRST_FIT, CONCAT = experimental.FirstFitPackIterDataset, experimental.ConcatThenSplitIterDataset
WAYS: dict[str, Callable[[list[Any]], Iterator[Any]]] = {
    'torchpipe, `"concat"`': with_torchpipe,
    'torchpipe, `"best_fit"`': lambda documents: with_torchpipe(documents, strategy="best_fit"),
    'torchpipe, `"best_fit"`, `window=1000`': lambda documents: with_torchpipe(
        documents, strategy="best_fit", window=1000
    ),
    "Grain, concatenated": lambda documents: with_grain(documents, CONCAT),
    "Grain, first fit, 8 bins (torchtitan's)": lambda documents: with_grain(documents, FIRST_FIT, num_packing_bins=8),
    "Grain, first fit, 1,000 bins": lambda documents: with_grain(documents, FIRST_FIT, num_packing_bins=1000),
}


def measure(way: Callable[[list[Any]], Iterator[Any]], documents: list[Any]) -> tuple[float, float]:
    """The part of all packs that is no padding, and millions of tokens a second."""
    began, used, packs = time.perf_counter(), 0, 0
    for segment_ids in way(documents):
        used += int(np.count_nonzero(segment_ids))
        packs += 1
    wall_s = time.perf_counter() - began
    whole = sum(map(len, documents))
    assert used == whole, f"{used} of {whole} tokens came"
    return used / packs / LENGTH, whole / wall_s / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    kinds = {kind: documents_of(kind, given.documents) for kind in KINDS}
    rounds = [
        {(name, kind): measure(way, documents) for kind, documents in kinds.items() for name, way in WAYS.items()}
        for _ in range(given.rounds)
    ]
    print(f"| | {' | '.join(f'{kind}: fill | million tokens/s' for kind in KINDS)} |")
    print("|---|" + "---:|" * 2 * len(KINDS))
    for name in WAYS:
        cells = []
        for kind in KINDS:
            speed = statistics.median(one[name, kind][1] for one in rounds)
            cells += [f"{rounds[0][name, kind][0]:.1%}", f"{speed:.0f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
