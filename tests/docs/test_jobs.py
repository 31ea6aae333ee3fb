"""The scripts of the documentation that are started, ended and started again: by torchrun, signals and kills."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
MESH_STEP = re.compile(r"^(\d+) (\d+) (\d+)$", re.MULTILINE)  # epoch, step, what was seen
STEP = re.compile(r"^(\d+) (\S+)(?: (\d+))?$", re.MULTILINE)


def script_of(page: str, folder: Path, number: int = 0) -> Path:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(blocks[number])
    return script


def start(command: list[str], script: Path, *arguments: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a scheduler starts it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, str(script), *arguments], cwd=script.parent, env=env, text=True, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def finished(job: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = job.communicate()
    assert job.returncode == code, output
    return output


def strike(script: Path, when: str, what: str, before: str) -> None:
    """Let the script do ``what`` to itself ``when`` that holds, before it does what the line ``before`` does."""
    text = script.read_text()
    assert text.count(before) == 1
    indent = " " * (len(before) - len(before.lstrip()))
    script.write_text(text.replace(before, f"{indent}if {when}:\n{indent}    {what}\n{before}"))


LAST_RANK = "dist.get_rank() == dist.get_world_size() - 1"
DIE = "os.kill(os.getpid(), 9)"


def steps(output: str) -> dict[int, tuple[str, ...]]:
    return {int(number): (loss, tokens) for number, loss, tokens in STEP.findall(output)}


def seen_in(output: str, epoch: int, before: int = 10_000) -> int:
    """The sum of what docs/ddp.md's mesh has seen in steps of ``epoch``, up to step ``before``."""
    lines = [tuple(map(int, line)) for line in MESH_STEP.findall(output)]
    return sum(seen for in_epoch, step, seen in lines if in_epoch == epoch and step <= before)


def test_language_model_is_killed_and_continues_on_other_ranks(tmp_path: Path) -> None:
    whole = steps(finished(start([sys.executable], script_of("language-models.md", tmp_path / "whole"), "14")))
    assert sorted(whole) == list(range(1, 15))

    script = script_of("language-models.md", tmp_path / "cut")
    text = script.read_text()
    strike(script, f"step == 8 and {LAST_RANK}", DIE, "            if step % save_every == 0:\n")
    made = steps(finished(start([*TORCHRUN, "2"], script, "14"), code=1))
    script.write_text(text)
    rest = steps(finished(start([sys.executable], script, "14")))
    assert min(rest) == 6  # its checkpoint is of step 5
    assert sorted({*made, *rest}) == list(range(1, 15))
    for part in (made, rest):
        assert {step: tokens for step, (_, tokens) in part.items()} == {step: whole[step][1] for step in part}
        for step, (loss, _) in part.items():  # ranks add up in another order
            assert float(loss) == pytest.approx(float(whole[step][0]), abs=0.01)


def test_ddp_continues_on_other_ranks_with_the_same_samples(tmp_path: Path) -> None:
    whole = steps(finished(start([*TORCHRUN, "2"], script_of("ddp.md", tmp_path / "whole"))))
    assert sorted(whole) == list(range(1, 41))

    script = script_of("ddp.md", tmp_path / "cut")
    text = script.read_text()
    strike(script, f"step == 28 and {LAST_RANK}", DIE, "            if step % 5 == 0 and rank == 0:")
    made = steps(finished(start([*TORCHRUN, "2"], script), code=1))
    script.write_text(text)
    rest = steps(finished(start([sys.executable], script)))
    assert (min(rest), max(rest)) == (26, 40)
    assert {**made, **rest} == whole


def test_mesh_continues_on_fewer_data_ranks_with_each_sample_once(tmp_path: Path) -> None:
    script = script_of("ddp.md", tmp_path / "mesh", 2)
    text = script.read_text()
    strike(script, f"step == 26 and {LAST_RANK}", DIE, "            if step % save_every == 0:")
    made = finished(start([*TORCHRUN, "4"], script, "2"), code=1)
    script.write_text(text)
    rest = finished(start([*TORCHRUN, "2"], script, "2"))
    assert seen_in(made, 0, before=20) + seen_in(rest, 0) == seen_in(rest, 1) == sum(range(480))
    assert min(int(step) for _, step, _ in MESH_STEP.findall(rest)) == 21  # its checkpoint is of step 20


def test_sigterm_saves_at_the_end_of_a_step(tmp_path: Path) -> None:
    whole = steps(finished(start([sys.executable], script_of("preemption.md", tmp_path / "whole"))))
    assert sorted(whole) == list(range(1, 201))

    script = script_of("preemption.md", tmp_path / "cut")
    to_all = "os.killpg(0, signal.SIGTERM)"  # workers too
    strike(script, "step in (30, 120)", to_all, "            stop = must_stop()\n")
    made: dict[int, tuple[str, ...]] = {}
    for stop_at in (30, 120):
        part = steps(finished(start([sys.executable], script), code=75))
        assert (min(part), max(part)) == (len(made) + 1, stop_at)  # no step is made twice
        made |= part
    made |= steps(finished(start([sys.executable], script)))
    assert made == whole


def test_evaluation_on_two_ranks_counts_each_sample_once(tmp_path: Path) -> None:
    one = finished(start([sys.executable], script_of("evaluation.md", tmp_path / "one")))
    two = finished(start([*TORCHRUN, "2"], script_of("evaluation.md", tmp_path / "two")))
    (of_one,), (of_two,) = (re.findall(r"[\d.]+ of 1001 samples", output) for output in (one, two))
    assert of_one == of_two


def test_text_with_images_goes_on_under_other_workers_after_a_kill(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((ROOT / "examples" / "text_with_images.py").read_text().partition("if __name__")[0] + IMAGES)
    assert finished(start([sys.executable], script)) == "40 of 60 records with images\n"


IMAGES = """
import os, signal

if __name__ == "__main__":
    with make_loader(1) as loader:
        loader.seed(1)
        whole = list(loader)
    for batch in whole:
        named = [image for ids in batch["ids"] for n in ids for image in RECORDS[n]["images"]]
        sizes = batch["offsets"].diff().tolist()
        assert sizes == list(map(patches_of, named)) and sum(sizes) == int((batch["tokens"] == IMAGE).sum())
        for image, pixels in zip(named, batch["pixels"].split(sizes)):
            assert np.array_equal(decode(image), pixels)
    with make_loader(2) as loader:
        loader.seed(1)
        stream = iter(loader)
        made = [next(stream)]
        os.kill(loader.reading_service.worker_pids()[0], signal.SIGKILL)
        made += [next(stream), next(stream)]
        state = loader.state_dict()
    with make_loader(1) as loader:
        loader.load_state_dict(state)
        made += list(loader)
    assert len(made) == len(whole)
    for one, other in zip(made, whole):
        assert one["ids"] == other["ids"]
        assert all(torch.equal(one[name], other[name]) for name in ("tokens", "pixels", "offsets"))
    ids = sorted(n for batch in whole for pack in batch["ids"] for n in pack)
    assert ids == list(range(60))
    print(sum(len(RECORDS[n]["images"]) > 0 for n in ids), "of", len(ids), "records with images")
"""
