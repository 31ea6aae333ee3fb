"""Train a small transformer on Python's own sources, kill it, and show that its loss curve is the same to the last bit.

    python examples/train_language_model.py             (torch alone; 35 s of processor time)

Two runs of the same training job, side by side: one is left alone, the process of the other is SIGKILLed on its way and
started again. Its data are a mix of two sources (0.7 of the bytes code, 0.3 documentation), packed into sequences of
512: what is in flight between a checkpoint and the next batch are half-read files, the rest of a text that was cut, and
what each source lacks. All of it is in the loader's state.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script runs from anywhere

from examples import jobs
from examples.language.training import Curve, read_curve, train


def main() -> int:
    options = _options()
    if options.role == "train":
        train(options.run, options.steps, options.checkpoint_every)
        return 0
    began = time.monotonic()
    runs = jobs.start_anew(options.data)
    alone, killed = (jobs.Training(command(options, run), run, read_curve) for run in runs.values())
    kill_at = options.steps * 5 // 8
    killed.until(lambda curve: curve.last >= kill_at)
    killed.kill()
    print(f"SIGKILL to the training process {killed.pid} after step {read_curve(runs['interrupted']).last}")
    again = jobs.Training(command(options, runs["interrupted"]), runs["interrupted"], read_curve)
    for training in (again, alone):
        training.wait()
    return report(*map(read_curve, runs.values()), options.steps, time.monotonic() - began)


def command(options: argparse.Namespace, run: Path) -> list[str]:
    """What starts the training process."""
    given = ["--steps", str(options.steps), "--checkpoint-every", str(options.checkpoint_every)]
    return [__file__, "--role", "train", "--run", str(run), *given]


def report(alone: Curve, killed: Curve, steps: int, seconds: float) -> int:
    """Say what came of it. Returns 0 if the interrupted run was exact, and has learned."""
    twice = sum(len(made) == 2 for made in killed.steps.values())
    print(f"started again from its checkpoint of step {killed.starts[-1]}; {twice} steps were made twice")
    for step in (1, steps // 2, steps):
        print(f"step {step:3}: loss {alone.steps[step][0][0]:.6f}, interrupted {killed.steps[step][-1][0]:.6f}")
    same = len(alone.steps) == steps and {step: set(made) for step, made in killed.steps.items()} == {
        step: set(made) for step, made in alone.steps.items()
    }
    share = sum(alone.prose) / len(alone.prose)
    print(f"share of prose: {share:.3f}; all of it took {seconds:.0f} s")
    print(f"losses and bytes of all {steps} steps: {'equal, bit for bit' if same else 'DIFFERENT'}")
    learned = alone.steps[steps][0][0] < alone.steps[1][0][0] - 1
    if not learned:
        print("the loss has not fallen", file=sys.stderr)
    return 0 if same and learned and len(killed.starts) == 2 else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of each run (default: 60)")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="so many steps (default: 10)")
    parser.add_argument("--data", type=Path, default=Path(".demo/language"), help="folder for everything it writes")
    parser.add_argument("--role", default="demo", choices=("demo", "train"), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 8 or not 0 < options.checkpoint_every < options.steps // 2:
        parser.error(
            "--steps must be at least 8, and --checkpoint-every less than half of them: it is killed between two"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
