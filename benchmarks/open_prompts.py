"""Prompts that finish out of order, in a run that is killed: which are trained on, with claims and without.

    python -m benchmarks.open_prompts [--kills 20]

Runs the script of docs/prompts.md, kills it (SIGKILL) at random times, starts it again, and counts. Then the same with
torchdata's ``StatefulDataLoader``, for one epoch of as many prompts, which begins no second one. Prints a table.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

PAGE = Path(__file__).parents[1] / "docs" / "prompts.md"

_CHANGES = (
    ("from torchpipe import DataLoader\n", "from torchdata.stateful_dataloader import StatefulDataLoader\n"),
    ("range(300)", "range(600)"),
    ("epochs=2", "epochs=1"),
    (
        "DataLoader(PROMPTS, batch_size=None, shuffle=True)",
        "StatefulDataLoader(PROMPTS, batch_size=None, shuffle=True)",
    ),
    ("    trained = []", "    ended = False\n    trained = []"),
    ('        trained = saved["trained"]\n', '        trained, ended = saved["trained"], saved["ended"]\n'),
    ("    claims = loader.claims(ahead=32)\n", "    room = asyncio.Semaphore(32)\n"),
    ('"trained": trained}', '"trained": trained, "ended": ended}'),
    ("await generate(claim.item)", "await generate(claim)"),
    ("[claim.epoch, claim.item, answer]", "[0, claim, answer]"),
    ("        claim.done()\n", "        room.release()\n"),
    ("    while claims.epoch < epochs:\n", "    while not ended:\n"),
    (
        "            async for claim in claims:  # waits while 32 are open\n",
        "            for claim in loader:\n                await room.acquire()\n",
    ),
    (
        "                working.create_task(work(claim))\n",
        "                working.create_task(work(claim))\n            ended = True\n",
    ),
)


def scripts() -> dict[str, str]:
    """The script of the page, and the same with the other loader."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    ours = theirs = found[1]
    for old, new in _CHANGES:
        assert theirs.count(old) == 1, old
        theirs = theirs.replace(old, new)
    return {"claims": ours, "StatefulDataLoader": theirs}


def killed_and_resumed(script: str, kills: int, seed: int) -> tuple[int, list[list[object]], str]:
    """(how often it was killed, what was trained on, what it printed)."""
    draws = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rollouts.py"
        file.write_text(script)
        killed = 0
        while True:
            job = subprocess.Popen([sys.executable, str(file)], cwd=folder, stdout=subprocess.PIPE, text=True)
            if killed < kills:
                saved = Path(folder) / "rollouts.pt"
                before = saved.stat().st_mtime_ns if saved.exists() else 0
                while job.poll() is None and (not saved.exists() or saved.stat().st_mtime_ns == before):
                    time.sleep(0.01)  # one save at least, so that it comes to an end
                time.sleep(draws.uniform(0, 0.3))
                if job.poll() is None:
                    job.kill()
                    killed += 1
            output, _ = job.communicate()
            if job.returncode == 0:
                return killed, torch.load(saved, weights_only=True)["trained"], output


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"| loader | kills | skipped | repeated | mean length of what was trained on, of all |\n|{'---|' * 5}")
    for name, script in scripts().items():
        killed, trained, output = killed_and_resumed(script, given.kills, given.seed)
        of_all = float(output.split()[-1])
        seen = {(epoch, prompt) for epoch, prompt, _ in trained}
        mean = sum(answer for _, _, answer in trained) / len(trained)  # type: ignore[misc]
        print(
            f"| {name} | {killed} | {600 - len(seen)} of 600 | {len(trained) - len(seen)} | {mean:.2f}, {of_all:.2f} |"
        )


if __name__ == "__main__":
    main()
