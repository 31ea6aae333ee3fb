"""Look for combinations that are neither exact nor refused, with fresh seeds, for as long as one likes.

    python -m tests.pairs.hunt [--minutes 10] [--seed 7] [--strength 3]     the rows of one covering array after another
    python -m tests.pairs.hunt --row "way=2; happens=kill"                  one row

Each failure is made as plain as it can be while it still fails.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback

from tests.pairs.covering import Row, covering_rows
from tests.pairs.loader_features import FACTORS, allowed
from tests.pairs.loader_runs import check, name_of

__all__: list[str] = []


def failure_of(row: Row) -> str | None:
    """What the row fails with, in a line."""
    try:
        check(row)
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


def plainest(row: Row, *, tries: int = 1) -> Row:
    """A row that fails as well, with as few features as can be."""
    for name in [name for name, level in row.items() if level != FACTORS[name][0]]:
        simpler = row | {name: FACTORS[name][0]}
        if allowed(simpler) and any(failure_of(simpler) for _ in range(tries)):
            row = simpler
    return row


def row_of(text: str) -> Row:
    given = dict(item.split("=", 1) for item in text.split("; ") if "=" in item)
    return {name: given.get(name, levels[0]) for name, levels in FACTORS.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--strength", type=int, default=2)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    ran = failed = 0
    seed = options.seed
    while True:
        rows = list(map(row_of, options.row))
        if not rows:
            rows, covered = covering_rows(FACTORS, allowed=allowed, seed=seed, strength=options.strength)
            print(f"seed {seed}: {len(rows)} rows, {covered} combinations", flush=True)
            seed += 1
        for row in rows:
            if time.monotonic() > deadline:
                break
            ran += 1
            failure = failure_of(row)
            if failure is not None:
                failed += 1
                if options.first:
                    print(f"row {ran} FAILED {name_of(row)}\n  {failure}")
                    return 1
                small = plainest(row)
                print(
                    f"FAILED {name_of(row)}\n  as    {name_of(small)}\n  with  {failure_of(small) or failure}",
                    flush=True,
                )
        if options.row or time.monotonic() > deadline:
            print(f"{ran} rows ran, {failed} failed")
            return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
