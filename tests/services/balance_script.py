"""What one rank does in the tests of ``Balance``: ``python -m tests.services.balance_script FOLDER RANK RANKS JOB``.

Joins a gloo group through a file, and writes what came of the job.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from torchpipe import DataLoader
from torchpipe.data import Balance, Ranks
from torchpipe.errors import RankError

LENGTH, WHOLE, WINDOW = 150, 16, 3  # 9 whole steps, and 6 samples
SAVED = (0, 1, 3, 4, 6, 8, 9, 10)  # steps of the first epoch after which a state is kept


def lengths() -> Any:
    return np.minimum(4096, np.ceil(np.random.default_rng(3).lognormal(6, 1, LENGTH))).astype(np.int64)


class Drawing(torch.utils.data.Dataset[list[int]]):
    """Its index, and a number drawn."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> list[int]:
        return [index, int(torch.randint(1 << 40, ()))]


def loader(workers: int = 0, cost: Any = None, **options: Any) -> DataLoader[Any]:
    options = {"generator": torch.Generator().manual_seed(7), **options}
    balance = options.pop("balance", Balance(lengths() if cost is None else cost, WINDOW, row=4))
    if workers:
        options = {"multiprocessing_context": "fork", **options}
    return DataLoader(
        Drawing(),
        WHOLE // dist.get_world_size(),
        shuffle=True,
        distributed=Ranks(uneven="pad", balance=balance),
        num_workers=workers,
        collate_fn=list,
        **options,
    )


def whole(folder: Path) -> Any:
    """Two epochs, and what follows each state of the first, in process and with workers."""
    with loader(2, persistent_workers=True) as first:
        epoch, states = [], [first.state_dict()]
        for batch in first:
            epoch.append(batch)
            states.append(first.state_dict())
        stats = first.stats()
        second = list(first)
        first.set_epoch(0)
        stream = iter(first)
        assert [next(stream) for _ in range(4)] == epoch[:4]  # and a break
        del stream
        first.set_epoch(1)
        assert list(first) == second
    for number in SAVED:
        if dist.get_rank() == 0:
            (folder / f"state.{number}").write_text(json.dumps(states[number]))
        with loader(number % 3) as again:
            again.load_state_dict(states[number])
            assert list(again) == epoch[number:], number
            assert list(again) == second, number
    assert len(states) == SAVED[-1] + 1
    assert stats.balance is not None
    return [epoch, second, asdict(stats.balance)]


def resumed(folder: Path) -> Any:
    """On other ranks: what is left of the epoch, and the next one."""
    found = {}
    for number in SAVED:
        with loader(number % 2) as again:
            again.load_state_dict(json.loads((folder / f"state.{number}").read_text()))
            found[number] = [list(again), list(again)]
    return found


def killed(folder: Path) -> Any:
    with loader(2) as loader_:
        stream = iter(loader_)
        had = list(islice(stream, 4))
        os.kill(loader_.worker_pids()[dist.get_rank() % 2], signal.SIGKILL)
        return [had + list(stream), list(loader_)]


def shadow(folder: Path) -> Any:
    with loader(balance=Balance(lengths(), WINDOW, shadow=True)) as shadowed, loader(balance=None) as plain:
        batches = [list(shadowed), list(plain)]
        plain.load_state_dict(shadowed.state_dict())
        stats = shadowed.stats().balance
    assert stats is not None
    return [*batches, asdict(stats)]


def refused(folder: Path) -> Any:
    rank = dist.get_rank()
    told = []
    for more in ({"cost": lengths() + rank}, {"balance": Balance(lengths(), 3 + rank)}, {"balance": None}):
        if more == {"balance": None} and rank:
            more = {}
        with loader(**more) as loader_:  # type: ignore[arg-type]
            try:
                iter(loader_)
            except RankError as error:
                told.append(str(error))
    return told


def main(folder: Path, rank: int, ranks: int, jobs: list[str]) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / f'store.{ranks}'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    for job in jobs:
        (folder / f"{job}.{ranks}.{rank}.json").write_text(json.dumps(globals()[job](folder)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
