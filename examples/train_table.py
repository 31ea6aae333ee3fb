"""Train a small network on a parquet table, kill it, and show that no row was lost or repeated.

    python examples/train_table.py        (torch and pyarrow; 20 s of processor time)

The table has a row for each line of Python's own sources; the network learns whether the next line is indented deeper.
Two runs of the same training job: one is left alone, the process of the other is SIGKILLed in the second epoch and
started again. At the end both are compared by the rows of every batch and by every loss, to the last bit.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script runs from anywhere

from examples.table.data import make_table, test_batches
from examples.table.training import Journal, read_journal, train

_PATIENCE_S = 240.0


def main() -> int:
    options = _options()
    table = options.data / "lines.parquet"
    if options.role == "train":
        train(table, options.run, options.epochs, options.checkpoint_every)
        return 0
    began = time.monotonic()
    rows = make_table(table, options.rows)
    runs = {name: options.data / name for name in ("uninterrupted", "interrupted")}
    for run in runs.values():
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
    alone, killed = (Training(options, run) for run in runs.values())
    killed.until(lambda journal: journal.steps.get(journal.last, [(0, 0.0, [])])[0][0] == 1)
    killed.kill()
    print(f"SIGKILL to the training process {killed.pid} after step {read_journal(runs['interrupted']).last}")
    again = Training(options, runs["interrupted"])
    for training in (again, alone):
        training.wait()
    tested = sum(len(batch["id"]) for batch in test_batches(table))
    return report(*map(read_journal, runs.values()), rows - tested, options.epochs, time.monotonic() - began)


def report(alone: Journal, killed: Journal, rows: int, epochs: int, seconds: float) -> int:
    """Say what came of it. Returns 0 if the interrupted run was exact, and has learned."""
    print(f"started again from its checkpoint of step {killed.starts[-1]}, in mid-epoch")
    seen: Counter[tuple[int, int]] = Counter()
    for made in killed.steps.values():
        epoch, _, ids = made[-1]
        seen.update((epoch, number) for number in ids)
    lost, repeated = rows * epochs - len(seen), seen.total() - len(seen)
    print(f"{rows} rows in each of {epochs} epochs: {lost} lost, {repeated} repeated")
    same = all(step in killed.steps and made[0] in killed.steps[step] for step, made in alone.steps.items())
    same = same and all(one == made[0] for made in killed.steps.values() for one in made)
    same = same and len(alone.steps) == len(killed.steps)
    print(f"rows and losses of all {len(alone.steps)} steps: {'equal, bit for bit' if same else 'DIFFERENT'}")
    print(f"accuracy on other files: {alone.accuracy:.3f}, interrupted {killed.accuracy:.3f}; {seconds:.0f} s in all")
    learned = alone.accuracy is not None and alone.accuracy > 0.9 and alone.accuracy == killed.accuracy
    return 0 if same and learned and not lost and not repeated and len(killed.starts) == 2 else 1


class Training:
    """A training process, seen from outside."""

    def __init__(self, options: argparse.Namespace, run: Path) -> None:
        self._run = run
        command = [sys.executable, __file__, "--role", "train", "--run", str(run), "--data", str(options.data)]
        command += ["--epochs", str(options.epochs), "--checkpoint-every", str(options.checkpoint_every)]
        with open(run / "output.txt", "ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self.pid = self._process.pid

    def until(self, condition: Callable[[Journal], bool]) -> None:
        """Wait until the log says so. Raises: RuntimeError if the process ends before, or it takes very long."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition(read_journal(self._run)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the training has ended or hangs:\n{(self._run / 'output.txt').read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        if self._process.wait(_PATIENCE_S):
            raise RuntimeError(f"the training has failed:\n{(self._run / 'output.txt').read_text()}")


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
