"""``torchpipe rows`` and ``torchpipe batch`` against what real ranks with worker processes were handed."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.exact import exact
from tests.observe.cli.step_loaders import NAMES, STATE_AT, STEPS, counted
from torchpipe.observe.cli.main import main
from torchpipe.state import merge
from torchpipe.state.ranks import shard_states

LOADERS = "tests.observe.cli.step_loaders"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ran")
    command = [sys.executable, "-m", LOADERS]
    ranks = [subprocess.Popen([*command, str(rank), "2", str(folder)]) for rank in range(2)]
    try:
        assert [process.wait(120) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:  # of argparse
        code = int(error.code or 0)
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def ids(batch: Any) -> list[Any]:
    return (
        batch[0][:, 0].tolist()
        if isinstance(batch, list) and isinstance(batch[0], torch.Tensor)
        else [sample["id"] for sample in batch]
    )


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_what_the_rank_got_to_the_bit_and_rows_are_its_samples(
    name: str, rank: int, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = torch.load(ran / f"{name}.{rank}.taken", weights_only=False)["taken"]
    state, file = ran / f"{name}.{rank}.pt", tmp_path / "batch.pt"
    of_rank = ["--rank", rank, "--world-size", 2]
    for step in (0, STATE_AT - 1, STATE_AT, STEPS - 1):
        code, _, err = call(capsys, "batch", state, f"{LOADERS}:{name}", "--step", step, "-o", file, *of_rank)
        assert (code, err) == (0, "")
        assert exact(torch.load(file, weights_only=False)) == exact(taken[step])
    keep = [] if name in ("dealt", "sampled") else ["--keep", "id"]
    command = ["rows", state, f"{LOADERS}:{name}", *of_rank, *keep]
    for steps in (range(STEPS), range(STATE_AT, STEPS), range(2, 3)):
        code, out, err = call(capsys, *command, "--steps", f"{steps.start}:{steps.stop}", "--json")
        assert code == 0
        assert json.loads(out) == [{"step": step, "rows": ids(taken[step])} for step in steps]
        assert ("throws them away" in err) == (name == "filtered")
    code, out, _ = call(capsys, *command, "--find", ids(taken[6])[2], "--steps", f"0:{STEPS}")
    assert (code, out) == (0, "step 6, row 2\n")
    code, out, _ = call(capsys, *command, "--find", "nothing such", "--steps", "0:3")
    assert (code, out) == (1, "nothing such is in none of steps 0 to 2: --steps names others\n")


def test_states_of_all_ranks_side_by_side_or_joined(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [torch.load(ran / f"filtered.{rank}.pt", weights_only=True)["loader"] for rank in range(2)]
    both, joined = tmp_path / "both.pt", tmp_path / "joined.pt"
    torch.save({f"rank {rank}": state for rank, state in enumerate(states)}, both)
    torch.save(merge(states), joined)
    taken = torch.load(ran / "filtered.1.taken", weights_only=False)["taken"]
    apart = tmp_path / "apart.pt"
    torch.save({"data": {name: data for state in states for name, data in shard_states(state, 4).items()}}, apart)
    code, _, err = call(capsys, "rows", apart, f"{LOADERS}:filtered", "--steps", "5", "--rank", 1)
    assert (code, "--world-size" in err) == (2, True)
    for file in (both, joined, apart):
        options = ["--steps", "5", "--rank", 1, "--world-size", 2, "--json"]
        _, out, _ = call(capsys, "rows", file, f"{LOADERS}:filtered", *options, "--keep", "id,url")
        rows = [{"id": name, "url": "u"} for name in ids(taken[5])]
        assert json.loads(out) == [{"step": 5, "rows": rows}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--steps", "1:x"), "should be a step"),
        ((), "say which steps"),
        (("--steps", "1", "--rank", "4"), "--world-size"),
        (("--steps", "1", "--rank", "1", "--world-size", "2", "--keep", "no"), "no field 'no'"),
        (("--steps", "1", "--rank", "0", "--world-size", "2"), "rank 1 of 2"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], says: str, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "rows", ran / "graph.1.pt", f"{LOADERS}:graph", *arguments)
    assert code == 2
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_step_that_is_not_there(ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("graph", "sampled"):
        state = ran / f"{name}.0.pt"
        options = ["--rank", 0, "--world-size", 2]
        code, out, _ = call(capsys, "rows", state, f"{LOADERS}:{name}", "--steps", "5000", *options)
        assert (code, out) == (1, "the epoch has none of these steps\n")
        code, _, err = call(
            capsys, "batch", state, f"{LOADERS}:{name}", "--step", 5000, "-o", tmp_path / "b.pt", *options
        )
        assert code == 2
        assert "no step 5000" in err


def test_who_inspects_a_run_does_not_choose_its_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, file = tmp_path / "state.pt", tmp_path / "batch.pt"
    with counted() as loader:
        stream = iter(loader)
        next(stream)
        torch.save({"loader": loader.state_dict()}, state)
        second = next(stream)
    assert call(capsys, "batch", state, f"{LOADERS}:counted", "--step", 1, "-o", file)[0] == 0
    assert torch.load(file, weights_only=False) == second == [(200, 1), (300, 1)]
    assert call(capsys, "state", "show", state, f"{LOADERS}:counted")[0] == 0
    code, _, err = call(capsys, "batch", state, f"{LOADERS}:of_epoch", "--step", 1, "-o", file)
    assert (code, "it is told rank, world_size; give the others defaults" in err) == (2, True)


def test_every_row_that_is_shown_is_found_by_what_was_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loaders.py"
    file.write_text(
        "import torch\n"
        "from torchpipe import DataLoader, DataLoader2\n"
        "from torchpipe.iter import IterableWrapper\n"
        "def tensors():\n"
        "    return DataLoader(range(6), 2, sampler=[torch.tensor(number) for number in (3, 1, 5, 0)])\n"
        "def pairs():\n"
        "    return DataLoader2(IterableWrapper([(f'img{n}', n) for n in range(6)]).batch(2))\n"
        "def keys():\n"
        "    return DataLoader2(IterableWrapper([{'key': b'k%d' % n} for n in range(6)]).batch(2))\n"
    )
    for name, wanted in (("tensors", "5"), ("pairs", "img4"), ("keys", "k3")):
        target, state = f"{file}:{name}", tmp_path / f"{name}.pt"
        space: dict[str, Any] = {}
        exec(file.read_text(), space)
        torch.save(space[name]().state_dict(), state)
        code, told, _ = call(capsys, "rows", state, target, "--steps", "0:9", "--json")
        assert code == 0
        assert wanted in told
        assert json.loads(told)
        code, told, _ = call(capsys, "rows", state, target, "--find", wanted, "--steps", "0:9")
        assert code == 0, told
        code, told, _ = call(capsys, "rows", state, target, "--find", "none such", "--steps", "0:9")
        assert code == 1, told


def test_a_sample_is_looked_for_in_the_steps_so_far_of_a_run_that_never_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "from torchpipe import DataLoader2\n"
        "from torchpipe.iter import IterableWrapper\n"
        "def endless():\n"
        "    web, books = IterableWrapper(['w0', 'w1']), IterableWrapper(['b0', 'b1'])\n"
        "    return DataLoader2(web.mix(books, weights=[1, 1], stop='never').batch(2))\n"
    )
    space: dict[str, Any] = {}
    exec(file.read_text(), space)
    loader = space["endless"]()
    batches = list(islice(loader, 5))
    torch.save(loader.state_dict(), tmp_path / "run.pt")
    command = ["rows", tmp_path / "run.pt", f"{file}:endless"]
    expected = [(step, row) for step, batch in enumerate(batches) for row, value in enumerate(batch) if value == "b1"]
    code, told, _ = call(capsys, *command, "--find", "b1")
    assert (code, told) == (0, "".join(f"step {step}, row {row}\n" for step, row in expected))
    code, told, _ = call(capsys, *command, "--find", "none such")
    assert (code, told) == (1, "none such is in none of steps 0 to 4: --steps names others\n")
    code, _, err = call(capsys, *command, "--find", "b1", "--epoch", 3)
    assert code == 2
    assert "say which steps" in err


def test_of_several_states_one_is_named_and_a_rank_that_changes_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, target = tmp_path / "states.pt", f"{LOADERS}:counted"
    with counted() as loader:
        stream = iter(loader)
        states = {f"of rank {rank}": loader.state_dict() for rank, _ in zip((0, 1), stream)}
    torch.save(states, file)
    code, _, err = call(capsys, "rows", file, target, "--steps", 0)
    assert (code, "--state NAME, of of rank 0, of rank 1" in err) == (2, True)
    code, _, err = call(capsys, "rows", file, target, "--steps", 0, "--state", "rank")
    assert (code, "no state 'rank', but of rank 0, of rank 1" in err) == (2, True)
    named = ["--steps", 0, "--state", "of rank 1"]
    assert call(capsys, "rows", file, target, *named)[0] == 0
    code, _, err = call(capsys, "rows", file, target, *named, "--rank", 1, "--world-size", 2)
    assert (code, "makes the same loader for each rank" in err) == (2, True)


def test_what_is_asked_in_vain_is_told_before_the_work(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = NAMES[0]
    state, target = ran / f"{name}.0.pt", f"{LOADERS}:{name}"
    ranks = ["--rank", "0", "--world-size", "2"]
    for arguments, told in (
        (["rows", state, target, "--steps", "5:2"], "5:2' has no steps"),
        (["batch", state, target, "--step", "1", *ranks, "-o", state], "is the checkpoint itself"),
        (["batch", state, target, "--step", "1", *ranks, "-o", tmp_path / "none" / "b.pt"], "there is no folder"),
    ):
        code, _, error = call(capsys, *arguments)
        assert code == 2, error
        assert told in error
