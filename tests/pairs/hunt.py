"""Look for combinations that are neither exact nor refused, with fresh seeds, for as long as one likes.

    python -m tests.pairs.hunt [--minutes 10] [--seed 7]            half the time each of:
    python -m tests.pairs.hunt --of loader [--strength 3]           the rows of one covering array after another
    python -m tests.pairs.hunt --of forms                           chains with every pair of forms
    python -m tests.pairs.hunt --row "way=2; happens=kill"          one row
    python -m tests.pairs.hunt --chain "own source:0 | batch:2"     one chain

Each failure is made as plain as it can be while it still fails.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.pairs import form_chains, loader_runs
from tests.pairs.covering import Row, covering_rows
from tests.pairs.form_cached import check_changed, check_rewritten, names_files
from tests.pairs.form_chains import Chain, chain_of, covering_chains, pairs
from tests.pairs.form_material import write_files
from tests.pairs.form_rules import alone
from tests.pairs.form_runs import check_in_workers, check_model
from tests.pairs.loader_features import FACTORS, allowed

__all__: list[str] = []

T = TypeVar("T")


def failure_of(case: T, check: Callable[[T], object]) -> str | None:
    """What it fails with, in a line."""
    try:
        check(case)
    except Exception as error:
        return _line(error)
    except BaseException as error:  # pytest's own
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return _line(error)
    return None


def _line(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.filename.rpartition('/')[2]}:{last.lineno}: {str(error)[:300]}"


# --- options of a DataLoader


def plainest_row(row: Row, fails: Callable[[Row], object]) -> Row:
    """A row that fails as well, with as few features as can be."""
    for name in [name for name, level in row.items() if level != FACTORS[name][0]]:
        simpler = row | {name: FACTORS[name][0]}
        if allowed(simpler) and fails(simpler):
            row = simpler
    return row


def row_of(text: str) -> Row:
    given = dict(item.split("=", 1) for item in text.split("; ") if "=" in item)
    return {name: given.get(name, levels[0]) for name, levels in FACTORS.items()}


def fresh_rows(seed: int, strength: int) -> Iterator[Row]:
    while True:
        rows, covered = covering_rows(FACTORS, allowed=allowed, seed=seed, strength=strength)
        print(f"seed {seed}: {len(rows)} rows, {covered} combinations", flush=True)
        yield from rows
        seed += 1


# --- forms of nodes


def check_chain(chain: Chain) -> None:
    check_in_workers(chain, thorough=True)
    check_model(chain)
    check_changed(chain)
    if names_files(chain):
        check_rewritten(chain)


def fresh_chains(seed: int) -> Iterator[Chain]:
    while True:
        chains = list(covering_chains(seed, alone=alone, every_form=True))
        random.Random(seed).shuffle(chains)
        print(f"seed {seed}: {len(chains)} chains, {len(pairs(every_form=True))} pairs", flush=True)
        yield from chains
        seed += 1


def hunt(
    cases: Iterable[T],
    check: Callable[[T], object],
    name_of: Callable[[T], str],
    plainest: Callable[[T, Callable[[T], object]], T],
    *,
    minutes: float,
    first: bool,
) -> int:
    """How many failed."""
    deadline = time.monotonic() + 60 * minutes
    ran = failed = 0
    for case in cases:
        if time.monotonic() > deadline:
            break
        ran += 1
        failure = failure_of(case, check)
        if failure is None:
            continue
        failed += 1
        print(f"FAILED {name_of(case)}\n  with  {failure}", flush=True)
        if first:
            break
        small = plainest(case, lambda simpler: failure_of(simpler, check))
        print(f"  as    {name_of(small)}\n  with  {failure_of(small, check) or failure}", flush=True)
    print(f"{ran} ran, {failed} failed", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=["loader", "forms"])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--strength", type=int, default=2)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--chain", action="append", default=[])
    parser.add_argument("--first", action="store_true", help="stop at the first failure, and leave it as it is")
    options = parser.parse_args()
    given = bool(options.row or options.chain)
    of_loader = bool(options.row) if given else options.of != "forms"
    of_forms = bool(options.chain) if given else options.of != "loader"
    minutes = options.minutes / (of_loader + of_forms)
    failed = 0
    if of_loader:
        rows = map(row_of, options.row) if options.row else fresh_rows(options.seed, options.strength)
        failed += hunt(rows, loader_runs.check, loader_runs.name_of, plainest_row, minutes=minutes, first=options.first)
    if of_forms and not (failed and options.first):
        chains = map(chain_of, options.chain) if options.chain else fresh_chains(options.seed)
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder))
            os.chdir(folder)
            failed += hunt(
                chains, check_chain, form_chains.name_of, form_chains.plainest, minutes=minutes, first=options.first
            )
            os.chdir(os.sep)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
