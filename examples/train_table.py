"""Train a small network on a parquet table, kill it, and show that no row was lost or repeated.

    python examples/train_table.py        (torch and pyarrow; 20 s of processor time)

The table has a row for each line of Python's own sources; the network learns whether the next line is indented deeper.
Two runs of the same training job: one is left alone, the process of the other is SIGKILLed in the second epoch and
started again. At the end both are compared by the rows of every batch and by every loss, to the last bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script runs from anywhere

from examples import jobs
from examples.table.data import make_table, test_batches
from examples.table.training import train


def main() -> int:
    options = _options()
    table = options.data / "lines.parquet"
    if options.role == "train":
        train(table, options.run, options.epochs, options.checkpoint_every)
        return 0
    rows = make_table(table, options.rows) - sum(len(batch["id"]) for batch in test_batches(table))
    given = ["--data", str(options.data), "--epochs", str(options.epochs)]
    given += ["--checkpoint-every", str(options.checkpoint_every)]
    return jobs.compare(
        lambda run: [__file__, "--role", "train", "--run", str(run), *given],
        options.data,
        rows,
        "rows",
        epochs=options.epochs,
        learned=0.9,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000, help="of the table, at most (default: 40000)")
    parser.add_argument("--epochs", type=int, default=2, help="of each run (default: 2)")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="so many steps (default: 10)")
    parser.add_argument("--data", type=Path, default=Path(".demo/table"), help="folder for everything it writes")
    parser.add_argument("--role", default="demo", choices=("demo", "train"), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epochs < 2 or options.checkpoint_every < 1:
        parser.error(f"--epochs must be at least 2, got {options.epochs}: the kill comes in the second one")
    if options.rows < 10_000:
        parser.error(f"--rows must be at least 10000, got {options.rows}: from fewer, it does not learn")
    return options


if __name__ == "__main__":
    sys.exit(main())
