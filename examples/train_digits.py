"""Train a small network on real images, kill it twice, and show that nothing was lost or repeated.

    make demo                                          (or: python examples/train_digits.py)
    python examples/train_digits.py --device cpu       (without torch_xla)

Two runs of the same training job: one is left alone; of the other, a worker process is SIGKILLed in the middle of the
first epoch, and later the whole training process, which is then started again from its checkpoint. At the end both are
compared by what arrived at the device: the identity of every sample and a digest over its augmented pixels.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script runs from anywhere

from examples.digits.data import TRAIN_DIGITS, MissingPackage, prepare
from examples.digits.lineage import Kills, Run, compare, read_run
from examples.digits.training import STEPS_PER_EPOCH, TrainingJob, train

_PATIENCE_S = 120.0


def main() -> int:
    options = _options()
    if options.role == "train":
        train(TrainingJob(data=options.data, run=options.run, device=options.device, epochs=options.epochs))
        return 0
    try:
        _check_packages(options.device)
        return demo(options)
    except MissingPackage as error:
        print(error, file=sys.stderr)
        return 2


def demo(options: argparse.Namespace) -> int:
    """Both runs, the comparison and the picture. Returns 0 if the interrupted run was exact and has learned."""
    began = time.monotonic()
    data = prepare(options.data / "digits")
    total = options.epochs * STEPS_PER_EPOCH
    runs = {name: options.data / name for name in ("uninterrupted", "interrupted")}
    for folder in runs.values():
        shutil.rmtree(folder, ignore_errors=True)
    with Bars(total) as bars:
        reference = Training(options, data, runs["uninterrupted"], bars.show)
        reference.until(lambda run: run.end is not None)
        reference.wait()

        interrupted = Training(options, data, runs["interrupted"], bars.show)
        run = interrupted.until(lambda run: len(run.steps) >= STEPS_PER_EPOCH * 3 // 8)
        victim, worker_killed_at = run.steps[-1]["workers"][0], run.steps[-1]["step"]
        os.kill(victim, signal.SIGKILL)
        bars.say(f"SIGKILL to worker process {victim} after step {worker_killed_at}")
        run = interrupted.until(lambda run: bool(run.restarts_seen_at))
        bars.say(f"it was replaced; the training went on with step {run.restarts_seen_at[0]}")

        run = interrupted.until(lambda run: len(run.steps) >= STEPS_PER_EPOCH * 13 // 8)
        workers = run.steps[-1]["workers"]
        interrupted.kill()
        killed_at = read_run(runs["interrupted"] / "log.jsonl").steps[-1]["step"]
        bars.say(f"SIGKILL to the training process {interrupted.pid} after step {killed_at}")
        _wait_until(lambda: not any(_alive(pid) for pid in workers), "its workers to end, too")

        interrupted = Training(options, data, runs["interrupted"], bars.show)
        run = interrupted.until(lambda run: len(run.starts) == 2)
        bars.say(f"started again from its checkpoint, with step {run.starts[1]['step'] + 1}")
        interrupted.until(lambda run: run.end is not None)
        interrupted.wait()
    return report(options, runs, Kills(worker_at=worker_killed_at, process_at=killed_at), time.monotonic() - began)


def report(options: argparse.Namespace, runs: dict[str, Path], kills: Kills, seconds: float) -> int:
    """Print what came of it, draw the picture, and say by the exit code whether all was as it should be."""
    reference, interrupted = (read_run(runs[name] / "log.jsonl") for name in ("uninterrupted", "interrupted"))
    assert reference.end is not None
    assert interrupted.end is not None
    result = compare(interrupted, reference, range(TRAIN_DIGITS))
    picture = options.picture
    from examples.digits.picture import draw_picture

    draw_picture(picture, reference, interrupted, kills)
    accuracy = interrupted.end["accuracy"]
    print(f"{result.samples} samples in {options.epochs} epochs: {result}")
    print(f"each of {TRAIN_DIGITS} digits once in every epoch: {'yes' if result.once_each else 'NO'}")
    print(f"digest over identities and augmented pixels: {'equal' if result.same_digest else 'DIFFERENT'}")
    print(f"losses of all {len(reference.steps)} steps: {'equal, bit for bit' if result.same_losses else 'different'}")
    print(f"test accuracy {accuracy:.3f} (uninterrupted: {reference.end['accuracy']:.3f})")
    print(f"{reference.end['samples_per_s']:.0f} samples/s on {options.device}, checkpoints and digests included")
    print(f"picture: {picture}; the whole demo took {seconds:.0f} s")
    if not result.exact:
        print("NOT EXACT: see the logs in " + str(runs["interrupted"]), file=sys.stderr)
        return 1
    if accuracy < options.min_accuracy:
        print(f"the accuracy is below {options.min_accuracy}", file=sys.stderr)
        return 1
    return 0


class Training:
    """A training process and its log, seen from outside."""

    def __init__(self, options: argparse.Namespace, data: Path, run: Path, show: Callable[[str, int], None]) -> None:
        self._log = run / "log.jsonl"
        self._show = show
        self._name = run.name
        command = [sys.executable, __file__, "--role", "train", "--data", str(data), "--run", str(run)]
        command += ["--device", options.device, "--epochs", str(options.epochs)]
        run.mkdir(parents=True, exist_ok=True)
        with open(run / "output.txt", "ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self.pid = self._process.pid

    def until(self, condition: Callable[[Run], bool]) -> Run:
        """Wait until the log says so. Raises: RuntimeError if the process ends before, or nothing happens for long."""
        steps, quiet_since = -1, time.monotonic()
        while True:
            ended = self._process.poll()
            run = read_run(self._log)
            self._show(self._name, len(run.steps))
            if condition(run):
                return run
            if len(run.steps) != steps:
                steps, quiet_since = len(run.steps), time.monotonic()
            if ended is not None or time.monotonic() - quiet_since > _PATIENCE_S:
                what = f"ended with code {ended}" if ended is not None else f"did nothing for {_PATIENCE_S:.0f} s"
                output = (self._log.parent / "output.txt").read_text()
                raise RuntimeError(f"the {self._name} training process {what}:\n{output}")
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        if self._process.wait(_PATIENCE_S):
            raise RuntimeError(
                f"training ended with code {self._process.returncode}: see {self._log.parent}/output.txt"
            )


class Bars:
    """A progress bar for each run, and lines about what happens to them."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
        self._progress = Progress(*columns, TimeElapsedColumn())
        self._tasks = {
            name: self._progress.add_task(name, total=total, start=False) for name in ("uninterrupted", "interrupted")
        }

    def show(self, name: str, steps: int) -> None:
        self._progress.start_task(self._tasks[name])
        self._progress.update(self._tasks[name], completed=steps)

    def say(self, text: str) -> None:
        self._progress.console.print(f"  {text}", highlight=False)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _check_packages(device: str) -> None:
    needed = {"PIL": "demo", "rich": "demo", "matplotlib": "demo"} | ({"torch_xla": "xla"} if device == "xla" else {})
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({needed[name] for name in missing}))
        advice = " (torch_xla needs torch 2.9; --device cpu does without it)" if "torch_xla" in missing else ""
        raise MissingPackage(f"not installed: {', '.join(missing)}{advice}\n    pip install '.[{extras}]'")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between the opening and the reading
        return False


def _wait_until(condition: Callable[[], bool], what: str, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s for {what}, in vain")
        time.sleep(0.02)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla", choices=("xla", "cpu"), help="where to train (default: xla)")
    parser.add_argument("--epochs", type=int, default=3, help="at least 2 (default: 3)")
    parser.add_argument("--data", type=Path, default=Path(".demo"), help="folder for everything it writes")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"), help="where to draw (default: demo.png)")
    parser.add_argument("--min-accuracy", type=float, default=0.9, help="fail below this test accuracy")
    parser.add_argument("--role", default="demo", choices=("demo", "train"), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error(f"--epochs must be at least 2, got {options.epochs}: the process is killed in the second one")
    return options


if __name__ == "__main__":
    sys.exit(main())
